"""Decode images once, into a memory-mapped file of bytes per folder, split, size and shape.

    <cache>/<name>/<key>/images.u8      the bytes [3, h, w] of all images
    <cache>/<name>/<key>/images.npy     int64 [n, 3]: start, h and w of each, if shapes differ
    <cache>/<name>/<key>/sums.npy       uint32 [n]: the CRC-32 of each image's bytes
    <cache>/<name>/<key>/files.json     the rows of bad files, with the reasons; all checksums

`name` stands for the folder, the split, S and `keep`. `key` is a hash of the path, size and
modification time of every file, and of the value range that scales images of more than 8 bits (it
is in files.json, too), so a changed file changes the key, and the new cache replaces the
old one. A cache is built under a lock and a temporary name, and renamed when all of it is on the
disk. Squares are stored in the order of files, with empty rows for bad files; images of different
shapes in the order in which they are decoded.

A cache that is damaged is rebuilt. The small files are checked when a cache is opened. An image is
checked when a process reads it for the first time: to check all of them at the start would read
every byte of the disk twice.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder import LOCK_SUFFIX, Keep, Target, ValueRange, reserve, stored_size
from smi.data.decoder_pool import FILES_PER_CHUNK, Decoders, Job, Reply, num_cores
from smi.data.folders import FileSet, JobGroup
from smi.data.shards import ShardSet
from smi.errors import DiskError
from smi.files import disk_errors, free_bytes, lock, sync
from smi.terminal import Progress, announce

DECODING_VERSION = 1  # raise it when decoding gives other pixels: every cache is then rebuilt
FILE_RESOLUTION = 256  # default size of images from files: a margin around the usual crop of 224
MAX_CACHE_BYTES = 50 * 10**9
NUM_SAMPLED_HEADERS = 1000  # files whose headers are read to estimate the size of a cache
USUAL_ASPECT = 4 / 3  # of images whose headers are far away
IMAGES = "images.u8"
TABLE = "images.npy"
SUMS = "sums.npy"
FILES = "files.json"


@dataclass(frozen=True)
class Cache:
    """Hold decoded images: row i has the bytes [3, h, w] from start[i] on, where shape[i] = h, w.

    bad: the reasons why files cannot be read, by row. sums: the CRC-32 of each image; None in
    caches of earlier versions.
    """

    pixels: NDArray[np.uint8]  # [total bytes], memory-mapped
    start: NDArray[np.int64]  # [n]
    shape: NDArray[np.int64]  # [n, 2]
    bad: dict[int, str]
    sums: NDArray[np.uint32] | None = None  # [n]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def num_bytes(self) -> int:
        """Return the size of all images; the file may hold unused bytes between them."""
        return int(3 * self.shape.prod(1).sum())

    def image(self, row: int) -> NDArray[np.uint8]:
        """Return one image [3, h, w] without a copy."""
        height, width = self.shape[row]
        start = self.start[row]
        return self.pixels[start : start + 3 * height * width].reshape(3, height, width)

    def is_whole(self, row: int) -> bool:
        """Return whether an image has the bytes that were written."""
        return self.sums is None or zlib.crc32(self.image(row).data) == self.sums[row]


def cache_bytes(files: FileSet | ShardSet, resolution: int, keep: Keep) -> int:
    """Return the size of a cache: of squares exactly, of other shapes an estimate.

    The estimate is the mean size of files at even distances, from their headers.
    """
    if keep == "square":
        return len(files) * 3 * resolution**2
    sizes = [_stored_bytes(target, resolution) for target in files.sample(NUM_SAMPLED_HEADERS)]
    mean = sum(sizes) / len(sizes) if sizes else USUAL_ASPECT * 3 * resolution**2
    return round(len(files) * mean)


def _stored_bytes(target: Target | bytes, resolution: int) -> int:
    """Return the size of a decoded file from its header; an unreadable file needs no space."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about enormous images, which are refused later
        try:
            width, height = stored_size(target, resolution, "aspect")
        except Exception:  # a damaged file can raise anything
            return 0
    return 3 * width * height


def is_cached(
    files: FileSet | ShardSet,
    resolution: int,
    cache: Path,
    *,
    keep: Keep = "aspect",
    max_cache_bytes: int = MAX_CACHE_BYTES,
) -> bool:
    """Return whether files are decoded once, into a cache, or each time they are read.

    A cache that exists or is being built is used even if the disk is nearly full.
    """
    if len(files) * 3 * resolution**2 > max_cache_bytes:  # no image is smaller than a square
        return False
    folder = cache_folder(files, resolution, cache, keep)
    contents = _read(folder, len(files), resolution, keep)
    if contents is not None:
        return contents.num_bytes <= max_cache_bytes
    size = cache_bytes(files, resolution, keep)
    return size <= max_cache_bytes and (size <= free_bytes(cache) / 2 or folder.parent.is_dir())


