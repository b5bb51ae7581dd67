"""Images decoded once: a mapped file of uint8 [n, 3, S, S] for each folder, split and resolution.

    <cache>/<place>/<key>/images.u8      one row for each file; rows of bad files stay empty
    <cache>/<place>/<key>/files.json     which rows those are, and why

`place` names the folder, the split and S; `key` is a hash of every path, size and time of change. A changed file changes the key, and the
new cache takes the old one's place. It is made under a lock and another name, and renamed when all of it is on the disk.
"""

import contextlib
import hashlib
import json
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

from smi.data.decoders import CHUNK, Decoders, Job, Reply, num_cores
from smi.data.folders import FileSet
from smi.errors import UserError
from smi.files import disk_errors, free_bytes, lock, sync
from smi.terminal import Progress, announce

VERSION = 1  # of what decoding gives: raising it rebuilds every cache
FILE_RESOLUTION = 256  # of files, where none is asked for: some margin around the usual crop of 224
LARGEST_CACHE = 50 * 10**9  # bytes


def cache_bytes(num_files: int, resolution: int) -> int:
    return num_files * 3 * resolution**2


def is_cached(
    files: FileSet, resolution: int, cache: Path, largest_cache: int = LARGEST_CACHE
) -> bool:
    """Whether files are decoded once or each time. A cache that exists or is being made is used, however full that makes the disk."""
    size = cache_bytes(len(files), resolution)
    return size <= largest_cache and (
        size <= free_bytes(cache) / 2 or cache_folder(files, resolution, cache).parent.is_dir()
    )


def open_cache(
    files: FileSet, resolution: int, cache: Path, num_workers: int | None = None
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """The images of all files, [n, 3, S, S], and for the rows that are none the reason. Built if it is not there."""
    folder = cache_folder(files, resolution, cache)
    place = folder.parent
    if (
        found := _read(folder, len(files), resolution)
    ) is not None:  # it appeared whole; its place need not be writable
        return found
    with (
        disk_errors(f"caching {files.root} in {cache}"),
        lock(
            cache / f"{place.name}.lock", f"waiting for another process that decodes {files.root}"
        ),
    ):
        found = _read(folder, len(files), resolution)
        if found is None:
            shutil.rmtree(
                place, ignore_errors=True
            )  # what was decoded from other files, or left by one who was killed
            _build(files, resolution, folder, num_workers or num_cores())
            found = _read(folder, len(files), resolution)
    if found is None:
        raise UserError(f"the cache {folder} cannot be read: remove it, and it is made again")
    return found


def _read(
    folder: Path, num_files: int, resolution: int
) -> tuple[NDArray[np.uint8], dict[int, str]] | None:
    """None where it is not there, or damaged."""
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
    return cache / _place(files, resolution) / _key(files, resolution)


def _place(files: FileSet, resolution: int) -> str:
    split = "val" if files.split == "val" else "train"
    digest = hashlib.sha256(os.fsencode(f"{files.root.resolve()}\0{split}")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', files.name)}-{split}-{resolution}-{digest}"


def _key(files: FileSet, resolution: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {resolution}".encode())
    for entry in files.entries:
        digest.update(os.fsencode(f"\0{entry.path}\0{entry.size} {entry.mtime_ns}"))
    return digest.hexdigest()[:32]


def _build(files: FileSet, resolution: int, folder: Path, num_workers: int) -> None:
    folder.parent.mkdir(parents=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    size = cache_bytes(len(files), resolution)
    announce(
        f"decoding {len(files):,} images of {files.root} at {resolution} px, once ({size / 1e6:,.0f} MB)"
    )
    bad = {}
    with (partial / "images.u8").open("wb") as images:
        _reserve(images.fileno(), size)
        jobs = [(row, f"{files.root}/{entry.path}") for row, entry in enumerate(files.entries)]
        with _writing_back(images.fileno()):
            for row, reply in decode_all(images.fileno(), resolution, jobs, num_workers):
                if isinstance(reply, str):
                    bad[row] = reply
        os.fsync(images.fileno())
    (partial / "files.json").write_text(
        json.dumps({"root": str(files.root), "resolution": resolution, "bad": bad})
    )
    sync(partial / "files.json")
    sync(partial)
    partial.rename(folder)
    sync(folder.parent)


def _reserve(fd: int, size: int) -> None:
    """A disk that is too small says so now; and blocks that are reserved are written faster."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.truncate(fd, size)


@contextlib.contextmanager
def _writing_back(fd: int) -> Iterator[None]:
    """Bring what is written to the disk meanwhile, so that little is left to wait for at the end."""
    done = Event()

    def write_back() -> None:
        while not done.wait(0.2):
            os.fdatasync(fd)

    thread = Thread(target=write_back)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def decode_all(
    fd: int, resolution: int, jobs: list[Job], num_workers: int
) -> Iterator[tuple[int, Reply]]:
    """Every job's row and reply, as they come, with a progress bar. Few are in flight at a time, however many there are."""
    chunks = (jobs[i : i + CHUNK] for i in range(0, len(jobs), CHUNK))
    num_workers = min(num_workers, -(-len(jobs) // CHUNK))
    flying: dict[Future[list[Reply]], list[Job]] = {}
    with (
        Progress("decoding", len(jobs), "images") as progress,
        Decoders(fd, resolution, num_workers) as decoders,
    ):
        while True:
            for chunk in islice(chunks, 2 * num_workers - len(flying)):
                flying[decoders.submit(chunk)] = chunk
            if not flying:
                return
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                done = flying.pop(future)
                yield from zip((row for row, _ in done), future.result(), strict=True)
                progress.advance(len(done))
