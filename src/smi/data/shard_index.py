"""Index shards: how many bytes and images each has.

    read_index(["shards/000000.tar", "shards/000001.tar"])

The number of images comes from shards.json beside the shards, as `smi shard` writes it. Where it is
missing, headers are read, by ranges if they are behind a URL, and the numbers kept in the cache.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smi.data.remote import File, LostError, describe, is_url, list_files, read
from smi.data.shard_files import Shard, count_images, parquet_classes
from smi.errors import UserError
from smi.files import cache_home, lock, write_json
from smi.terminal import Progress

INDEX = "shards.json"
NUM_THREADS = 8  # that read headers behind URLs
SHARDS_PER_SAVE = 200  # after as many headers, the index is kept

Key = tuple[str, int, str]  # location, bytes and version of a shard


def read_index(locations: Sequence[str]) -> list[Shard]:
    """Return the size and the number of images of every shard.

    A shard that cannot be found is an error, unless shards.json describes it: then it is lost when
    it is needed.
    """
    written = _read_written(locations)
    files = _describe_all(locations, written)
    known = {
        (file.location, file.num_bytes, file.version): written[file.location][1]
        for file in files
        if written.get(file.location, (None,))[0] == file.num_bytes
    }
    path = _kept_path(files)
    with contextlib.ExitStack() as stack:
        if len(known) < len(files):
            with contextlib.suppress(OSError):  # a cache that cannot be written has no lock
                waiting = "waiting for another process that reads the headers of shards"
                stack.enter_context(lock(path.with_suffix(".lock"), waiting))
        known = _read_kept(path) | known
        missing = [file for file in files if _key(file) not in known]
        with (
            Progress("reading headers of", len(missing), "shards") as progress,
            ThreadPoolExecutor(NUM_THREADS) as threads,
        ):
            counts = threads.map(count_images, missing)
            for number, (file, count) in enumerate(zip(missing, counts, strict=True), 1):
                known[_key(file)] = count
                progress.advance(1)
                if number % SHARDS_PER_SAVE == 0 or number == len(missing):
                    _keep(path, known)
    return [Shard(f.location, f.num_bytes, f.version, known[_key(f)]) for f in files]


def _describe_all(locations: Sequence[str], written: Mapping[str, tuple[int, int]]) -> list[File]:
    """Return the sizes of files; those of a folder behind a URL are listed at once."""
    listed: dict[str, File] = {}
    for folder in sorted({location.rpartition("/")[0] for location in locations}):
        if is_url(folder) and not folder.startswith("http"):  # web servers have no lists
            with contextlib.suppress(LostError):
                listed |= {file.location: file for _, file in list_files(folder)}

    def find(location: str) -> File:
        try:
            return listed.get(location) or describe(location)
        except (LostError, OSError) as error:
            if location in written:
                return File(location, written[location][0], "")
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"the shard {location} cannot be read: {reason}") from error

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return list(threads.map(find, locations))


def _key(file: File) -> Key:
    return file.location, file.num_bytes, file.version


def _read_indices(locations: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folders of shards and their shards.json, where there is one."""
    for folder in sorted({location.rpartition("/")[0] for location in locations}):
        with contextlib.suppress(LostError, OSError, ValueError, RecursionError):
            index = json.loads(read(f"{folder}/{INDEX}" if folder else INDEX))
            if isinstance(index, dict):
                yield folder, index


def _read_written(locations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the bytes and images of shards that shards.json tells, by location."""
    known = {}
    for folder, index in _read_indices(locations):
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
            for shard in index["shards"]:
                location = f"{folder}/{shard['name']}" if folder else str(shard["name"])
                num_bytes, num_images = int(shard["bytes"]), int(shard["images"])
                if 0 <= num_images <= num_bytes:  # a false number would fill the memory
                    known[location] = num_bytes, num_images
    return known


def _kept_path(files: Sequence[File]) -> Path:
    folders = sorted({file.location.rpartition("/")[0] for file in files})
    digest = hashlib.sha256("\0".join(folders).encode(errors="surrogateescape")).hexdigest()[:24]
    return cache_home() / "shards" / f"{digest}.json"


def _read_kept(path: Path) -> dict[Key, int]:
    try:
        kept = json.loads(path.read_text())["shards"]
        return {
            (str(place), int(size), str(v)): int(count)
            for place, size, v, count in kept
            if 0 <= int(count) <= int(size)
        }
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}


def _keep(path: Path, known: Mapping[Key, int]) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written is done without
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"shards": [[*key, count] for key, count in known.items()]})


def read_class_names(shard: Shard, locations: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of classes from shards.json or the schema of Parquet, if they tell them."""
    if shard.location.endswith(".parquet"):
        return parquet_classes(shard)
    for _, index in _read_indices(locations):
        classes = index.get("classes")
        if isinstance(classes, list) and all(isinstance(name, str) for name in classes):
            return tuple(classes)
    return None
