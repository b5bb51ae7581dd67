"""Turn images that a caller of Python gives into a source: a path that every command can read.

    as_source("photos")                                  # a name, path, URL or pattern stays
    as_source(["a.jpg", "b.jpg"])                        # paths of images
    as_source((images, labels))                          # uint8 [n, H, W, 3] or [n, 3, H, W]
    as_source(torchvision.datasets.CIFAR10(...))         # any dataset with a length and items
    as_source({"train": ..., "val": ...})                # two splits

Lists and arrays are written to `given` in smi's cache folder, under a digest of all of them. The
items of a dataset are written there as shards. Its digest is of its type, its length and 64 items,
because reading all of them at every start could take long.
"""

import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smi.data.folders import VAL_FOLDERS
from smi.data.listing import SUFFIXES
from smi.data.remote import expand_braces, is_url
from smi.data.shard_index import INDEX
from smi.data.shard_writer import Item, write_tar
from smi.data.sources import DATASET_NAMES
from smi.errors import UserError
from smi.files import (
    cache_home,
    disk_errors,
    expand,
    lock,
    sync,
    sync_below,
    temporary_folder,
    write_json,
    write_whole,
)
from smi.terminal import Progress, announce

NUM_HASHED_ITEMS = 64
ITEMS_PER_SHARD = 4096
IMAGE_KEYS = ("image", "img", "pixel_values", "jpg", "png")
LABEL_KEYS = ("label", "labels", "fine_label", "cls", "target")

Given = Any  # a source, arrays, tensors, images, paths, a dataset, or a mapping of these by split


def as_source(data: Given) -> str:
    """Return a source for any images."""
    if isinstance(data, str | os.PathLike):
        return absolute(data)
    if isinstance(data, Mapping):
        return _by_split(_named_splits(data))
    if isinstance(data, Sequence) and data and all(_is_path(item) for item in data):
        paths = [os.fspath(item) for item in data]
        if not any(os.path.splitext(path)[1].lower() in SUFFIXES for path in paths):
            return _several(paths)
    return _by_split({"": data})


def as_path(data: Given) -> str:
    """Return a name or path as it is, and a source for any other images."""
    if isinstance(data, list) and len(data) == 1 and _is_path(data[0]):  # as --data gives it
        (data,) = data
    return os.fspath(data) if _is_path(data) else as_source(data)


def absolute(source: str | os.PathLike[str]) -> str:
    """Return the absolute path of a folder or file, so that it can be read from anywhere."""
    text = os.fspath(source)
    if text in DATASET_NAMES or is_url(text) or text.startswith("hf:"):
        return text
    path = expand(text)
    if path.exists():
        return str(path.resolve())
    if not any(sign in text for sign in "{*?["):
        return text
    if text.startswith("{"):  # some of its parts may be absolute
        parts = (p if is_url(p) else os.path.abspath(expand(p)) for p in expand_braces(text))
        return "{" + ",".join(parts) + "}"
    return os.path.abspath(path)


def _is_path(item: object) -> bool:
    return isinstance(item, str | os.PathLike)


def _several(paths: list[str]) -> str:
    """Return a pattern of several folders or shards."""
    if len(paths) == 1:
        return absolute(paths[0])
    for path in paths:
        if any(sign in path for sign in ",{}"):
            raise UserError(
                f"{path} cannot be one of several sources: rename it without , {{ and }}"
            )
    return "{" + ",".join(map(absolute, paths)) + "}"


def _named_splits(data: Mapping[Any, Given]) -> dict[str, Given]:
    """Return the images of train and val; of val, validation and test, the first is val."""
    for name in data:
        if name not in ("train", *VAL_FOLDERS):
            raise UserError(f"a split of the images is called train, val or test, not {name!r}")
    if "train" not in data:
        raise UserError("one of the splits must be called train")
    held_out = [name for name in VAL_FOLDERS if name in data]
    for name in held_out[1:]:
        announce(f"the split {name} is not used: {held_out[0]} is")
    return {"train": data["train"]} | ({"val": data[held_out[0]]} if held_out else {})


def _by_split(parts: dict[str, Given]) -> str:
    """Write the images of each split to the cache; "" is the only one."""
    opened = {split: _open(part) for split, part in parts.items()}
    kinds = {type(images) for images in opened.values()}
    if len(kinds) > 1:
        raise UserError("the splits of the images must be given in the same way")
    digest = hashlib.sha256()
    for split, images in opened.items():
        digest.update(f"\0{split}\0".encode() + images.digest())
    name = digest.hexdigest()[:16]
    folder = cache_home() / "given"
    write: Any = kinds.pop().write
    waiting = "waiting for another process that writes the given images"
    with (
        disk_errors(f"writing the given images to {folder}"),
        lock(folder / f"images-{name}.lock", waiting),
    ):
        return str(write(opened, folder, name))


