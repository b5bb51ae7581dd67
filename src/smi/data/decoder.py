"""Decode an image file: upright, RGB, the shorter side resized to S pixels.

Of the longer side, `keep` decides: "square" keeps the central S pixels, "aspect" keeps all, up to
2 S. The central square of an image is the same in both, byte by byte.

Run as a module, it is a worker process. It reads a line of JSON [keep, [[row, target], ...]],
writes the images to a file, which it inherits or opens, and answers with a line of JSON. A target
is a path, a URL, or [path, start, size] for bytes of a file. It imports neither torch nor numpy, so
that it starts quickly.
"""

import contextlib
import errno
import io
import json
import os
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

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

Keep = Literal["aspect", "square"]
Target = str | tuple[str, int, int]  # a path or URL, or path, start and size
ValueRange = tuple[float, float]  # the values that become 0 and 255
MAX_ASPECT = 2  # longest side of a kept image, divided by its shorter side; the ends are cut off

LOCK_SUFFIX = ".lock"
PAUSES = (0.1, 1.0)  # seconds between two attempts to read a file
PASSING_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE}
SQUARES_PER_PIECE = 16  # a worker reserves space for as many square images at a time

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


@dataclass(frozen=True)
class Decoded:
    """Say where the pixels [3, height, width] of a decoded file were written."""

    start: int  # bytes
    height: int
    width: int
    info: ImageInfo


def decode(
    path: str, resolution: int, value_range: ValueRange | None = None
) -> tuple[list[bytes], ImageInfo]:
    """Decode the central square of a file to its red, green and blue bytes, each [S, S]."""
    picture, info = decode_picture(path, resolution, "square", value_range)
    return bands(picture), info


def decode_picture(
    target: Target, resolution: int, keep: Keep, value_range: ValueRange | None = None
) -> tuple[Image.Image, ImageInfo]:
    """Decode a file to an RGB image.

    Transparent pixels become white. Only the first of several frames is read. value_range: scales
    images of more than 8 bits; without it 16 bits keep the upper byte, and floats are refused.
    """
    source = source_of(target)
    try:
        with Image.open(source, formats=FORMATS) as image:
            info = ImageInfo(image.width, image.height, image.format or "", image.mode)
            return _upright(image, resolution, keep, value_range), info
    except UnidentifiedImageError:
        size = os.path.getsize(source) if isinstance(source, str) else len(source.getvalue())
        raise UnreadableError(
            "empty file" if size == 0 else "not an image in a supported format"
        ) from None


def source_of(target: Target | bytes) -> str | io.BytesIO:
    """Return the path of a file, or its bytes if it is behind a URL or a part of another file."""
    if isinstance(target, bytes):
        return io.BytesIO(target)
    if not isinstance(target, str):
        path, start, size = target
        with open(path, "rb") as file:
            file.seek(start)
            return io.BytesIO(file.read(size))
    target = target.removeprefix("file://")  # of this machine, so it is checked as a path is
    if "://" not in target:
        mode = os.stat(target).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would be waited for for ever
            raise UnreadableError("a device or a pipe, not a file")
        return target
    from smi.data.remote import read  # most workers read files only

    return io.BytesIO(read(target))


def stored_size(target: Target | bytes, resolution: int, keep: Keep) -> tuple[int, int]:
    """Return the width and height of a file's decoded image, before it is turned upright.

    Only the header is read.
    """
    with Image.open(source_of(target), formats=FORMATS) as image:
        if 0 in image.size:
            raise UnreadableError("no pixels")
        image.draft(image.mode, (resolution, resolution))
        return _kept_size(image.size, resolution, keep)


def planes(
    image: Image.Image, resolution: int, value_range: ValueRange | None = None
) -> list[bytes]:
    """Return the red, green and blue bytes of the central square of an open image, each [S, S]."""
    return bands(_upright(image, resolution, "square", value_range))


def bands(picture: Image.Image) -> list[bytes]:
    """Return the red, green and blue bytes of an RGB image."""
    return [picture.tobytes("raw", band) for band in "RGB"]


