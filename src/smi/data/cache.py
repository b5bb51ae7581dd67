"""Decode images once, into a memory-mapped file of uint8 [n, 3, S, S] per folder, split and size.

    <cache>/<name>/<key>/images.u8      one row per file; the rows of bad files stay empty
    <cache>/<name>/<key>/files.json     the rows of bad files, with the reasons

`name` stands for the folder, the split and S. `key` is a hash of the path, size and modification
time of every file, so a changed file changes the key, and the new cache replaces the old one.
A cache is built under a lock and a temporary name, and renamed when all of it is on the disk.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path
from threading import Event, Thread

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder_pool import FILES_PER_CHUNK, Decoders, Job, Reply, num_cores
from smi.data.folders import FileSet
from smi.errors import UserError
from smi.files import disk_errors, free_bytes, lock, sync
from smi.terminal import Progress, announce

DECODING_VERSION = 1  # raise it when decoding gives other pixels: every cache is then rebuilt
FILE_RESOLUTION = 256  # default size of images from files: a margin around the usual crop of 224
MAX_CACHE_BYTES = 50 * 10**9


def cache_bytes(num_files: int, resolution: int) -> int:
    """Return the size of a cache."""
    return num_files * 3 * resolution**2


def is_cached(
    files: FileSet, resolution: int, cache: Path, max_cache_bytes: int = MAX_CACHE_BYTES
) -> bool:
    """Return whether files are decoded once, into a cache, or each time they are read.

    A cache that exists or is being built is used even if the disk is nearly full.
    """
    size = cache_bytes(len(files), resolution)
    return size <= max_cache_bytes and (
        size <= free_bytes(cache) / 2 or cache_folder(files, resolution, cache).parent.is_dir()
    )


def open_cache(
    files: FileSet, resolution: int, cache: Path, num_workers: int | None = None
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Return the images [n, 3, S, S] and the reasons of bad rows; build a missing cache first."""
    folder = cache_folder(files, resolution, cache)
    contents = _read(folder, len(files), resolution)
    if contents is not None:  # complete: no lock is needed, and the disk may be read-only
        return contents
    parent = folder.parent
    waiting = f"waiting for another process that decodes {files.root}"
    with (
        disk_errors(f"caching {files.root} in {cache}"),
        lock(cache / f"{parent.name}.lock", waiting),
    ):
        contents = _read(folder, len(files), resolution)
        if contents is None:
            # Remove the cache of a former state of the files, and the rest of a killed build.
            shutil.rmtree(parent, ignore_errors=True)
            _build(files, resolution, folder, num_workers or num_cores())
            contents = _read(folder, len(files), resolution)
    if contents is None:
        raise UserError(f"the cache {folder} cannot be read: remove it, and it will be rebuilt")
    return contents


def _read(
    folder: Path, num_files: int, resolution: int
) -> tuple[NDArray[np.uint8], dict[int, str]] | None:
    """Open a complete cache; return None if it is missing or damaged."""
    try:
        bad = json.loads((folder / "files.json").read_text())["bad"]
        images = np.memmap(
            folder / "images.u8",
            dtype=np.uint8,
            mode="c",
            shape=(num_files, 3, resolution, resolution),
        )
        return images, {int(row): str(reason) for row, reason in bad.items()}
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def cache_folder(files: FileSet, resolution: int, cache: Path) -> Path:
    """Return the folder of the cache of these files, whether it exists or not."""
    return cache / _cache_name(files, resolution) / _cache_key(files, resolution)


def _cache_name(files: FileSet, resolution: int) -> str:
    split = "val" if files.split == "val" else "train"
    digest = hashlib.sha256(os.fsencode(f"{files.root.resolve()}\0{split}")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', files.name)}-{split}-{resolution}-{digest}"


def _cache_key(files: FileSet, resolution: int) -> str:
    digest = hashlib.sha256(f"{DECODING_VERSION} {resolution}".encode())
    for entry in files.entries:
        digest.update(os.fsencode(f"\0{entry.path}\0{entry.size} {entry.mtime_ns}"))
    return digest.hexdigest()[:32]


def _build(files: FileSet, resolution: int, folder: Path, num_workers: int) -> None:
    """Decode all files into a temporary folder and rename it to `folder`."""
    folder.parent.mkdir(parents=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    size = cache_bytes(len(files), resolution)
    announce(
        f"decoding {len(files):,} images of {files.root} at {resolution} px, once "
        f"({size / 1e6:,.0f} MB)"
    )
    bad = {}
    with (partial / "images.u8").open("wb") as images:
        _reserve(images.fileno(), size)
        jobs = [(row, f"{files.root}/{entry.path}") for row, entry in enumerate(files.entries)]
        with _flushing(images.fileno()):
            for row, reply in decode_all(images.fileno(), resolution, jobs, num_workers):
                if isinstance(reply, str):
                    bad[row] = reply
        os.fsync(images.fileno())
    contents = {"root": str(files.root), "resolution": resolution, "bad": bad}
    (partial / "files.json").write_text(json.dumps(contents))
    sync(partial / "files.json")
    sync(partial)
    partial.rename(folder)
    sync(folder.parent)


def _reserve(fd: int, size: int) -> None:
    """Allocate the file: a disk that is too small fails now, and reserved blocks write faster."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.truncate(fd, size)


@contextlib.contextmanager
def _flushing(fd: int) -> Iterator[None]:
    """Flush a file to the disk repeatedly, so that little is left to flush at the end."""
    done = Event()

    def flush() -> None:
        while not done.wait(0.2):
            os.fdatasync(fd)

    thread = Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def decode_all(
    fd: int, resolution: int, jobs: list[Job], num_workers: int
) -> Iterator[tuple[int, Reply]]:
    """Yield the row and reply of every job in the order of completion, with a progress bar.

    Only a few jobs per worker are in flight at a time, however many there are.
    """
    chunks = (jobs[i : i + FILES_PER_CHUNK] for i in range(0, len(jobs), FILES_PER_CHUNK))
    num_workers = min(num_workers, math.ceil(len(jobs) / FILES_PER_CHUNK))
    in_flight: dict[Future[list[Reply]], list[Job]] = {}
    with (
        Progress("decoding", len(jobs), "images") as progress,
        Decoders(fd, resolution, num_workers) as decoders,
    ):
        while True:
            for chunk in islice(chunks, 2 * num_workers - len(in_flight)):
                in_flight[decoders.submit(chunk)] = chunk
            if not in_flight:
                return
            for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                chunk = in_flight.pop(future)
                yield from zip((row for row, _ in chunk), future.result(), strict=True)
                progress.advance(len(chunk))
