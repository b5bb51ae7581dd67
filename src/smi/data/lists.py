"""Read a list of images: a file with a path or URL on each line, and a label if there are any.

    photos.txt      a path, then a tab and a label if there are labels
    photos.csv      columns path and, if there are any, label and split (train or val)
    photos.jsonl    {"path": "cat/1.jpg", "label": "cat", "split": "train"}

Paths are relative to the folder of the list. Labels are words or numbers. Without splits, a tenth
of the labelled images is held out by a hash of its path, as in a folder.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smi.data.folders import (
    TRAIN_FOLDERS,
    VAL_FOLDERS,
    FileSet,
    Folder,
    Split,
    is_held_out,
    number_labels,
)
from smi.data.listing import Entry, Listing
from smi.data.remote import is_url, join, read
from smi.errors import UserError

LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl")
PATH_NAMES = ("path", "file", "filename", "file_name", "image", "image_path", "url")
LABEL_NAMES = ("label", "class", "labels")


@dataclass(frozen=True)
class _Line:
    path: str
    label: str | None
    split: str | None


def read_list(location: str) -> Folder:
    """Read a list and look up the sizes of its files; those behind URLs are not looked up."""
    base = location.rpartition("/")[0] or "."
    root: Path | str = base if is_url(location) else Path(os.path.abspath(base))
    lines = list(_parse(location))
    if not lines:
        raise UserError(f"{location} lists no images")
    entries = Listing.of(look_up(root, (line.path for line in lines)))
    return sort_labelled(
        location.rpartition("/")[2],
        root,
        entries,
        [line.label for line in lines],
        [line.split for line in lines],
    )


def sort_labelled(
    name: str,
    root: Path | str,
    entries: Listing,
    words: list[str | None],
    split_names: list[str | None],
) -> Folder:
    """Sort listed images into splits: by their names, or by a hash of their paths."""
    labels, classes = number_labels(words)
    for split in {name for name in split_names if name}:
        if split not in (*TRAIN_FOLDERS, *VAL_FOLDERS):
            raise UserError(f"a split of {name} is called {split!r}: it must be train or val")
    if any(split_names):
        in_val = np.array([split in VAL_FOLDERS for split in split_names], dtype=bool)
    else:
        in_val = np.zeros(len(entries), dtype=bool)
        if labels is not None:
            in_val[:] = [is_held_out(entry.path) for entry in entries]
    if in_val.all():
        in_val[:] = False

    def part(split: Split, chosen: "np.ndarray[Any, np.dtype[np.bool_]]") -> FileSet:
        own = None if labels is None else labels[chosen]
        return FileSet(name, split, root, entries[chosen], own, classes)

    return Folder(
        root=root,
        train=part("train", ~in_val),
        val=part("val", in_val) if in_val.any() else None,
        held_out=bool(in_val.any()) and not any(split_names),
        entries=entries,
        ignored=entries[:0],
    )


def look_up(root: Path | str, paths: Iterable[str]) -> Iterator[Entry]:
    """Yield paths with the sizes of their files; those behind URLs are not looked up."""
    for path in paths:
        location = join(str(root), path)
        try:
            info = None if is_url(location) else os.stat(location)
        except (OSError, ValueError):  # the decoder will report it; NUL is a ValueError
            info = None
        yield Entry(path, info.st_size if info else 0, info.st_mtime_ns if info else 0)


def _parse(location: str) -> Iterator[_Line]:
    try:
        text = read(location).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{location} is not a list in UTF-8") from error
    suffix = os.path.splitext(location)[1].lower()
    rows = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if suffix == ".jsonl":
        return _parse_json(location, rows)
    if suffix == ".txt":
        return (_Line(path, label or None, None) for path, _, label in _cut(rows))
    return _parse_csv(location, rows, "\t" if suffix == ".tsv" else ",")


def _cut(rows: list[str]) -> Iterator[tuple[str, str, str]]:
    for row in rows:
        path, tab, label = row.partition("\t")
        yield path.strip(), tab, label.strip()


def _parse_json(location: str, rows: list[str]) -> Iterator[_Line]:
    for number, row in enumerate(rows, 1):
        try:
            yield _line_of(json.loads(row))
        except (ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
            raise UserError(
                f"line {number} of {location} is not an object with a path, such as "
                '{"path": "cat/1.jpg", "label": "cat"}'
            ) from error


def _parse_csv(location: str, rows: list[str], delimiter: str) -> Iterator[_Line]:
    try:
        cells = list(csv.reader(rows, delimiter=delimiter))
    except csv.Error as error:
        raise UserError(f"{location} is not a table of paths: {error}") from error
    heads = [cell.strip().lower() for cell in cells[0]] if cells else []
    has_heads = any(head in PATH_NAMES for head in heads)
    for number, row in enumerate(cells[has_heads:], 1 + has_heads):
        try:
            label = row[1].strip() or None if len(row) > 1 else None
            yield (
                _line_of(dict(zip(heads, row, strict=False)))
                if has_heads
                else _Line(row[0].strip(), label, None)
            )
        except LookupError as error:
            raise UserError(f"line {number} of {location} has no path") from error


def _line_of(values: dict[str, Any]) -> _Line:
    path = next((values[name] for name in PATH_NAMES if values.get(name)), None)
    if path is None:
        raise LookupError
    label = next((values[name] for name in LABEL_NAMES if values.get(name) is not None), None)
    split = values.get("split")
    os.fsencode(str(path))  # a ValueError if no file can have this name
    return _Line(
        str(path).strip(),
        None if label in (None, "") else str(label).strip(),
        str(split).strip().lower() if split else None,
    )