def _upright(
    image: Image.Image, resolution: int, keep: Keep, value_range: ValueRange | None
) -> Image.Image:
    """Decode an open image, resize it and turn it upright."""
    if image.width * image.height > MAX_IMAGE_PIXELS:
        limit = MAX_IMAGE_PIXELS // 10**6
        raise UnreadableError(
            f"{image.width} x {image.height} pixels, above the limit of {limit} megapixels"
        )
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the work.
    image.draft(image.mode, (resolution, resolution))
    image.load()
    picture = _resize(_eight_bits(image, value_range), resolution, keep)
    transpose = _TRANSPOSE_OF_ORIENTATION.get(_orientation(image))
    return picture if transpose is None else picture.transpose(transpose)


def is_deep(mode: str) -> bool:
    """Return whether an image of this mode has more than 8 bits: integers, or floats."""
    return mode.startswith("I") or mode == "F"


def _eight_bits(image: Image.Image, value_range: ValueRange | None) -> Image.Image:
    """Convert an image to a mode that resizes well: L, RGB, RGBA or CMYK."""
    if image.mode in ("RGB", "L", "CMYK", "RGBA") and not (
        image.mode != "RGBA" and "transparency" in image.info
    ):
        return image
    if is_deep(image.mode) and value_range is not None:
        return _scale(image, value_range)
    if image.mode.startswith("I"):  # 16 bits, which some readers give as 32: keep the upper 8
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode == "F":
        raise UnreadableError("floating-point pixels without a stated range")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _scale(image: Image.Image, value_range: ValueRange) -> Image.Image:
    """Convert values to bytes: the ends of the range become 0 and 255, NaN becomes 0."""
    low, high = value_range
    scale = 255 / (high - low)
    offset = 0.5 - low * scale  # the conversion to L cuts off decimals, and what is outside
    return image.convert("F").point(lambda value: value * scale + offset).convert("L")


def _kept_size(size: tuple[int, int], resolution: int, keep: Keep) -> tuple[int, int]:
    """Return the width and height of an image after resizing.

    Both differ from S by an even number, so that the central square begins at a whole pixel.
    """
    if keep == "square":
        return resolution, resolution
    short = min(size)
    longest = MAX_ASPECT * resolution

    def kept(side: int) -> int:
        pixels = min(side * resolution // short, longest)
        return pixels - (pixels - resolution) % 2

    return kept(size[0]), kept(size[1])


def _resize(image: Image.Image, resolution: int, keep: Keep) -> Image.Image:
    """Resize an image and put it on white.

    The central square and the parts on both sides of it are resized separately. The pixels of the
    square therefore do not depend on `keep`. There is no seam: the parts share one grid, and each
    pixel is computed from all pixels of the file around it.
    """
    if image.size == (resolution, resolution):
        return _on_white(image)
    width, height = image.size
    short = min(width, height)
    kept_width, kept_height = _kept_size(image.size, resolution, keep)
    margin_x = (kept_width - resolution) // 2  # pixels beside the square
    margin_y = (kept_height - resolution) // 2

    def in_file(pixel: int, margin: int, side: int) -> float:
        """Return the place in the file of the edge before a pixel of the result."""
        place = (side - short) / 2 + (pixel - margin) * short / resolution
        return min(max(place, 0.0), side)

    picture = Image.new(image.mode, (kept_width, kept_height), None)  # not filled: all is pasted
    for x0, x1 in pairwise(sorted({0, margin_x, margin_x + resolution, kept_width})):
        for y0, y1 in pairwise(sorted({0, margin_y, margin_y + resolution, kept_height})):
            box = (
                in_file(x0, margin_x, width),
                in_file(y0, margin_y, height),
                in_file(x1, margin_x, width),
                in_file(y1, margin_y, height),
            )
            part = image.resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR, box=box)
            picture.paste(part, (x0, y0))
    return _on_white(picture)


