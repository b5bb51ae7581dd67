"""Read any folder of images: flat or nested, with or without class folders, train/ and val/.

The labels of a split come from its first level of folders, if there are two or more and no image
lies beside them. From a labelled folder without val/, a tenth of the files is held out for probes.
A hash of each path chooses these, so they stay the same, also when files are added.
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
TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "valid", "validation", "test")
HELD_OUT_SHARE = 0.1
MAX_BAD_SHARE = 0.1  # unreadable files, before a run stops


@dataclass(frozen=True)
class Entry:
    """Describe a file with the suffix of an image."""

    path: str  # relative to the folder, with forward slashes
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class FileSet:
    """List the image files of one split of a dataset. Paths are relative to `root`."""

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
    """List the images of a folder by split; `val` may be a held-out part of the training images."""

    root: Path
    train: FileSet
    val: FileSet | None
    held_out: bool
    entries: tuple[Entry, ...]  # all images, sorted by path
    ignored: tuple[str, ...]  # other files that are not hidden

    @property
    def num_images(self) -> int:
        """Return the number of images in the folder, over all splits."""
        return len(self.entries)

    def all_files(self) -> FileSet:
        """Return the images of all splits, with labels if all of them have one."""
        labels: dict[str, int] = {}
        for files in (self.train, self.val):
            if files is not None and files.labels is not None:
                paths = (entry.path for entry in files.entries)
                labels.update(zip(paths, files.labels.tolist(), strict=True))
        if len(labels) < len(self.entries):
            return FileSet(self.train.name, "train", self.root, self.entries)
        numbers = np.array([labels[entry.path] for entry in self.entries], dtype=np.int64)
        return FileSet(
            self.train.name, "train", self.root, self.entries, numbers, self.train.classes
        )

    def split(self, split: Split) -> FileSet:
        """Return the files of a split; pretraining uses those of train."""
        if split != "val":
            return self.train
        if self.val is None:
            raise UserError(
                f"{self.root} has no images to validate on: put some into val/ beside train/, "
                "or sort images into class folders"
            )
        return self.val


def read_folder(root: Path, name: str | None = None) -> Folder:
    """List the images of a folder and sort them into splits."""
    root = expand(root).absolute()
    if not root.is_dir():
        raise UserError(f"{root} is not a folder")
    entries, ignored = scan(root)
    if not entries:
        raise UserError(f"{root} holds no files named like images ({', '.join(sorted(SUFFIXES))})")
    name = name or root.name
    train_base = _find_base(entries, TRAIN_FOLDERS)
    val_base = _find_base(entries, VAL_FOLDERS)
    train_entries = [entry for entry in entries if entry.path.startswith(train_base or "")]
    held_out = False
    if train_base is not None and val_base is not None:
        val_entries = [entry for entry in entries if entry.path.startswith(val_base)]
        train_classes, val_classes = _shared_classes(
            train_entries, train_base, val_entries, val_base
        )
        train = _file_set(name, "train", root, train_entries, train_base, train_classes)
        val: FileSet | None = _file_set(name, "val", root, val_entries, val_base, val_classes)
    else:
        train, val = _hold_out(name, root, train_entries, train_base or "")
        held_out = val is not None
    return Folder(
        root=root,
        train=train,
        val=val,
        held_out=held_out,
        entries=tuple(entries),
        ignored=ignored,
    )


def _shared_classes(
    train: list[Entry], train_base: str, val: list[Entry], val_base: str
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the classes of both splits together, for each split that has class folders."""
    train_names = class_names(train, train_base)
    val_names = class_names(val, val_base)
    if val_names and not train_names:
        train_names = class_names(train, train_base, min_classes=1)
    if train_names and not val_names:
        val_names = class_names(val, val_base, min_classes=1)
    classes = tuple(sorted({*(train_names or ()), *(val_names or ())}))
    return classes if train_names else None, classes if val_names else None


def _hold_out(
    name: str, root: Path, entries: list[Entry], base: str
) -> tuple[FileSet, FileSet | None]:
    """Split the files into train and held-out val; val is None if there are no classes."""
    classes = class_names(entries, base)
    held_out = [entry for entry in entries if classes and is_held_out(entry.path[len(base) :])]
    if not held_out or len(held_out) == len(entries):
        return _file_set(name, "train", root, entries, base, classes), None
    train = [entry for entry in entries if not is_held_out(entry.path[len(base) :])]
    return (
        _file_set(name, "train", root, train, base, classes),
        _file_set(name, "val", root, held_out, base, classes),
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
    numbers = {class_name: i for i, class_name in enumerate(classes)}
    labels = np.array(
        [numbers[entry.path[len(base) :].split("/", 1)[0]] for entry in entries], dtype=np.int64
    )
    return FileSet(name, split, root, tuple(entries), labels, classes)


def class_names(
    entries: Iterable[Entry], base: str, min_classes: int = 2
) -> tuple[str, ...] | None:
    """Return the names of the folders directly below `base`, or None if they are not classes.

    A single folder is not taken for a class, unless the other split has classes.
    """
    names = set()
    for entry in entries:
        head, separator, _ = entry.path[len(base) :].partition("/")
        if not separator:
            return None
        names.add(head)
    return tuple(sorted(names)) if len(names) >= min_classes else None


def is_held_out(path: str) -> bool:
    """Return whether a file is held out, by a hash of its path."""
    digest = hashlib.sha256(os.fsencode(path)).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def _find_base(entries: Iterable[Entry], names: tuple[str, ...]) -> str | None:
    """Return the first folder, in the order of `names`, that holds images, as "folder/"."""
    heads = {entry.path.split("/", 1)[0] for entry in entries if "/" in entry.path}
    ranked = sorted((names.index(head.lower()), head) for head in heads if head.lower() in names)
    return f"{ranked[0][1]}/" if ranked else None


def scan(root: Path) -> tuple[list[Entry], tuple[str, ...]]:
    """List the files with the suffix of an image, and the paths of others, sorted by path.

    Links are followed; hidden files are skipped.
    """
    entries, ignored = [], []
    for entry in _walk(str(root), "", frozenset()):
        if os.path.splitext(entry.path)[1].lower() in SUFFIXES:
            entries.append(entry)
        else:
            ignored.append(entry.path)
    return sorted(entries, key=lambda entry: entry.path), tuple(sorted(ignored))


def _walk(folder: str, prefix: str, parents: frozenset[tuple[int, int]]) -> Iterator[Entry]:
    """Yield all files below a folder; `parents` are the folders above, to detect link loops."""
    try:
        info = os.stat(folder)
        children = list(os.scandir(folder))
    except OSError as error:
        if prefix:  # one folder of many: list it, but skip its contents
            yield Entry(prefix.rstrip("/"), 0, 0)
            return
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    if (info.st_dev, info.st_ino) in parents:  # a link to a folder above
        return
    parents |= {(info.st_dev, info.st_ino)}
    for child in children:
        path = f"{prefix}{child.name}"
        if child.name.startswith(".") or child.name == "__MACOSX":
            continue
        try:
            if child.is_dir():
                yield from _walk(child.path, f"{path}/", parents)
                continue
            info = child.stat()
        except OSError:  # a link to nowhere or to itself: the decoder will report it
            yield Entry(path, 0, 0)
            continue
        if stat.S_ISREG(info.st_mode):
            yield Entry(path, info.st_size, info.st_mtime_ns)
