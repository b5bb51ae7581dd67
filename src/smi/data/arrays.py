"""Hold images in arrays, and read them from files: .npy, .npz and idx, the format of MNIST.

    read_arrays("mnist.npz").split("val")

    images.npy                      images [n, H, W], [n, H, W, C] or [n, C, H, W], without labels
    x_train, y_train, x_test, …     of an .npz file: the names of Keras,
    train_images, train_labels, …   of MedMNIST,
    images, labels                  of one array, or any name if there are no other images
    train-images-idx3-ubyte         with its labels, and with t10k-images-idx3-ubyte beside it

C is 1 to 4. If the second and the last length are both 1 to 4, the last one is C. One channel is
grey. Two are red and green. Four are red, green, blue and opacity, on white. Images that are not
square are cropped to their central square.

Bytes are used as they are, and so are integers of 32 and 64 bits if all of them lie in 0 to 255.
Other numbers are scaled (`value_range`). Bytes of .npy and idx files are mapped, not read; all
else is in memory.
"""

import gzip
import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from smi.data.decoder import ValueRange
from smi.data.folders import Split, is_held_out
from smi.data.value_range import chunks, range_of_array, to_bytes
from smi.device import total_memory_bytes
from smi.errors import UserError
from smi.files import expand
from smi.terminal import announce_once

MAX_CHANNELS = 4
FILE_NAME = re.compile(r"\.np[yz]$|idx\d[-.]ubyte(\.gz)?$", re.IGNORECASE)
IDX_IMAGES = re.compile(r"images([-.])idx[34]([-.])ubyte", re.IGNORECASE)
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
# Names of the images and labels in .npz files: of train, then of val, the first that is there.
NPZ_NAMES = (
    (("x_train", "y_train"), ("x_test", "y_test")),
    (
        ("train_images", "train_labels"),
        ("test_images", "test_labels"),
        ("val_images", "val_labels"),
    ),
    (("images", "labels"),),
)


