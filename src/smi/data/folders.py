"""Read any folder of images: flat or nested, with or without class folders, train/ and val/.

The labels of a split come from its first level of folders, if there are two or more and no image
lies beside them. From a labelled folder without val/, a tenth of the files is held out for probes.
A hash of each path chooses these, so they stay the same, also when files are added.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder import Target, ValueRange
from smi.data.decoder_pool import Job
from smi.data.listing import SUFFIXES, Entry, Listing, scan
from smi.data.remote import common_folder, is_url, join, list_files
from smi.errors import UserError
from smi.files import expand

Split = Literal["pretrain", "train", "val"]
JobGroup = list[Job] | tuple[range, str]  # or rows that are lost, and the reason

TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "valid", "validation", "test")
HELD_OUT_SHARE = 0.1
MAX_FETCHED_SAMPLE = 16  # images behind URLs, for their size
MAX_BAD_SHARE = 0.1  # unreadable files, before a run stops


@dataclass(frozen=True)
class FileSet:
    """List the image files of one split of a dataset.

    Paths are relative to `root`, a folder or a URL, or they are absolute. value_range: the values
    that become 0 and 255, if images have more than 8 bits.
    """

    name: str
    split: Split
    root: Path | str
    entries: Listing
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    value_range: ValueRange | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def without_labels(self) -> "FileSet":
        """Return the images to pretrain on."""
        return replace(self, split="pretrain", labels=None, classes=None)

    def image_name(self, i: int) -> str:
        """Return the path of an image, as the listing has it."""
        return self.entries[i].path

    def location(self, i: int) -> str:
        """Return the path or URL of an image."""
        return join(str(self.root), self.entries[i].path)

    def job_groups(self) -> Iterator[JobGroup]:
        """Yield the jobs that decode all images."""
        yield [(i, join(str(self.root), e.path)) for i, e in enumerate(self.entries)]

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Hash the path, size and modification time of every file."""
        for entry in self.entries:
            digest.update(os.fsencode(f"\0{entry.path}\0{entry.size} {entry.mtime_ns}"))

    def sample(self, count: int) -> Iterator[Target | bytes]:
        """Yield some images, at even distances; few of those that must be fetched for it."""
        count = min(count, MAX_FETCHED_SAMPLE) if is_url(str(self.root)) else count
        for entry in self.entries[:: math.ceil(len(self) / count)]:
            yield join(str(self.root), entry.path)


@dataclass(frozen=True)
class Folder:
    """List the images of a folder by split; `val` may be a held-out part of the training images."""

    root: Path | str
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
        labels = np.full(len(whole), -1, dtype=np.int64)
        for files in (self.train, self.val):
            if files is not None and files.labels is not None:
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
    return sort_files(root, name or root.name, entries, ignored)


def read_remote_folder(url: str) -> Folder:
    """List the images of a folder behind a URL and sort them into splits."""
    images: list[Entry] = []
    others: list[Entry] = []
    for path, file in list_files(url):
        is_image = os.path.splitext(path)[1].lower() in SUFFIXES
        version = int.from_bytes(hashlib.sha256(file.version.encode()).digest()[:7], "big")
        (images if is_image else others).append(Entry(path, file.num_bytes, version))
    name = url.rstrip("/").rpartition("/")[2]
    return sort_files(url.rstrip("/"), name, Listing.of(images), Listing.of(others))


def sort_files(root: Path | str, name: str, entries: Listing, ignored: Listing) -> Folder:
    """Sort the listed images of a folder into splits."""
    if not entries:
        raise UserError(f"{root} holds no files named like images ({', '.join(sorted(SUFFIXES))})")
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


def join_folders(folders: Sequence[Folder]) -> Folder:
    """Join several folders: their splits and classes, by name."""
    roots = [str(folder.root) for folder in folders]
    root = common_folder([f"{root}/" for root in roots])
    inner = [own.removeprefix(root).strip("/") for own in roots]
    prefixes = [f"{path}/" if path else "" for path in inner]
    name = "+".join(folder.train.name for folder in folders)
    entries = Listing.joined(list(zip(prefixes, (f.entries for f in folders), strict=True)))
    starts = np.cumsum([0, *(len(folder.entries) for folder in folders)])

    def joined(split: Split, parts: Sequence[FileSet | None]) -> FileSet | None:
        places, labels = [], []
        classes = tuple(sorted({word for part in parts if part for word in part.classes or ()}))
        for folder, part, start in zip(folders, parts, starts, strict=False):
            if part is not None:
                places.append(start + part.entries.places_in(folder.entries))
                if part.labels is not None and part.classes is not None:
                    number = np.array([classes.index(word) for word in part.classes])
                    labels.append(number[part.labels])
        if not places:
            return None
        files = FileSet(name, split, root, entries[np.concatenate(places)])
        if len(labels) < len(places):
            return files
        return replace(files, labels=np.concatenate(labels), classes=classes)

    train = joined("train", [folder.train for folder in folders])
    assert train is not None
    return Folder(
        root=root,
        train=train,
        val=joined("val", [folder.val for folder in folders]),
        held_out=any(folder.held_out for folder in folders),
        entries=entries,
        ignored=Listing.joined(list(zip(prefixes, (f.ignored for f in folders), strict=True))),
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


def _hold_out(
    name: str, root: Path | str, entries: Listing, base: str
) -> tuple[FileSet, FileSet | None]:
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
    root: Path | str,
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


def number_labels(
    words: Sequence[str | None],
    classes: tuple[str, ...] | None = None,
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Return the numbers and names of classes; None if an image has no label, or all the same.

    classes: all names, if other images have some of them; numbers sort as numbers.
    """
    if classes is None:
        names = {word for word in words if word is not None}
        by_number = all(name.isdecimal() for name in names)
        classes = tuple(sorted(names, key=(lambda name: (int(name), name)) if by_number else None))
    number = {name: i for i, name in enumerate(classes)}
    if len(classes) < 2 or any(word not in number for word in words):
        return None, None
    return np.array([number[word] for word in words if word is not None], dtype=np.int64), classes


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