def _on_white(image: Image.Image) -> Image.Image:
    """Convert an image to RGB, on white where it is transparent."""
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


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
    file = sys.argv[1]
    inherited = file.lstrip("-").isdigit()
    fd = int(file) if inherited else os.open(file, os.O_RDWR | getattr(os, "O_BINARY", 0))
    resolution, row_bytes = map(int, sys.argv[2:4])
    value_range = (float(sys.argv[4]), float(sys.argv[5])) if len(sys.argv) > 4 else None
    space = _Space(fd, SQUARES_PER_PIECE * 3 * resolution**2, None if inherited else file)
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # our own limit is checked instead
    _send("ready")
    # C libraries complain on stderr about bad files, but the answer already names those.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for line in sys.stdin:
        keep, jobs = json.loads(line)
        answers = [
            _answer(
                fd, row * row_bytes if row_bytes else space, target, resolution, keep, value_range
            )
            for row, target in jobs
        ]
        _send(json.dumps(answers))


def _send(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _answer(
    fd: int,
    place: "int | _Space",
    target: Target,
    resolution: int,
    keep: Keep,
    value_range: ValueRange | None,
) -> list[object]:
    """Return the values of Decoded, [reason] of a bad file or [errno, text] of the disk."""
    try:
        picture, info = _decode_again(target, resolution, keep, value_range)
        planes = bands(picture)
    except UnreadableError as error:
        return [str(error)]
    except MemoryError:  # the file is not bad
        return [errno.ENOMEM, os.strerror(errno.ENOMEM)]
    except Exception as error:  # a damaged file can raise anything in its decoder
        return [getattr(error, "strerror", None) or str(error) or type(error).__name__]
    start = 0
    try:
        if fd >= 0:
            start = place if isinstance(place, int) else place.take(sum(map(len, planes)))
            _write(fd, planes, start)
    except OSError as error:
        return [error.errno, os.strerror(error.errno or 0)]
    return [
        start,
        picture.height,
        picture.width,
        [info.width, info.height, info.format, info.mode],
    ]


def _decode_again(
    target: Target, resolution: int, keep: Keep, value_range: ValueRange | None
) -> tuple[Image.Image, ImageInfo]:
    """Decode a file; if reading it fails for a reason that may pass, try again after a pause."""
    for pause in PAUSES:
        try:
            return decode_picture(target, resolution, keep, value_range)
        except OSError as error:
            if error.errno not in PASSING_ERRORS:
                raise
            time.sleep(pause)
    return decode_picture(target, resolution, keep, value_range)


class _Space:
    """Give out space at the end of a file that several workers share.

    A worker takes space for several images at a time. A file that grows with every image, under the
    lock of all workers, is written more slowly. path: of the file, if it is not inherited.
    """

    def __init__(self, fd: int, piece_bytes: int, path: str | None = None):
        self._fd = fd
        self._path = path
        self._piece_bytes = piece_bytes
        self._next = 0
        self._end = 0

    def take(self, size: int) -> int:
        """Return the start of `size` bytes that no other worker writes."""
        if self._next + size > self._end:
            self._grow(max(size, self._piece_bytes))
        start = self._next
        self._next += size
        return start

    def _grow(self, size: int) -> None:
        with _lock_of_workers(self._fd, self._path):
            start = os.fstat(self._fd).st_size
            reserve(self._fd, start, size)
            self._next = start
            self._end = start + size


@contextlib.contextmanager
def _lock_of_workers(fd: int, path: str | None) -> Iterator[None]:
    """Hold the lock of a file that several workers share."""
    if path is not None:  # Windows
        from filelock import FileLock

        with FileLock(path + LOCK_SUFFIX):
            yield
        return
    import fcntl

    fcntl.lockf(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def reserve(fd: int, start: int, size: int) -> None:
    """Allocate bytes of a file: a full disk fails now, and reserved blocks are written faster."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, size)
    else:
        os.truncate(fd, start + size)


def _write(fd: int, planes: list[bytes], offset: int) -> None:
    size = sum(map(len, planes))
    if hasattr(os, "pwritev"):
        written = os.pwritev(fd, planes, offset)
    elif hasattr(os, "pwrite"):
        written = os.pwrite(fd, b"".join(planes), offset)
    else:  # on Windows, where no other process has this descriptor
        os.lseek(fd, offset, os.SEEK_SET)
        written = os.write(fd, b"".join(planes))
    if written < size:  # the disk is nearly full: writing the rest raises an error, or succeeds
        _write(fd, [b"".join(planes)[written:]], offset + written)


if __name__ == "__main__":
    main()