def open_cache(
    files: FileSet | ShardSet,
    resolution: int,
    cache: Path,
    *,
    keep: Keep = "aspect",
    num_workers: int | None = None,
    damaged_row: int | None = None,
) -> Cache:
    """Return the decoded images; build a missing or damaged cache first.

    damaged_row: an image that is not whole; the cache is rebuilt, unless another process has done
    it meanwhile.
    """
    folder = cache_folder(files, resolution, cache, keep)

    def read() -> Cache | None:
        contents = _read(folder, len(files), resolution, keep)
        if contents is None or damaged_row is None or contents.is_whole(damaged_row):
            return contents
        return None

    contents = read()
    if contents is not None:  # complete: no lock is needed, and the disk may be read-only
        return contents
    parent = folder.parent
    waiting = f"waiting for another process that decodes {files.root}"
    with (
        disk_errors(f"caching {files.root} in {cache}"),
        lock(cache / f"{parent.name}.lock", waiting),
    ):
        contents = read()
        if contents is None:
            if folder.is_dir():
                announce(f"warning: the cache {folder} is damaged, so its images are decoded again")
            # Remove the cache of a former state of the files, and the rest of a killed build.
            shutil.rmtree(parent, ignore_errors=True)
            _build(files, resolution, folder, keep, num_workers or num_cores(alone=True))
            contents = _read(folder, len(files), resolution, keep)
    if contents is None:
        raise DiskError(f"the cache {folder} cannot be read: remove it, and it will be rebuilt")
    return contents


def _read(folder: Path, num_files: int, resolution: int, keep: Keep) -> Cache | None:
    """Open a complete cache; return None if it is missing or damaged."""
    try:
        description = json.loads((folder / FILES).read_text())
        bad = description["bad"]
        sums = _read_sums(folder, description)
        if keep == "square":
            start = np.arange(num_files, dtype=np.int64) * 3 * resolution**2
            shape = np.full((num_files, 2), resolution, dtype=np.int64)
        else:
            table = np.load(folder / TABLE)
            start = np.ascontiguousarray(table[:, 0])
            shape = np.ascontiguousarray(table[:, 1:])
        size = int((start + 3 * shape.prod(1)).max())
        pixels = (
            np.memmap(folder / IMAGES, dtype=np.uint8, mode="c", shape=(size,))
            if size > 0
            else np.empty(0, dtype=np.uint8)  # all files are bad: an empty file cannot be mapped
        )
        reasons = {int(row): str(why) for row, why in bad.items()}
        return Cache(pixels, start, shape, reasons, sums)
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _read_sums(folder: Path, description: dict[str, Any]) -> NDArray[np.uint32] | None:
    """Check the small files of a cache; return the checksums of images, which old caches lack."""
    checksums = description.get("checksums")
    if checksums is None and not (folder / SUMS).exists():
        return None
    if checksums != _checksums(folder, description):
        raise ValueError("a file has changed since it was written")
    sums: NDArray[np.uint32] = np.load(folder / SUMS)
    return sums


def _checksums(folder: Path, description: dict[str, Any]) -> dict[str, int]:
    """Return the checksums of the description and of the small files of a cache."""
    rest = {name: value for name, value in description.items() if name != "checksums"}
    names = [name for name in (TABLE, SUMS) if (folder / name).exists()]
    return {
        FILES: zlib.crc32(json.dumps(rest).encode()),
        **{name: zlib.crc32((folder / name).read_bytes()) for name in names},
    }


def cache_folder(files: FileSet | ShardSet, resolution: int, cache: Path, keep: Keep) -> Path:
    """Return the folder of the cache of these files, whether it exists or not."""
    return cache / _cache_name(files, resolution, keep) / _cache_key(files, resolution)


def _cache_name(files: FileSet | ShardSet, resolution: int, keep: Keep) -> str:
    split = "val" if files.split == "val" else "train"
    root = files.root.resolve() if isinstance(files.root, Path) else files.root
    digest = hashlib.sha256(os.fsencode(f"{root}\0{split}")).hexdigest()[:12]
    size = f"{resolution}-aspect" if keep == "aspect" else f"{resolution}"
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', files.name)}-{split}-{size}-{digest}"


def _cache_key(files: FileSet | ShardSet, resolution: int) -> str:
    scaled = f" {files.value_range}" if files.value_range is not None else ""
    digest = hashlib.sha256(f"{DECODING_VERSION} {resolution}{scaled}".encode())
    files.update_digest(digest)
    return digest.hexdigest()[:32]


