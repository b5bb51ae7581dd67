"""Images by index, as uint8 [N, 3, S, S]: from arrays, from the cache, or straight from files. n images of S x S pixels.

Files are decoded once into a cache of squares: the shorter side becomes S and the centre is kept, as evaluation crops do. What lies
beyond the square on the longer side is lost to random crops, and a crop smaller than the training size is enlarged; choose S larger than
the training crop to lose less detail. A set too large to cache is decoded as it is asked for, to the very same pixels.
"""

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from smi.data.cache import FILE_RESOLUTION, LARGEST_CACHE, is_cached, open_cache
from smi.data.decoder import Bad
from smi.data.decoders import CHUNK, Decoders, Reply, num_cores
from smi.data.folders import MAX_BAD_SHARE, FileSet, Split
from smi.data.sources import ArraySet, ImageSet, resolve
from smi.errors import UserError
from smi.files import cache_home, expand
from smi.terminal import printable

ENOUGH = 100  # files seen before a streaming store judges their share of bad ones

Reading = Callable[[], tuple[Tensor, Tensor]]  # waits for the images and the index they are of


def load(
    target: str | Path,
    split: Split = "train",
    *,
    resolution: int | None = None,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    num_workers: int | None = None,
    max_bad_share: float = MAX_BAD_SHARE,
    largest_cache: int = LARGEST_CACHE,
) -> "Store":
    """The images of a name or a folder, at their own size or, from files, at 256 pixels unless `resolution` says otherwise.

    `root` is where named sets lie, `cache` where decoded images are kept. A cache beyond `largest_cache` bytes or half the free disk is
    not made: the files are then decoded whenever they are asked for. More than `max_bad_share` unreadable files is an error.
    """
    images = resolve(target, split, Path(root) if root is not None else None)
    return open_store(
        images,
        resolution=resolution,
        cache=expand(cache) if cache is not None else cache_home() / "images",
        num_workers=num_workers,
        max_bad_share=max_bad_share,
        largest_cache=largest_cache,
    )


def open_store(
    images: ImageSet,
    *,
    resolution: int | None,
    cache: Path,
    num_workers: int | None,
    max_bad_share: float,
    largest_cache: int,
) -> "Store":
    if num_workers is not None and num_workers < 1:
        raise UserError(f"there must be 1 worker process or more, not {num_workers}")
    if not 0 <= max_bad_share <= 1:
        raise UserError(
            f"the accepted share of bad files lies between 0 and 1, not at {max_bad_share}"
        )
    if resolution is not None and resolution < 1:
        raise UserError(f"the resolution must be 1 pixel or more, not {resolution}")
    if isinstance(images, ArraySet):
        return ArrayStore(images, resolution)
    resolution = resolution or FILE_RESOLUTION
    if is_cached(images, resolution, cache, largest_cache):
        return CachedStore(images, resolution, cache, num_workers, max_bad_share)
    return StreamingStore(images, resolution, num_workers, max_bad_share)


class Store(ABC):
    """n images by index. Labels lie beside the images, never with them: what pretraining reads has none."""

    name: str
    split: Split
    resolution: int
    labels: Tensor | None  # int64 [n]
    classes: tuple[str, ...] | None
    bad: list[Bad]  # files passed over; of a streaming store, those met so far

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def start(self, index: Tensor) -> Reading:
        """Begin to read; call the result for the images and their index, which differs from the one asked for where a file is bad."""

    def __getitem__(self, index: Tensor | slice | Sequence[int]) -> Tensor:
        """Images [N, 3, S, S]."""
        if isinstance(index, slice):
            index = torch.arange(len(self))[index]
        index = torch.as_tensor(index, dtype=torch.long)
        index = torch.where(index < 0, index + len(self), index)
        if ((index < 0) | (index >= len(self))).any():
            raise IndexError(f"{self.name} has {len(self):,} images")
        return self.start(index)()[0]

    def close(self) -> None:  # noqa: B027 (most have nothing to let go of)
        """Let go of worker processes, if there are any. A store that is no longer used closes itself."""


class ArrayStore(Store):
    """Images that came as pixels of one size; resized as they are read if another is asked for."""

    def __init__(self, images: ArraySet, resolution: int | None = None):
        self.name, self.split, self.classes, self.bad = (
            images.name,
            images.split,
            images.classes,
            [],
        )
        self.labels = None if images.labels is None else torch.from_numpy(images.labels)
        self.resolution = resolution or images.parts[0].shape[-1]
        self._parts = [torch.from_numpy(part) for part in images.parts]
        self._starts = torch.tensor([0, *map(len, images.parts)]).cumsum(0)  # [parts + 1]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def start(self, index: Tensor) -> Reading:
        images = self._gather(index)
        if images.shape[-1] != self.resolution:
            images = interpolate(
                images, (self.resolution, self.resolution), mode="bilinear", antialias=True
            )
        return lambda: (images, index)

    def _gather(self, index: Tensor) -> Tensor:
        if len(self._parts) == 1:
            return self._parts[0][index].contiguous()
        images = self._parts[0].new_empty(len(index), *self._parts[0].shape[1:])
        part_of = torch.searchsorted(self._starts, index, right=True) - 1  # [N]
        for i, part in enumerate(self._parts):
            chosen = part_of == i
            images[chosen] = part[index[chosen] - self._starts[i]]
        return images