@dataclass(frozen=True)
class ArraySet:
    """Hold one split of a dataset of small images of one size, as parts of uint8 [n, 3, H, W].

    Large parts are memory-mapped files. value_range: the values that became 0 and 255, if the
    images had more than 8 bits.
    """

    name: str
    split: Split
    parts: tuple[NDArray[np.uint8], ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    value_range: ValueRange | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def without_labels(self) -> "ArraySet":
        """Return the images to pretrain on."""
        return replace(self, split="pretrain", labels=None, classes=None)

    def image_name(self, i: int) -> str:
        """Return the split and the number of an image."""
        return f"{self.split}/{i}"


@dataclass(frozen=True)
class ArrayFile:
    """Hold the splits of an array file.

    whole: the images in the order of the file, if `val` is a held-out part of them.
    """

    path: Path
    train: ArraySet
    val: ArraySet | None
    whole: ArraySet | None = None

    def split(self, split: Split) -> ArraySet:
        """Return the images of a split; pretraining uses those of train."""
        if split != "val":
            return self.train
        if self.val is None:
            raise UserError(
                f"{self.path} has no images to validate on: "
                "an .npz file may hold x_test and y_test, or labels beside its images"
            )
        return self.val

    def all_images(self) -> tuple[ArraySet, ...]:
        """Return all images: in the order of the file if it has one array of them."""
        if self.whole is not None:
            return (self.whole,)
        return (self.train,) if self.val is None else (self.train, self.val)


def is_array_file(target: str | Path) -> bool:
    """Return whether a path is named like an array file, and is not a folder."""
    return FILE_NAME.search(Path(target).name) is not None and not expand(target).is_dir()


def read_arrays(target: str | Path, value_range: ValueRange | None = None) -> ArrayFile:
    """Read an array file.

    value_range: the values that become 0 and 255; None measures them if they are needed. A tenth
    of labelled images is held out if the file has no second split.
    """
    path = expand(target).absolute()
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    with _reading(path):
        loaded = _read_idx(path) if _is_idx(path) else _read_numpy(path)
    squares = [_squares(part.images, part.name) for part in loaded]
    labels = [_checked_labels(part) for part in loaded]
    images, value_range = _as_bytes(squares, value_range, path)
    splits: tuple[Split, ...] = ("train", "val")
    sets = [
        ArraySet(path.name, split, (_three_channels(part),), value_range=value_range)
        for split, part in zip(splits, images, strict=False)
    ]
    known = [part for part in labels if part is not None]
    if known:
        values = np.unique(np.concatenate(known))
        classes = tuple(map(str, values.tolist()))
        for i, part in enumerate(labels):
            if part is not None:
                numbers = np.searchsorted(values, part).astype(np.int64)
                sets[i] = replace(sets[i], labels=numbers, classes=classes)
    if len(sets) == 2:
        return ArrayFile(path, sets[0], sets[1])
    return _hold_out(path, images[0], sets[0])


def _hold_out(path: Path, images: NDArray[np.uint8], whole: ArraySet) -> ArrayFile:
    """Hold out a tenth of labelled images, in the same way as from a folder."""
    labels = whole.labels
    if labels is None:
        return ArrayFile(path, whole, None)
    held_out = np.array([is_held_out(f"{i}") for i in range(len(images))])
    if not held_out.any() or held_out.all():
        return ArrayFile(path, whole, None)

    def part(split: Split, chosen: NDArray[np.bool_]) -> ArraySet:
        parts = (_three_channels(images[chosen]),)
        return replace(whole, split=split, parts=parts, labels=labels[chosen])

    return ArrayFile(path, part("train", ~held_out), part("val", held_out), whole)


# ------ files


@dataclass(frozen=True)
class _Loaded:
    """Hold arrays as they are in a file."""

    name: str  # for messages
    images: NDArray[Any]
    labels: NDArray[Any] | None = None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # numpy parses headers as Python, which fails in many ways
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        if "bject" in reason:  # numpy's words for arrays of Python objects
            reason = "it holds Python objects, which could run code; store numbers"
        elif "pickle" in reason:  # numpy's guess about any unknown content
            reason = "it is not a numpy file"
        raise UserError(f"{path} cannot be read: {reason}") from error


def _read_numpy(path: Path) -> list[_Loaded]:
    with path.open("rb") as file:
        if file.read(2) == b"PK":  # a zip archive
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                _require_memory(sum(item.file_size for item in archive.infolist()), path)
            file.seek(0)
            return _read_npz(np.load(file, allow_pickle=False), path)
    # Copy-on-write, because torch warns about read-only arrays.
    return [_Loaded(path.name, np.load(path, mmap_mode="c", allow_pickle=False))]


def _require_memory(size: int, path: Path) -> None:
    """Refuse values that are larger than the memory: a small compressed file may claim any size."""
    total = total_memory_bytes()
    if size > total:
        raise UserError(
            f"{path} cannot be read: it has {size / 1e9:,.1f} GB of values, and this machine "
            f"{total / 1e9:,.1f} GB of memory"
        )


def _read_npz(loaded: Mapping[str, NDArray[Any]], path: Path) -> list[_Loaded]:
    names = {name.lower(): name for name in loaded}
    for first, *others in NPZ_NAMES:
        if first[0] in names:
            pairs = [first, *[pair for pair in others if pair[0] in names][:1]]
            return [
                _Loaded(
                    f"{image} of {path.name}",
                    loaded[names[image]],
                    loaded[names[label]] if label in names else None,
                )
                for image, label in pairs
            ]
    arrays = {name: loaded[name] for name in loaded}
    images = [name for name, array in arrays.items() if array.ndim in (3, 4)]
    if len(images) != 1:
        held = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise UserError(
            f"{path} holds {held or 'nothing'}: name its images x_train, train_images or images"
        )
    return [_Loaded(f"{images[0]} of {path.name}", arrays[images[0]])]


def _is_idx(path: Path) -> bool:
    return re.search(r"idx\d", path.name, re.IGNORECASE) is not None


def _read_idx(path: Path) -> list[_Loaded]:
    """Read images, with the labels and the test images that lie beside them."""
    if not IDX_IMAGES.search(path.name):
        raise UserError(f"{path} does not hold images: give a file such as train-images-idx3-ubyte")
    names = [path.name]
    if "train" in path.name:
        names += [path.name.replace("train", test) for test in ("t10k", "test")]
    files = [file for name in names if (file := _beside(path, name)) is not None]
    loaded = []
    for file in files[:2]:
        labels = _beside(path, IDX_IMAGES.sub(r"labels\1idx1\2ubyte", file.name))
        loaded.append(
            _Loaded(
                file.name,
                _read_idx_array(file),
                None if labels is None else _read_idx_array(labels),
            )
        )
    return loaded


def _beside(path: Path, name: str) -> Path | None:
    """Return a file in the same folder, compressed or not, if it exists."""
    plain = name.removesuffix(".gz")
    paths = [path.with_name(other) for other in (name, plain, f"{plain}.gz")]
    return next((file for file in paths if file.is_file()), None)


def _read_idx_array(path: Path) -> NDArray[Any]:
    """Read an idx file: two zeros, the type, the number of lengths, the lengths, the values."""
    is_compressed = path.suffix.lower() == ".gz"
    with gzip.open(path) if is_compressed else path.open("rb") as file:
        header = file.read(4)
        if len(header) < 4 or header[:2] != b"\0\0" or header[2] not in IDX_TYPES:
            raise UserError(f"{path} cannot be read: it is not an idx file")
        dtype = np.dtype(IDX_TYPES[header[2]])
        num_axes = header[3]
        try:
            shape = struct.unpack(f">{num_axes}I", file.read(4 * num_axes))
        except struct.error:
            raise UserError(f"{path} cannot be read: it is truncated") from None
        size = math.prod(shape) * dtype.itemsize
        _require_memory(size, path)
        if is_compressed:
            data = file.read(size + 1)
            num_bytes = len(data)
        else:
            num_bytes = path.stat().st_size - file.tell()
        if num_bytes != size:
            raise UserError(
                f"{path} cannot be read: it has {num_bytes:,} bytes of values, not {size:,}"
            )
        if is_compressed or size == 0:
            return np.frombuffer(bytearray(data if size else b""), dtype).reshape(shape)
        return np.memmap(path, dtype, mode="c", offset=4 + 4 * num_axes, shape=shape)


# ------ images


def _squares(images: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the central squares of images as a view [n, C, S, S]."""
    shape = list(images.shape)
    if images.dtype.kind not in "iuf":
        raise UserError(
            f"{name} holds values of type {images.dtype}: images are integers or floats"
        )
    if images.ndim == 3 and shape[-1] <= MAX_CHANNELS < min(shape[:2]):
        raise UserError(f"{name} is {shape}, like one image: images have a first axis of their own")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and 1 <= shape[-1] <= MAX_CHANNELS:
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or not 1 <= shape[1] <= MAX_CHANNELS:
        raise UserError(
            f"{name} is {shape}: images are [n, H, W], [n, H, W, C] or [n, C, H, W] with 1 to "
            f"{MAX_CHANNELS} channels"
        )
    height, width = images.shape[2:]
    side = min(height, width)
    if len(images) == 0 or side == 0:
        raise UserError(f"{name} is {shape}: it holds no images")
    top, left = (height - side) // 2, (width - side) // 2
    return images[:, :, top : top + side, left : left + side]


def _as_bytes(
    images: list[NDArray[Any]], value_range: ValueRange | None, path: Path
) -> tuple[list[NDArray[np.uint8]], ValueRange | None]:
    """Return images of 1 or 3 channels as bytes, and the values that became 0 and 255."""
    deep = [part for part in images if part.dtype != np.uint8]
    if value_range is None and all(map(_fits_bytes, deep)):
        images = [part.astype(np.uint8, copy=False) for part in images]
        return [_without_opacity(part) for part in images], None
    if value_range is None:
        value_range = range_of_array(deep[0])
        if value_range is None:
            raise UserError(f"{path} holds no finite values")
    images = [part if part.dtype == np.uint8 else to_bytes(part, value_range) for part in images]
    return [_without_opacity(part) for part in images], value_range


def _fits_bytes(images: NDArray[Any]) -> bool:
    """Return whether these are bytes that are stored as the default integers of other programs."""
    is_long = images.dtype.kind in "iu" and images.dtype.itemsize >= 4
    return is_long and int(images.min()) >= 0 and int(images.max()) <= 255


def _without_opacity(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images of 1 or 3 channels: two become red and green, four are put on white."""
    num_images, num_channels, side, _ = images.shape
    if num_channels in (1, 3):
        return images
    colours = np.zeros((num_images, 3, side, side), dtype=np.uint8)
    if num_channels == 2:
        colours[:, :2] = images
        return colours
    for rows in chunks(images):
        values = images[rows].astype(np.uint16)
        opacity = values[:, 3:]
        colours[rows] = (values[:, :3] * opacity + 255 * (255 - opacity) + 127) // 255
    return colours


def _three_channels(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images [n, 3, S, S]; the channels of grey images share their memory."""
    if images.shape[1] == 3:
        return images
    shape = (len(images), 3, *images.shape[2:])
    return as_strided(images, shape, (images.strides[0], 0, *images.strides[2:]))


def _checked_labels(loaded: _Loaded) -> NDArray[Any] | None:
    """Return labels [n]; None if there are none, or if they are not classes."""
    labels = loaded.labels
    if labels is None:
        return None
    if labels.ndim == 2 and labels.shape[1] == 1:  # as MedMNIST has them
        labels = labels[:, 0]
    if labels.ndim == 0 or len(labels) != len(loaded.images):
        raise UserError(
            f"{loaded.name}: there are {len(loaded.images):,} images and "
            f"{labels.shape[0] if labels.ndim else 1:,} labels"
        )
    if labels.ndim > 1 or labels.dtype.kind not in "iubU":
        announce_once(
            f"{loaded.name}: labels of type {labels.dtype} {list(labels.shape)} are not used; "
            "classes are one integer or one word for each image"
        )
        return None
    return labels
