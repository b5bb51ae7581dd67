"""One image file becomes 3 x S x S bytes: upright, RGB, shorter side resized to S, centre kept.

Run as a module it is a worker process: a line of JSON [[row, path], ...] arrives, the images are written to their rows of an inherited
file, and a line of JSON answers. It imports neither torch nor numpy, so it starts in an instant.
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

# Found by content, whatever the name says. A kind that Pillow reads but that is not listed is passed over.
_PLUGINS = (
    BmpImagePlugin,
    GifImagePlugin,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
)  # a JPEG of several pictures (MPO) opens as the first

LARGEST = 200_000_000  # pixels: a small file can claim to be enormous, and every worker holds one image in memory

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableError(Exception):
    """Why a file gives no image."""


@dataclass(frozen=True)
class Bad:
    """A file passed over."""

    path: str
    reason: str


@dataclass(frozen=True)
class Found:
    """What a file that gave an image says of itself: as stored, before it is turned upright."""

    width: int
    height: int
    format: str
    mode: str


def decode(path: str, resolution: int) -> tuple[list[bytes], Found]:
    """The image as its red, green and blue bytes, each [S, S]. Transparent pixels become white; of several frames the first counts."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            found = Found(image.width, image.height, image.format or "", image.mode)
            return planes(image, resolution), found
    except UnidentifiedImageError:
        empty = os.path.getsize(path) == 0
        raise UnreadableError(
            "empty file" if empty else "not an image in a format that is read here"
        ) from None


def planes(image: Image.Image, resolution: int) -> list[bytes]:
    """Of an image that is open."""
    if image.width * image.height > LARGEST:
        raise UnreadableError(
            f"{image.width} x {image.height} pixels, above the limit of {LARGEST // 10**6} megapixels"
        )
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the work.
    image.draft(image.mode, (resolution, resolution))
    image.load()
    square = _square(_eight_bits(image), resolution)
    upright = _UPRIGHT.get(_orientation(image))
    if upright is not None:
        square = square.transpose(upright)
    return [square.tobytes("raw", band) for band in "RGB"]


def _eight_bits(image: Image.Image) -> Image.Image:
    """In a mode that resizes well: L, RGB, RGBA or CMYK."""
    if image.mode in ("RGB", "L", "CMYK", "RGBA") and not (
        image.mode != "RGBA" and "transparency" in image.info
    ):
        return image
    if image.mode.startswith("I"):  # 16 bits, which some readers give as 32: the upper 8 count
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode == "F":
        raise UnreadableError("floating-point pixels, whose range is not stated")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _square(image: Image.Image, resolution: int) -> Image.Image:
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
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
    except Exception:  # damaged EXIF data say nothing, and the pixels are fine
        return 1


# ------------------------------------------------------------------------------------------------------------------- the worker process


def main() -> None:
    import signal

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # ctrl-C reaches the parent, which then closes our input
    fd, resolution = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # LARGEST is the limit
    print("ready", flush=True)
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), 2
    )  # C libraries complain there about files that the answer already names
    for line in sys.stdin:
        print(
            json.dumps([_answer(fd, row, path, resolution) for row, path in json.loads(line)]),
            flush=True,
        )


def _answer(fd: int, row: int, path: str, resolution: int) -> list[object]:
    try:
        planes, found = decode(path, resolution)
    except UnreadableError as error:
        return [str(error)]
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        return [getattr(error, "strerror", None) or str(error) or type(error).__name__]
    try:
        if fd >= 0:
            _write(fd, planes, row * 3 * resolution**2)
    except OSError as error:
        return [error.errno, os.strerror(error.errno or 0)]
    return [found.width, found.height, found.format, found.mode]


def _write(fd: int, planes: list[bytes], offset: int) -> None:
    size = sum(map(len, planes))
    written = os.pwritev(fd, planes, offset)
    if written < size:  # the disk is nearly full: writing the rest says so, or succeeds
        _write(fd, [b"".join(planes)[written:]], offset + written)


if __name__ == "__main__":
    main()