class CachedStore(Store):
    """Files decoded once into a mapped array: memory holds what fits, and the system drops the rest.

    In place of a bad file stands the next good one in the order of paths, so that cached or streamed, a step has the same images.
    """

    def __init__(
        self,
        files: FileSet,
        resolution: int,
        cache: Path,
        num_workers: int | None = None,
        max_bad_share: float = MAX_BAD_SHARE,
    ):
        images, reasons = open_cache(files, resolution, cache, num_workers)
        self.name, self.split, self.classes, self.resolution = (
            files.name,
            files.split,
            files.classes,
            resolution,
        )
        self.bad = [Bad(files.entries[row].path, reason) for row, reason in sorted(reasons.items())]
        check_share(self.bad, len(files), files.root, max_bad_share)
        good = np.array([row for row in range(len(files)) if row not in reasons], dtype=np.int64)
        next_good = good[
            np.searchsorted(good, np.arange(len(files))) % len(good)
        ]  # as a streaming store finds it
        self.labels = None if files.labels is None else torch.from_numpy(files.labels[next_good])
        self._images = torch.from_numpy(images)  # [n, 3, S, S]
        self._rows = torch.from_numpy(next_good)  # [n]
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="smi-store"
        )  # reads from the disk while the device computes

    def __len__(self) -> int:
        return len(self._rows)

    def start(self, index: Tensor) -> Reading:
        rows = self._rows[index]
        future = self._thread.submit(lambda: self._images[rows])
        return lambda: (future.result(), rows)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


class StreamingStore(Store):
    """Files decoded by worker processes whenever they are asked for. A bad file is replaced by the next good one in the order of paths."""

    def __init__(
        self,
        files: FileSet,
        resolution: int,
        num_workers: int | None = None,
        max_bad_share: float = MAX_BAD_SHARE,
    ):
        self.name, self.split, self.classes, self.resolution = (
            files.name,
            files.split,
            files.classes,
            resolution,
        )
        self.labels = None if files.labels is None else torch.from_numpy(files.labels)
        self.bad = []
        self._files, self._max_bad_share = files, max_bad_share
        self._reasons: dict[int, str] = {}
        self._seen: set[int] = set()
        self._num_workers = num_workers or num_cores()
        # A window onto decoded images that the workers share, without a name, so that nothing is left of it whatever happens.
        window = tempfile.TemporaryFile(dir="/dev/shm" if _has_room("/dev/shm") else None)  # noqa: SIM115
        self._fd = window.fileno()
        self._free: list[int] = []
        self._num_rows = 0
        self._decoders = Decoders(self._fd, resolution, self._num_workers)
        self._finalizer = weakref.finalize(self, _close, self._decoders, window)

    def __len__(self) -> int:
        return len(self._files)

    def start(self, index: Tensor) -> Reading:
        wanted = [self._next_good(i) for i in index.tolist()]
        rows = self._take_rows(len(wanted))
        jobs = [(row, self._path(i)) for row, i in zip(rows, wanted, strict=True)]
        size = max(1, min(CHUNK, -(-len(jobs) // self._num_workers)))
        futures = [self._decoders.submit(jobs[i : i + size]) for i in range(0, len(jobs), size)]

        def finish() -> tuple[Tensor, Tensor]:
            try:
                replies = [reply for future in futures for reply in future.result()]
                for k, reply in enumerate(replies):
                    wanted[k] = self._settle(wanted[k], reply, rows[k])
                if len(self._seen) >= min(ENOUGH, len(self)):
                    check_share(self.bad, len(self._seen), self._files.root, self._max_bad_share)
                images = torch.empty(
                    len(rows), 3, self.resolution, self.resolution, dtype=torch.uint8
                )
                for image, row in zip(images, rows, strict=True):
                    os.preadv(self._fd, [memoryview(image.numpy()).cast("B")], row * image.numel())
            finally:
                self._free.extend(rows)
            return images, torch.tensor(wanted, dtype=torch.long)

        return finish

    def close(self) -> None:
        self._finalizer()

    def _settle(self, i: int, reply: Reply, row: int) -> int:
        """Note what became of file i; where it was bad, decode the next good one to the row."""
        self._seen.add(i)
        while isinstance(reply, str):
            if i not in self._reasons:
                self._reasons[i] = reply
                self.bad.append(Bad(self._files.entries[i].path, reply))
            i = self._next_good(i)
            (reply,) = self._decoders.submit([(row, self._path(i))]).result()
            self._seen.add(i)
        return i

    def _next_good(self, i: int) -> int:
        if len(self._reasons) == len(self):
            check_share(self.bad, len(self), self._files.root, 0)
        while i in self._reasons:
            i = (i + 1) % len(self)
        return i

    def _path(self, i: int) -> str:
        return f"{self._files.root}/{self._files.entries[i].path}"

    def _take_rows(self, count: int) -> list[int]:
        missing = max(0, count - len(self._free))
        self._free.extend(range(self._num_rows, self._num_rows + missing))
        self._num_rows += missing
        return [self._free.pop() for _ in range(count)]


def _has_room(folder: str) -> bool:
    """For some large batches: a container's shared memory may be a few megabytes."""
    return os.path.isdir(folder) and shutil.disk_usage(folder).free > 10**9


def _close(decoders: Decoders, window: IO[bytes]) -> None:
    decoders.close()
    window.close()


def check_share(bad: Sequence[Bad], total: int, root: Path, max_bad_share: float) -> None:
    first = f"({printable(bad[0].path)}: {printable(bad[0].reason)})" if bad else ""
    if len(bad) == total:
        raise UserError(
            f"none of the {total:,} files in {root} can be read as an image {first}: run `smi data {root}` for the reasons"
        )
    if len(bad) > max_bad_share * total:
        raise UserError(
            f"{len(bad):,} of {total:,} files in {root} cannot be read as images {first}, "
            f"above the accepted share of {max_bad_share:.0%}: run `smi data {root}` for the list, and mend or remove them"
        )


def write_bad(path: Path, bad: Sequence[Bad]) -> None:
    """A line for each file passed over: its path, a tab, the reason."""
    path.write_text("".join(f"{printable(item.path)}\t{printable(item.reason)}\n" for item in bad))
