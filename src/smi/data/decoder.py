"""Decode an image file to 3 x S x S bytes: upright, RGB, centre square, resized to S x S.

Run as a module, it is a worker process. It reads a line of JSON [[row, path], ...], writes the
images to their rows of an inherited file, and answers with a line of JSON. It imports neither torch
nor numpy, so that it starts quickly.
"""

import json
import os
import sys
import warnings
from dataclasses import dataclass

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

# A file's format is found from its content, not from its name. Formats that Pillow could read but
# that are not listed here are not tried.
_PLUGINS = (
    BmpImagePlugin,
    GifImagePlugin,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # JPEG includes MPO, several in one file

# A small file can claim to be enormous, and every worker holds one image in memory.
MAX_IMAGE_PIXELS = 200_000_000

_TRANSPOSE_OF_ORIENTATION = {  # from the EXIF tag to the operation that turns the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableError(Exception):
    """Report why a file cannot be read as an image."""


@dataclass(frozen=True)
class BadFile:
    """Name a file that cannot be read as an image, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class ImageInfo:
    """Describe an image as it is stored in its file, before it is turned upright."""

    width: int
    height: int
    format: str
    mode: str


def decode(path: str, resolution: int) -> tuple[list[bytes], ImageInfo]:
    """Decode a file to its red, green and blue bytes, each [S, S].

    Transparent pixels become white. Only the first of several frames is read.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            info = ImageInfo(image.width, image.height, image.format or "", image.mode)
            return planes(image, resolution), info
    except UnidentifiedImageError:
        empty = os.path.getsize(path) == 0
        raise UnreadableError(
            "empty file" if empty else "not an image in a supported format"
        ) from None


def planes(image: Image.Image, resolution: int) -> list[bytes]:
    """Return the red, green and blue bytes of an open image, each [S, S]."""
    if image.width * image.height > MAX_IMAGE_PIXELS:
        limit = MAX_IMAGE_PIXELS // 10**6
        raise UnreadableError(
            f"{image.width} x {image.height} pixels, above the limit of {limit} megapixels"
        )
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the work.
    image.draft(image.mode, (resolution, resolution))
    image.load()
    square = _square(_eight_bits(image), resolution)
    transpose = _TRANSPOSE_OF_ORIENTATION.get(_orientation(image))
    if transpose is not None:
        square = square.transpose(transpose)
    return [square.tobytes("raw", band) for band in "RGB"]


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert an image to a mode that resizes well: L, RGB, RGBA or CMYK."""
    if image.mode in ("RGB", "L", "CMYK", "RGBA") and not (
        image.mode != "RGBA" and "transparency" in image.info
    ):
        return image
    if image.mode.startswith("I"):  # 16 bits, which some readers give as 32: keep the upper 8
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode == "F":
        raise UnreadableError("floating-point pixels without a stated range")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _square(image: Image.Image, resolution: int) -> Image.Image:
    """Crop the centre square, resize it and put it on white."""
    width, height = image.size
    side = min(width, height)
    left = (width - side) / 2
    top = (height - side) / 2
    square = image
    if image.size != (resolution, resolution):
        square = image.resize(
            (resolution, resolution),
            Image.Resampling.BILINEAR,
            box=(left, top, left + side, top + side),
        )
    if square.mode == "RGBA":
        white = Image.new("RGBA", square.size, "white")
        square = Image.alpha_composite(white, square)
    return square if square.mode == "RGB" else square.convert("RGB")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # the EXIF data are damaged, but the pixels are fine
        return 1


# ------ worker process


def main() -> None:
    """Answer the jobs of the parent process until it closes our input."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets ctrl-C and closes our input
    fd, resolution = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # our own limit is checked instead
    _send("ready")
    # C libraries complain on stderr about bad files, but the answer already names those.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for line in sys.stdin:
        _send(json.dumps([_answer(fd, row, path, resolution) for row, path in json.loads(line)]))


def _send(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _answer(fd: int, row: int, path: str, resolution: int) -> list[object]:
    """Return [width, height, format, mode], [reason] of a bad file or [errno, text] of the disk."""
    try:
        planes, info = decode(path, resolution)
    except UnreadableError as error:
        return [str(error)]
    except Exception as error:  # a damaged file can raise anything in its decoder
        return [getattr(error, "strerror", None) or str(error) or type(error).__name__]
    try:
        if fd >= 0:
            _write(fd, planes, row * 3 * resolution**2)
    except OSError as error:
        return [error.errno, os.strerror(error.errno or 0)]
    return [info.width, info.height, info.format, info.mode]


def _write(fd: int, planes: list[bytes], offset: int) -> None:
    size = sum(map(len, planes))
    written = os.pwritev(fd, planes, offset)
    if written < size:  # the disk is nearly full: writing the rest raises an error, or succeeds
        _write(fd, [b"".join(planes)[written:]], offset + written)


if __name__ == "__main__":
    main()