def _open(data: Given) -> "_Arrays | _Paths | _Items":
    """Return images that can be hashed and written."""
    labels = None
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | os.PathLike):
        data, labels = data
        labels = labels.tolist() if hasattr(labels, "tolist") else labels
    if labels is None and hasattr(data, "data") and hasattr(data, "targets"):  # torchvision's
        arrays = _array(data.data)
        if arrays is not None:
            return _Arrays(arrays, _labels(data.targets, len(arrays)))
    if labels is None and isinstance(getattr(data, "samples", None), list):
        pairs = data.samples
        if pairs and all(isinstance(pair, tuple) and _is_path(pair[0]) for pair in pairs):
            classes = getattr(data, "classes", None)
            words = [str(classes[i]) if classes else str(i) for _, i in pairs]
            return _Paths([os.fspath(path) for path, _ in pairs], words)
    arrays = _array(data)
    if arrays is not None:
        return _Arrays(arrays, None if labels is None else _labels(labels, len(arrays)))
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(
            f"images cannot be read from a {type(data).__name__}: give a path, an array, a list of "
            "paths or PIL images, or a dataset with a length"
        )
    if len(data) == 0:
        raise UserError("no images are given: the list or dataset is empty")
    if isinstance(data, Sequence) and all(_is_path(item) for item in data):
        given_words = None if labels is None else [str(label) for label in labels]
        return _Paths([os.fspath(path) for path in data], given_words)
    return _Items(data, None if labels is None else [str(label) for label in labels])


def _array(data: Given) -> NDArray[Any] | None:
    """Return an array or a tensor of images as an array."""
    data = _as_array(data)
    return data if isinstance(data, np.ndarray) and data.ndim >= 3 else None


