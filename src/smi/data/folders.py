"""Any folder of images: flat or nested, with class folders or none, with or without train/ and val/.

A split's labels come from its first level of folders when there are two or more and no image lies beside them. A labelled folder without
val/ has a tenth of its files held out for probes, chosen by a hash of each path: the same ones tomorrow, and when files are added.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from smi.errors import UserError
from smi.files import expand

Split = Literal["pretrain", "train", "val"]

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif"}
)
TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "test")
HELD_OUT_SHARE = 0.1
MAX_BAD_SHARE = 0.1  # of unreadable files, before a run stops


@dataclass(frozen=True)
class Entry:
    """A file that is named like an image."""

    path: str  # relative to the folder, with forward slashes
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class FileSet:
    """One split of a set whose images are files. Paths are relative to `root`."""

    name: str
    split: Split
    root: Path
    entries: tuple[Entry, ...]
    labels: "np.ndarray[tuple[int], np.dtype[np.int64]] | None" = None
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class Folder:
    """What lies in a folder, sorted into splits; `val` may be part of train/ held out."""

    root: Path
    train: FileSet
    val: FileSet | None
    held_out: bool
    entries: tuple[Entry, ...]  # all images, in the order of their paths
    ignored: tuple[str, ...]  # neither hidden nor named like images

    @property
    def num_images(self) -> int:
        return len(self.entries)

    def everything(self) -> FileSet:
        """All images, whatever their split; with labels if every one of them has one."""
        labels: dict[str, int] = {}
        for part in (self.train, self.val):
            if part is not None and part.labels is not None:
                labels.update(
                    zip((entry.path for entry in part.entries), part.labels.tolist(), strict=True)
                )
        if len(labels) < len(self.entries):
            return FileSet(self.train.name, "train", self.root, self.entries)
        numbers = np.array([labels[entry.path] for entry in self.entries], dtype=np.int64)
        return FileSet(
            self.train.name, "train", self.root, self.entries, numbers, self.train.classes
        )

    def split(self, split: Split) -> FileSet:
        if split == "val":
            if self.val is None:
                raise UserError(
                    f"{self.root} has no images to validate on: put some into val/ beside train/, or sort images into class folders"
                )
            return self.val
        return self.train


def read_folder(root: Path, name: str | None = None) -> Folder:
    root = expand(root).absolute()
    if not root.is_dir():
        raise UserError(f"{root} is not a folder")
    entries, ignored = scan(root)
    if not entries:
        raise UserError(f"{root} holds no files named like images ({', '.join(sorted(SUFFIXES))})")
    name = name or root.name
    train_folder, val_folder = _find(entries, TRAIN), _find(entries, VAL)
    if train_folder is None:
        return _without_val(root, name, entries, "", tuple(entries), ignored)
    train = [entry for entry in entries if entry.path.startswith(train_folder)]
    if val_folder is None:
        return _without_val(root, name, train, train_folder, tuple(entries), ignored)
    val = [entry for entry in entries if entry.path.startswith(val_folder)]
    train_names, val_names = class_names(train, train_folder), class_names(val, val_folder)
    train_names = train_names or (class_names(train, train_folder, fewest=1) if val_names else None)
    val_names = val_names or (class_names(val, val_folder, fewest=1) if train_names else None)
    classes = tuple(sorted({*(train_names or ()), *(val_names or ())}))
    return Folder(
        root,
        _file_set(name, "train", root, train, train_folder, classes if train_names else None),
        _file_set(name, "val", root, val, val_folder, classes if val_names else None),
        False,
        tuple(entries),
        ignored,
    )


def _without_val(
    root: Path,
    name: str,
    entries: list[Entry],
    base: str,
    images: tuple[Entry, ...],
    ignored: tuple[str, ...],
) -> Folder:
    classes = class_names(entries, base)
    held = [entry for entry in entries if classes and is_held_out(entry.path[len(base) :])]
    if not held or len(held) == len(entries):
        return Folder(
            root,
            _file_set(name, "train", root, entries, base, classes),
            None,
            False,
            images,
            ignored,
        )
    kept = [entry for entry in entries if not is_held_out(entry.path[len(base) :])]
    return Folder(
        root,
        _file_set(name, "train", root, kept, base, classes),
        _file_set(name, "val", root, held, base, classes),
        True,
        images,
        ignored,
    )


def _file_set(
    name: str,
    split: Split,
    root: Path,
    entries: list[Entry],
    base: str,
    classes: tuple[str, ...] | None,
) -> FileSet:
    if classes is None:
        return FileSet(name, split, root, tuple(entries))
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array(
        [number[entry.path[len(base) :].split("/", 1)[0]] for entry in entries], dtype=np.int64
    )
    return FileSet(name, split, root, tuple(entries), labels, classes)


def class_names(entries: Iterable[Entry], base: str, fewest: int = 2) -> tuple[str, ...] | None:
    """The folders right below `base`, if they are classes: one folder alone need not be, unless another split has classes."""
    names = set()
    for entry in entries:
        head, separator, _ = entry.path[len(base) :].partition("/")
        if not separator:
            return None
        names.add(head)
    return tuple(sorted(names)) if len(names) >= fewest else None


def is_held_out(path: str) -> bool:
    digest = hashlib.sha256(os.fsencode(path)).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def _find(entries: Iterable[Entry], names: tuple[str, ...]) -> str | None:
    """The first of the folders of these names, in the order of the names, that holds images."""
    heads = {entry.path.split("/", 1)[0] for entry in entries if "/" in entry.path}
    ranked = sorted((names.index(head.lower()), head) for head in heads if head.lower() in names)
    return f"{ranked[0][1]}/" if ranked else None


def scan(root: Path) -> tuple[list[Entry], tuple[str, ...]]:
    """The files named like images and the others, each sorted by path. Links are followed, hidden files are not seen."""
    entries, ignored = [], []
    for entry in _walk(str(root), "", frozenset()):
        if os.path.splitext(entry.path)[1].lower() in SUFFIXES:
            entries.append(entry)
        else:
            ignored.append(entry.path)
    return sorted(entries, key=lambda entry: entry.path), tuple(sorted(ignored))


def _walk(folder: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[Entry]:
    try:
        info = os.stat(folder)
        children = list(os.scandir(folder))
    except OSError as error:
        if prefix:  # one folder of many: listed, not entered
            yield Entry(prefix.rstrip("/"), 0, 0)
            return
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    if (info.st_dev, info.st_ino) in above:  # a link to a folder we are in
        return
    above |= {(info.st_dev, info.st_ino)}
    for child in children:
        path = f"{prefix}{child.name}"
        if child.name.startswith(".") or child.name == "__MACOSX":
            continue
        try:
            if child.is_dir():
                yield from _walk(child.path, f"{path}/", above)
                continue
            info = child.stat()
        except OSError:  # a link to nowhere or to itself: the decoder will say so
            yield Entry(path, 0, 0)
            continue
        if stat.S_ISREG(info.st_mode):
            yield Entry(path, info.st_size, info.st_mtime_ns)
