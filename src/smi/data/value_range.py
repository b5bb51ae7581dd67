"""Find the values that become 0 and 255 in images of more than 8 bits: percentiles of a sample.

The upper byte of a 12-bit image in a 16-bit file would be nearly black, and floats have no range of
their own. One range serves all images of a dataset; it comes from the training images.
"""

import functools
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smi.data.decoder import FORMATS, Target, ValueRange, is_deep, source_of
from smi.data.folders import FileSet
from smi.data.shards import ShardSet
from smi.terminal import announce_once

PERCENTILES = (0.1, 99.9)
NUM_SAMPLED_IMAGES = 64  # spread evenly over the dataset
SAMPLED_SIDE = 256  # pixels per side that are used of a large image, at even distances
VALUES_PER_CHUNK = 2**22  # of an array that are converted at once
DEEP_SUFFIXES = (".png", ".tif", ".tiff")  # of files that can have more than 8 bits


def range_of_files(files: FileSet | ShardSet) -> ValueRange | None:
    """Measure a sample of files; return None if none of them has more than 8 bits.

    Only the headers of 8-bit files are read.
    """
    step = math.ceil(len(files) / NUM_SAMPLED_IMAGES)
    versions = (
        tuple(entry.mtime_ns for entry in files.entries[::step])
        if isinstance(files, FileSet)
        else ()
    )
    value_range, sentences = _measure_files(tuple(files.sample(NUM_SAMPLED_IMAGES)), versions)
    for sentence in sentences:
        announce_once(sentence)
    return value_range


@functools.lru_cache(maxsize=16)  # several commands open the same folder more than once
def _measure_files(
    targets: tuple[Target | bytes, ...], versions: tuple[int, ...]
) -> tuple[ValueRange | None, list[str]]:
    """Return the range of some files, and sentences about it; versions change with the files."""
    images = []
    is_reduced = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata and enormous images
        for target in targets:
            path = target if isinstance(target, str) else ""
            if path and os.path.splitext(path)[1].lower() not in DEEP_SUFFIXES:
                continue
            try:
                with Image.open(source_of(target), formats=FORMATS) as image:
                    if is_deep(image.mode):
                        images.append(_thinned(np.asarray(image)))
                    is_reduced |= not is_deep(image.mode) and ";16" in str(image.tile)
            except Exception:  # a damaged file can raise anything; decoding it will report it
                continue
    value_range, sentence = _measure(images, "files")
    warning = (
        "warning: 16-bit colour images: Pillow reads only the upper byte of each channel, so "
        "12-bit images are dark; an .npy file of uint16 [n, H, W, 3] would be scaled instead"
    )
    return value_range, [*([sentence] if sentence else []), *([warning] if is_reduced else [])]


def range_of_array(images: NDArray[Any]) -> ValueRange | None:
    """Measure a sample of images [n, C, H, W]; return None if no value is finite.

    A fourth channel is opacity, and does not count.
    """
    step = math.ceil(len(images) / NUM_SAMPLED_IMAGES)
    value_range, sentence = _measure([_thinned(image[:3]) for image in images[::step]], "images")
    if sentence:
        announce_once(sentence)
    return value_range


def _thinned(image: NDArray[Any]) -> NDArray[Any]:
    """Return pixels of [..., H, W] at even distances, so that large images need little memory."""
    step = math.ceil(max(image.shape[-2:]) / SAMPLED_SIDE)
    return image[..., ::step, ::step].copy()


def _measure(images: Sequence[NDArray[Any]], unit: str) -> tuple[ValueRange | None, str]:
    """Return the percentiles of all values, and a sentence about them."""
    kinds = sorted({_kind(image.dtype) for image in images})
    values = np.concatenate([image.ravel() for image in images]) if images else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return None, ""
    low, high = map(float, np.percentile(values.astype(np.float64), PERCENTILES))
    if values.dtype.kind in "iu":
        low, high = math.floor(low), math.ceil(high)
    if low == high:  # a single value, which becomes 0
        high = low + max(1, abs(low))
    shown = [f"{end:,}" if values.dtype.kind in "iu" else f"{end:.4g}" for end in (low, high)]
    sentence = (
        f"{' and '.join(kinds)} images: values from {shown[0]} to {shown[1]} become 0 to 255 "
        f"(percentiles {PERCENTILES[0]} and {PERCENTILES[1]} of {len(images)} {unit})"
    )
    return (float(low), float(high)), sentence


def _kind(dtype: np.dtype[Any]) -> str:
    return "floating-point" if dtype.kind == "f" else f"{8 * dtype.itemsize}-bit"


def to_bytes(images: NDArray[Any], value_range: ValueRange) -> NDArray[np.uint8]:
    """Scale images [n, ...] to bytes: the ends of the range become 0 and 255, NaN becomes 0.

    The result equals that of the decoder for a file with the same values.
    """
    low, high = value_range
    scale = 255 / (high - low)
    offset = 0.5 - low * scale  # the conversion to integers cuts off decimals
    scaled = np.empty(images.shape, dtype=np.uint8)
    for rows in chunks(images):
        values = (images[rows].astype(np.float64) * scale + offset).astype(np.float32)
        scaled[rows] = np.nan_to_num(values, nan=0).clip(0, 255)
    return scaled


def chunks(images: NDArray[Any]) -> Iterator[slice]:
    """Yield slices of images [n, ...] that are small enough to be converted in memory."""
    size = max(1, VALUES_PER_CHUNK // max(1, images[:1].size))
    for start in range(0, len(images), size):
        yield slice(start, start + size)