def _build(
    files: FileSet | ShardSet, resolution: int, folder: Path, keep: Keep, num_workers: int
) -> None:
    """Decode all files into a temporary folder and rename it to `folder`."""
    folder.parent.mkdir(parents=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        _fill(partial, files, resolution, keep, num_workers)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise
    sync(folder.parent)


def _fill(
    partial: Path, files: FileSet | ShardSet, resolution: int, keep: Keep, num_workers: int
) -> None:
    """Decode all files into a folder."""
    size = cache_bytes(files, resolution, keep)
    about = "about " if keep == "aspect" else ""
    announce(
        f"decoding {len(files):,} images of {files.root} at {resolution} px, once "
        f"({about}{size / 1e6:,.0f} MB)"
    )
    bad = {}
    table = np.zeros((len(files), 3), dtype=np.int64)
    with (partial / IMAGES).open("wb") as images:
        row_bytes = 0
        if keep == "square":
            reserve(images.fileno(), 0, size)
            row_bytes = 3 * resolution**2
        replies = decode_all(
            images.fileno(),
            resolution,
            files.job_groups(),
            len(files),
            num_workers,
            keep=keep,
            row_bytes=row_bytes,
            value_range=files.value_range,
            path=partial / IMAGES,
        )
        with _flushing(images.fileno()):
            for row, reply in replies:
                if isinstance(reply, str):
                    bad[row] = reply
                else:
                    table[row] = reply.start, reply.height, reply.width
        if keep == "aspect":  # cut off what a worker has reserved and not used
            os.truncate(images.fileno(), int((table[:, 0] + 3 * table[:, 1:].prod(1)).max()))
        os.fsync(images.fileno())
    (partial / f"{IMAGES}{LOCK_SUFFIX}").unlink(missing_ok=True)
    if keep == "aspect":
        np.save(partial / TABLE, table)
        sync(partial / TABLE)
    if keep == "square":
        table[:, 0] = np.arange(len(files)) * row_bytes
        table[:, 1:] = resolution
    np.save(partial / SUMS, _sums(partial / IMAGES, table, num_workers))
    sync(partial / SUMS)
    contents = {
        "root": str(files.root),
        "resolution": resolution,
        "value_range": files.value_range,
        "bad": {str(row): why for row, why in bad.items()},
    }
    contents["checksums"] = _checksums(partial, contents)
    (partial / FILES).write_text(json.dumps(contents))
    sync(partial / FILES)
    sync(partial)


def _sums(path: Path, table: NDArray[np.int64], num_workers: int) -> NDArray[np.uint32]:
    """Return the CRC-32 of each image of a file."""
    sizes = 3 * table[:, 1] * table[:, 2]
    if not sizes.any():  # an empty file cannot be mapped
        return np.zeros(len(table), dtype=np.uint32)
    pixels = np.memmap(path, dtype=np.uint8, mode="r")

    def checksum(row: int) -> int:
        return zlib.crc32(pixels[table[row, 0] : table[row, 0] + sizes[row]].data)

    with ThreadPoolExecutor(num_workers) as threads:  # it does not hold Python's lock
        return np.fromiter(threads.map(checksum, range(len(table))), np.uint32, len(table))


@contextlib.contextmanager
def _flushing(fd: int) -> Iterator[None]:
    """Flush a file to the disk repeatedly, so that little is left to flush at the end."""
    done = Event()

    def flush() -> None:
        while not done.wait(0.2):
            getattr(os, "fdatasync", os.fsync)(fd)  # macOS and Windows have fsync only

    thread = Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def decode_all(
    fd: int,
    resolution: int,
    groups: Iterable[JobGroup],
    total: int,
    num_workers: int,
    *,
    keep: Keep,
    row_bytes: int = 0,
    value_range: ValueRange | None = None,
    path: Path | None = None,
) -> Iterator[tuple[int, Reply]]:
    """Yield the row and reply of every job in the order of completion, with a progress bar.

    groups: of `total` jobs together; one is finished before the next is taken. Only a few jobs per
    worker are in flight at a time, however many there are.
    """
    num_workers = min(num_workers, math.ceil(total / FILES_PER_CHUNK))
    in_flight: dict[Future[list[Reply]], list[Job]] = {}
    with (
        Progress("decoding", total, "images") as progress,
        Decoders(
            fd,
            resolution,
            num_workers,
            row_bytes=row_bytes,
            value_range=value_range,
            path=path,
        ) as decoders,
    ):
        for group in groups:
            if isinstance(group, tuple):
                rows, reason = group
                yield from ((row, reason) for row in rows)
                progress.advance(len(rows))
                continue
            chunks = (group[i : i + FILES_PER_CHUNK] for i in range(0, len(group), FILES_PER_CHUNK))
            while True:
                for chunk in islice(chunks, 2 * num_workers - len(in_flight)):
                    in_flight[decoders.submit(chunk, keep)] = chunk
                if not in_flight:
                    break
                for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                    chunk = in_flight.pop(future)
                    yield from zip((row for row, _ in chunk), future.result(), strict=True)
                    progress.advance(len(chunk))
