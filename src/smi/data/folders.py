"""Read any folder of images: flat or nested, with or without class folders, train/ and val/.

The labels of a split come from its first level of folders, if there are two or more and no image
lies beside them. From a labelled folder without val/, a tenth of the files is held out for probes.
A hash of each path chooses these, so they stay the same, also when files are added.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder import ValueRange
from smi.data.listing import SUFFIXES, Listing, scan
from smi.errors import UserError
from smi.files import expand

Split = Literal["pretrain", "train", "val"]

TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "valid", "validation", "test")
HELD_OUT_SHARE = 0.1
MAX_BAD_SHARE = 0.1  # unreadable files, before a run stops


@dataclass(frozen=True)
class FileSet:
    """List the image files of one split of a dataset. Paths are relative to `root`.

    value_range: the values that become 0 and 255, if images have more than 8 bits.
    """

    name: str
    split: Split
    root: Path
    entries: Listing
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    value_range: ValueRange | None = None

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class Folder:
    """List the images of a folder by split; `val` may be a held-out part of the training images."""

    root: Path
    train: FileSet
    val: FileSet | None
    held_out: bool
    entries: Listing  # all images, sorted by path
    ignored: Listing  # other files that are not hidden

    @property
    def num_images(self) -> int:
        """Return the number of images in the folder, over all splits."""
        return len(self.entries)

    def all_files(self) -> FileSet:
        """Return the images of all splits, with labels if all of them have one."""
        whole = FileSet(self.train.name, "train", self.root, self.entries)
        parts = [files for files in (self.train, self.val) if files is not None]
        labels = np.full(len(whole), -1, dtype=np.int64)
        for files in parts:
            if files.labels is not None:
                labels[files.entries.places_in(self.entries)] = files.labels
        if (labels < 0).any():
            return whole
        return replace(whole, labels=labels, classes=self.train.classes)

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
    train_entries = _below(entries, train_base or "")
    held_out = False
    if train_base is not None and val_base is not None:
        val_entries = _below(entries, val_base)
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
        entries=entries,
        ignored=ignored,
    )


def _shared_classes(
    train: Listing, train_base: str, val: Listing, val_base: str
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


def _hold_out(name: str, root: Path, entries: Listing, base: str) -> tuple[FileSet, FileSet | None]:
    """Split the files into train and held-out val; val is None if there are no classes."""
    classes = class_names(entries, base)
    held_out = np.zeros(len(entries), dtype=bool)
    if classes:
        held_out[:] = [is_held_out(entry.path[len(base) :]) for entry in entries]
    if not held_out.any() or held_out.all():
        return _file_set(name, "train", root, entries, base, classes), None
    return (
        _file_set(name, "train", root, entries[~held_out], base, classes),
        _file_set(name, "val", root, entries[held_out], base, classes),
    )


def _below(entries: Listing, base: str) -> Listing:
    """Return the files below a folder, which lie side by side."""
    if not base:
        return entries
    inside = np.array(
        [entries.folder_path(i).startswith(base) for i in range(entries.num_folders)], dtype=bool
    )
    places = np.flatnonzero(inside[entries.folder])
    return entries[int(places[0]) : int(places[-1]) + 1]


def _file_set(
    name: str,
    split: Split,
    root: Path,
    entries: Listing,
    base: str,
    classes: tuple[str, ...] | None,
) -> FileSet:
    if classes is None:
        return FileSet(name, split, root, entries)
    number = {class_name: i for i, class_name in enumerate(classes)}
    of_folder = np.full(entries.num_folders, -1, dtype=np.int64)
    for i in np.unique(entries.folder).tolist():
        of_folder[i] = number[entries.folder_path(i)[len(base) :].split("/", 1)[0]]
    return FileSet(name, split, root, entries, of_folder[entries.folder], classes)


def class_names(entries: Listing, base: str, min_classes: int = 2) -> tuple[str, ...] | None:
    """Return the names of the folders directly below `base`, or None if they are not classes.

    A single folder is not taken for a class, unless the other split has classes.
    """
    names = set()
    for i in np.unique(entries.folder).tolist():
        head, separator, _ = entries.folder_path(i)[len(base) :].partition("/")
        if not separator:
            return None
        names.add(head)
    return tuple(sorted(names)) if len(names) >= min_classes else None


def is_held_out(path: str) -> bool:
    """Return whether a file is held out, by a hash of its path."""
    digest = hashlib.sha256(os.fsencode(path)).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def _find_base(entries: Listing, names: tuple[str, ...]) -> str | None:
    """Return the first folder, in the order of `names`, that holds images, as "folder/"."""
    paths = map(entries.folder_path, np.unique(entries.folder).tolist())
    heads = {path.split("/", 1)[0] for path in paths if path}
    ranked = sorted((names.index(head.lower()), head) for head in heads if head.lower() in names)
    return f"{ranked[0][1]}/" if ranked else None