def _as_array(value: Given) -> Given:
    """Return a tensor as an array, and anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    try:
        return value.detach().cpu().numpy()
    except TypeError as error:
        raise UserError(f"images of {value.dtype} cannot be read: give uint8") from error


def _labels(labels: Given, count: int) -> NDArray[np.int64]:
    numbers = np.asarray(_as_array(labels))
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise UserError(
            f"{count:,} images need as many whole numbers as labels, not "
            f"{numbers.dtype} {list(numbers.shape)}"
        )
    return numbers.astype(np.int64)


class _Arrays:
    """Hold arrays of pixels, with labels if there are any."""

    def __init__(self, images: NDArray[Any], labels: NDArray[np.int64] | None):
        self.images = np.ascontiguousarray(images)
        self.labels = labels

    def digest(self) -> bytes:
        digest = hashlib.sha256(f"{self.images.dtype} {self.images.shape}".encode())
        digest.update(self.images.data)
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        return digest.digest()

    @staticmethod
    def write(parts: "dict[str, _Arrays]", folder: Path, name: str) -> Path:
        """Write one array as .npy, or several and labels as .npz."""
        whole = parts.get("")
        plain = whole is not None and whole.labels is None
        path = folder / f"images-{name}.{'npy' if plain else 'npz'}"
        if path.exists():
            return path
        arrays: dict[str, Any] = {}
        for split, part in parts.items():
            end = {"": "", "train": "_train", "val": "_test"}[split]
            arrays[f"x{end}" if end else "images"] = part.images
            if part.labels is not None:
                arrays[f"y{end}" if end else "labels"] = part.labels

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                if whole is not None and plain:
                    np.save(file, whole.images)
                else:
                    np.savez(file, **arrays)

        write_whole(path, write)
        return path


class _Paths:
    """Hold paths of image files, with labels if there are any."""

    def __init__(self, paths: list[str], labels: list[str] | None):
        if labels is not None and len(labels) != len(paths):
            raise UserError(f"{len(paths):,} paths need as many labels, not {len(labels):,}")
        self.paths = [p if is_url(p) else os.path.abspath(expand(p)) for p in paths]
        self.labels = labels

    def digest(self) -> bytes:
        return hashlib.sha256(json.dumps([self.paths, self.labels]).encode()).digest()

    @staticmethod
    def write(parts: "dict[str, _Paths]", folder: Path, name: str) -> Path:
        """Write a list."""
        path = folder / f"images-{name}.jsonl"
        if not path.exists():
            lines = [
                json.dumps(
                    {"path": file}
                    | ({} if label is None else {"label": label})
                    | ({"split": split} if split else {})
                )
                for split, part in parts.items()
                for file, label in zip(
                    part.paths, part.labels or itertools.repeat(None), strict=False
                )
            ]
            write_whole(path, lambda partial: _write_lines(partial, lines))
        return path


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class _Items:
    """Hold a sequence of PIL images, or a dataset whose items have an image and perhaps a label."""

    def __init__(self, items: Any, labels: list[str] | None):
        if labels is not None and len(labels) != len(items):
            raise UserError(f"{len(items):,} images need as many labels, not {len(labels):,}")
        self.items = items
        self.labels = labels

    def digest(self) -> bytes:
        kind = type(self.items)
        digest = hashlib.sha256(f"{kind.__module__}.{kind.__qualname__} {len(self.items)}".encode())
        digest.update(str(getattr(self.items, "_fingerprint", "")).encode())  # Hugging Face's
        digest.update(json.dumps(self.labels).encode())
        is_list = isinstance(self.items, list | tuple)  # in memory, so all of it is hashed
        step = 1 if is_list else max(1, len(self.items) // NUM_HASHED_ITEMS)
        for i in range(0, len(self.items), step):
            value = self.items[i]
            if isinstance(value, Image.Image):
                digest.update(f"{value.mode} {value.size}".encode() + value.tobytes())
            else:
                item = self.item(i)
                digest.update(item.content + str(item.label).encode())
        return digest.digest()

    def item(self, i: int) -> Item:
        """Return an image as a file."""
        value = self.items[i]
        label: object = None
        if isinstance(value, Mapping):
            label = next((value[key] for key in LABEL_KEYS if key in value), None)
            images = [value[key] for key in IMAGE_KEYS if key in value]
            if not images:
                raise UserError(f"an item of the dataset has no image: its keys are {[*value]}")
            value = images[0]
        elif isinstance(value, tuple | list) and len(value) == 2:
            value, label = value
        if self.labels is not None:
            label = self.labels[i]
        suffix, content = (".png", value) if isinstance(value, bytes) else _encode(value)
        return Item(f"{i}{suffix}", content, None if label is None else str(label))

    @staticmethod
    def write(parts: "dict[str, _Items]", folder: Path, name: str) -> Path:
        """Write shards into a folder, which appears when it is complete."""
        path = folder / f"images-{name}"
        if path.exists():
            return path
        with temporary_folder(folder, "images-") as partial:
            shards = []
            total = sum(len(part.items) for part in parts.values())
            with Progress("copying", total, "images") as progress:
                for split, part in parts.items():
                    for number, rows in enumerate(_ranges(len(part.items))):
                        file = f"{split or 'train'}-{number:06d}.tar"
                        items: Iterator[Item] = map(part.item, rows)
                        shards.append({"name": file, **write_tar(partial / file, items)})
                        progress.advance(len(rows))
            write_json(partial / INDEX, {"shards": shards})
            sync_below(partial)
            partial.rename(path)
            sync(folder)
        return path


def _ranges(count: int) -> Iterator[range]:
    for start in range(0, count, ITEMS_PER_SHARD):
        yield range(start, min(count, start + ITEMS_PER_SHARD))


def _encode(value: object) -> tuple[str, bytes]:
    """Return an image as the bytes of a file without loss, and the suffix of the file."""
    array = _as_array(value)
    if isinstance(array, np.ndarray):
        if array.dtype != np.uint8:
            raise UserError(
                f"the images of the dataset are {array.dtype} arrays: give PIL images or uint8 "
                "arrays, from a dataset without a transform"
            )
        if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
            array = array.transpose(1, 2, 0)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[..., 0]
        try:
            value = Image.fromarray(array)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"an item of the dataset is an array {list(array.shape)}, not an image"
            ) from error
    if not isinstance(value, Image.Image):
        raise UserError(f"an item of the dataset is a {type(value).__name__}, not an image")
    file = io.BytesIO()
    if value.mode in ("I", "F"):  # PNG has no place for these
        value.save(file, "TIFF")
        return ".tif", file.getvalue()
    if value.mode not in ("L", "RGB", "RGBA", "I;16", "1", "P", "LA"):
        value = value.convert("RGB")
    value.save(file, "PNG", compress_level=1)
    return ".png", file.getvalue()
