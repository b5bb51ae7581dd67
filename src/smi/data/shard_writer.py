"""Write the images of a folder into tar shards, as WebDataset reads them (`smi shard`).

    train-000000.tar        00000000.jpg, 00000000.json: the bytes of a file, its path and label
    shards.json             name, bytes, images and checksum of every shard

Files are shuffled first, so that a shard holds a bit of everything. Which file goes into which
shard follows from the listing, so an interrupted command continues with the first missing shard.
"""

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smi.data.folders import FileSet, Folder
from smi.data.listing import SUFFIXES
from smi.data.remote import LostError, is_url, open_filesystem, read
from smi.data.shard_index import INDEX
from smi.data.sources import find
from smi.errors import UserError
from smi.files import disk_errors, expand, make_folder, write_whole
from smi.seeds import derive
from smi.terminal import Progress, quietly, say

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
HEADER_BYTES = 512  # of a member of a tar file, whose content is padded to as much
ABOUT_BYTES = 1024  # of the path and label of an image, about


@dataclass(frozen=True)
class Item:
    """Hold one image to write: its name, the bytes of its file, and its label."""

    name: str
    content: bytes
    label: str | None = None


def write_shards(
    data: str | Path,
    *,
    out: str,
    size: str = "256MB",
    root: Path | None = None,
    quiet: bool = False,
) -> None:
    """Write the images of a folder or a list into shards.

    write_shards("photographs", out="s3://bucket/photographs", size="256MB")

    out: a folder or a URL. size: of a shard, about. Run it again to continue after an interruption.
    """
    num_bytes = parse_size(size)
    out = out.rstrip("/") if is_url(out) else str(expand(out).absolute())
    found = find(data, root)
    if not isinstance(found, Folder):
        raise UserError(f"{data} has shards already")
    with quietly(quiet), disk_errors(f"writing shards to {out}"):
        target = _Target(out)
        parts = [found.train, *([found.val] if found.val is not None else [])]
        total = sum(map(len, parts))
        with Progress("writing", total, "images") as progress:
            for files in parts:
                for name, rows in _plan(files, num_bytes):
                    target.write(name, _digest(files, rows), _items(files, rows))
                    progress.advance(len(rows))
        target.finish(found.train.classes)
        say(f"{out}: {total:,} images in {len(target.shards):,} shards")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 256MB."""
    number, unit = text[:-2], text[-2:].upper()
    try:
        size = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        size = 0
    if not 1 <= size < float("inf"):
        raise UserError(f"--size must be a number with KB, MB or GB, such as 256MB, not {text!r}")
    return int(size)


def _plan(files: FileSet, shard_bytes: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each shard and the files that go into it."""
    order = np.random.default_rng(derive(0, f"shards {files.split}")).permutation(len(files))
    rows: list[int] = []
    size = number = 0
    for row in order.tolist():
        rows.append(row)
        size += files.entries[row].size + 2 * HEADER_BYTES + ABOUT_BYTES
        if size >= shard_bytes:
            yield f"{files.split}-{number:06d}.tar", rows
            rows, size, number = [], 0, number + 1
    if rows:
        yield f"{files.split}-{number:06d}.tar", rows


def _digest(files: FileSet, rows: list[int]) -> str:
    """Hash what goes into a shard, to notice a folder that has changed since."""
    digest = hashlib.sha256()
    for row in rows:
        entry = files.entries[row]
        label = None if files.labels is None else int(files.labels[row])
        digest.update(os.fsencode(f"{entry.path}\0{entry.size} {entry.mtime_ns} {label}\0"))
    return digest.hexdigest()[:16]


def _items(files: FileSet, rows: list[int]) -> Iterator[Item]:
    for row in rows:
        try:
            content = read(files.location(row))
        except (OSError, LostError) as error:
            raise UserError(f"{files.location(row)} cannot be read: {error}") from error
        label = None
        if files.labels is not None and files.classes is not None:
            label = files.classes[int(files.labels[row])]
        yield Item(files.image_name(row), content, label)


class _Target:
    """Write shards into a folder or below a URL, with an index of those that are complete."""

    def __init__(self, out: str):
        self._out = out
        self._known: dict[str, dict[str, Any]] = {}
        self.shards: list[dict[str, Any]] = []
        if not is_url(out):
            make_folder(Path(out))
        try:
            index = json.loads(read(f"{out}/{INDEX}"))
            self._known = {str(shard["name"]): dict(shard) for shard in index["shards"]}
        except (OSError, LostError):
            pass  # nothing is written yet
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"{out}/{INDEX} is not an index of shards: choose another --out"
            ) from error

    def write(self, name: str, content: str, items: Iterable[Item]) -> None:
        """Write a shard, unless one of the same content is complete."""
        shard = self._known.get(name)
        if shard is None or shard.get("content") != content or not self._has(shard):
            shard = {"name": name, **self._write(name, items), "content": content}
        self.shards.append(shard)
        self._known[name] = shard
        self._save(list(self._known.values()))

    def finish(self, classes: tuple[str, ...] | None) -> None:
        """Leave only the shards of this call in the index, and remove others that it named."""
        self._save(self.shards, classes)
        for name in {*self._known} - {shard["name"] for shard in self.shards}:
            self._remove(name)

    def _remove(self, name: str) -> None:
        if "/" in name or not name.endswith(".tar"):
            return  # not one of ours
        if is_url(self._out):
            system, path = open_filesystem(f"{self._out}/{name}")
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(path)
        else:
            Path(self._out, name).unlink(missing_ok=True)

    def _has(self, shard: dict[str, Any]) -> bool:
        location = f"{self._out}/{shard['name']}"
        try:
            if is_url(location):
                system, path = open_filesystem(location)
                return bool(system.info(path)["size"] == shard["bytes"])
            return bool(os.path.getsize(location) == shard["bytes"])
        except (OSError, KeyError):
            return False

    def _write(self, name: str, items: Iterable[Item]) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if not is_url(self._out):
            write_whole(Path(self._out, name), lambda path: facts.update(write_tar(path, items)))
            return facts
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            facts = write_tar(path, items)
            system, target = open_filesystem(f"{self._out}/{name}")
            system.put_file(str(path), target)
        return facts

    def _save(self, shards: list[dict[str, Any]], classes: tuple[str, ...] | None = None) -> None:
        index: dict[str, Any] = {"shards": shards}
        index |= {"classes": list(classes)} if classes else {}
        text = json.dumps(index, indent=1) + "\n"
        if not is_url(self._out):
            write_whole(Path(self._out, INDEX), lambda path: _write_text(path, text))
            return
        system, path = open_filesystem(f"{self._out}/{INDEX}")
        system.pipe_file(path, text.encode())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_tar(path: Path, items: Iterable[Item]) -> dict[str, Any]:
    """Write one shard; return its bytes, number of images and checksum."""
    number = 0
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number, item in enumerate(items, 1):
            suffix = os.path.splitext(item.name)[1].lower()
            suffix = suffix if suffix in SUFFIXES else ".png"  # readers look at the content
            about = {"path": os.fsencode(item.name).decode("utf-8", "backslashreplace")}
            about |= {} if item.label is None else {"label": item.label}
            for end, content in ((suffix, item.content), (".json", json.dumps(about).encode())):
                member = tarfile.TarInfo(f"{number - 1:08d}{end}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "images": number, "sha256": checksum}
