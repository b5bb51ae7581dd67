"""Read images by index: from arrays, from a cache, or from files.

Files are decoded once into a cache: the shorter side is resized to S pixels, and the longer side in
proportion, up to 2 S (`keep="aspect"`). Random crops can therefore use the whole image. A crop
smaller than the training size is enlarged: choose S larger than the training crop to lose less
detail. With keep="square" only the central S x S pixels are kept, as evaluation needs them. A
dataset that is too large to cache is decoded on demand, to the same pixels.

n is the number of images, N the number of images read at once, S the resolution.
"""

import math
import os
import shutil
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from smi.data.cache import FILE_RESOLUTION, MAX_CACHE_BYTES, is_cached, open_cache
from smi.data.decoder import MAX_ASPECT, BadFile, Decoded, Keep, Target, ValueRange
from smi.data.decoder_pool import FILES_PER_CHUNK, WORKERS_INHERIT, Decoders, Reply, num_cores
from smi.data.folders import MAX_BAD_SHARE, FileSet, Split
from smi.data.order import Order, Shuffled
from smi.data.pictures import Pictures
from smi.data.shards import ShardSet
from smi.data.sources import ArraySet, ImageSet, Source
from smi.errors import UserError
from smi.files import cache_home, disk_errors, expand, write_text
from smi.terminal import announce, printable

MIN_FILES_TO_JUDGE = 100  # files that a streaming store reads before it checks the bad share

_seeking = threading.Lock()  # a file has one position for all threads

# Readings wait, then return the images and their index.
Reading = Callable[[], tuple[Tensor | Pictures, Tensor]]
SquareReading = Callable[[], tuple[Tensor, Tensor]]  # of uint8 [N, 3, S, S]


def load(
    target: str | Path | Source,
    split: Split = "train",
    *,
    resolution: int | None = None,
    keep: Keep = "aspect",
    root: str | Path | None = None,
    cache: str | Path | None = None,
    num_workers: int | None = None,
    max_bad_share: float = MAX_BAD_SHARE,
    max_cache_bytes: int = MAX_CACHE_BYTES,
    first: int | None = None,
) -> "Store":
    """Open the images of a named dataset, a folder, a list, an array file or shards.

    store = load("cifar10", "val", root="data")
    images, labels = store[:100], store.labels[:100]

    target: a `Source` opens several splits without listing the files of a folder again.
    resolution: the shorter side of the images; None is their own or, for files, 256 pixels.
    keep: "aspect" keeps all of an image in a file, up to twice as long as wide, for random crops;
        "square" keeps its centre. `store[index]` returns the central squares in both cases.
    root: the folder of named datasets; None is `data` in smi's cache folder.
    cache: the folder of decoded images; None is `images` in smi's cache folder.
    num_workers: processes that decode files; None is one per core.
    max_bad_share: the share of unreadable files above which an error is raised.
    max_cache_bytes: a cache above this size, or above half the free disk, is not made; its files
        are decoded on demand.
    first: use only the first shards, with as many images or a few more.
    """
    if not isinstance(target, Source):
        target = Source(target, Path(root) if root is not None else None)
    images = target.split(split)
    if first is not None and isinstance(images, ShardSet):
        images = images.head(first)
    return open_store(
        images,
        resolution=resolution,
        keep=keep,
        cache=expand(cache) if cache is not None else cache_home() / "images",
        num_workers=num_workers,
        max_bad_share=max_bad_share,
        max_cache_bytes=max_cache_bytes,
    )


def open_store(
    images: ImageSet,
    *,
    resolution: int | None,
    cache: Path,
    num_workers: int | None,
    max_bad_share: float,
    max_cache_bytes: int,
    keep: Keep = "aspect",
) -> "Store":
    """Open the images of one split; see `load` for the parameters."""
    if num_workers is not None and num_workers < 1:
        raise UserError(f"the number of workers must be 1 or more, not {num_workers}")
    if not 0 <= max_bad_share <= 1:
        raise UserError(f"max_bad_share must lie between 0 and 1, not at {max_bad_share}")
    if resolution is not None and resolution < 1:
        raise UserError(f"the resolution must be 1 pixel or more, not {resolution}")
    if isinstance(images, ArraySet):
        return ArrayStore(images, resolution)
    if keep not in get_args(Keep):
        raise UserError(f"keep must be aspect or square, not {keep!r}")
    resolution = resolution or FILE_RESOLUTION
    if is_cached(images, resolution, cache, keep=keep, max_cache_bytes=max_cache_bytes):
        return CachedStore(
            images,
            resolution,
            cache,
            keep=keep,
            num_workers=num_workers,
            max_bad_share=max_bad_share,
        )
    settings: dict[str, Any] = {
        "keep": keep,
        "num_workers": num_workers,
        "max_bad_share": max_bad_share,
    }
    if isinstance(images, ShardSet):
        from smi.data.shard_store import ShardStore  # a StreamingStore itself

        return ShardStore(images, resolution, **settings)
    return StreamingStore(images, resolution, **settings)


class Store(ABC):
    """Read n images by index. Labels are a separate attribute; a pretraining split has none."""

    name: str
    split: Split
    resolution: int
    labels: Tensor | None  # int64 [n]
    classes: tuple[str, ...] | None
    bad: list[BadFile]  # unreadable files; a streaming store lists those it has read so far
    keep: Keep = "square"  # "aspect": `start` returns whole images of files
    value_range: ValueRange | None = None  # scales images of more than 8 bits to bytes

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def start(self, index: Tensor) -> Reading:
        """Start to read; call the result to get the images and their index.

        The images are uint8 [N, 3, S, S], or `Pictures` if their shapes differ. The index differs
        from the requested one where a bad file was replaced.
        """

    def order(self, batch_size: int, seed: int) -> Order:
        """Return the order in which training uses the images, for batches of all processes."""
        return Shuffled(len(self), batch_size, seed)

    def start_squares(self, index: Tensor) -> SquareReading:
        """Start to read the central squares of images, always uint8 [N, 3, S, S]."""
        reading = self.start(index)

        def finish() -> tuple[Tensor, Tensor]:
            images, loaded = reading()
            if isinstance(images, Pictures):
                images = images.squares(self.resolution)
            return images, loaded

        return finish

    def __getitem__(self, index: Tensor | slice | Sequence[int]) -> Tensor:
        """Return the central squares of images, uint8 [N, 3, S, S]."""
        if isinstance(index, slice):
            index = torch.arange(len(self))[index]
        index = torch.as_tensor(index, dtype=torch.long)
        index = torch.where(index < 0, index + len(self), index)
        if ((index < 0) | (index >= len(self))).any():
            raise IndexError(f"{self.name} has {len(self):,} images")
        return self.start_squares(index)()[0]

    def close(self) -> None:  # noqa: B027 (most stores have nothing to close)
        """Stop the workers, if there are any. A store that is no longer used closes itself."""


class ArrayStore(Store):
    """Read images from arrays, and resize them if another resolution is requested."""

    def __init__(self, images: ArraySet, resolution: int | None = None):
        self.name = images.name
        self.split = images.split
        self.classes = images.classes
        self.value_range = images.value_range
        self.bad = []
        self.labels = None if images.labels is None else torch.from_numpy(images.labels)
        self.resolution = resolution or images.parts[0].shape[-1]
        self._parts = [torch.from_numpy(part) for part in images.parts]
        self._starts = torch.tensor([0, *map(len, images.parts)]).cumsum(0)  # [parts + 1]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def start(self, index: Tensor) -> Reading:
        """Read the images immediately; calling the result returns them."""
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
            in_part = part_of == i
            images[in_part] = part[index[in_part] - self._starts[i]]
        return images


class CachedStore(Store):
    """Read decoded files from a memory-mapped cache.

    A bad file is replaced by the next good one in the order of paths, as in a streaming store. A
    step therefore has the same images, cached or streamed.
    """

    def __init__(
        self,
        files: FileSet | ShardSet,
        resolution: int,
        cache: Path,
        *,
        keep: Keep = "aspect",
        num_workers: int | None = None,
        max_bad_share: float = MAX_BAD_SHARE,
    ):
        self._open = partial(
            open_cache, files, resolution, cache, keep=keep, num_workers=num_workers
        )
        self._cache = self._open()
        self._is_checked = np.zeros(len(files), dtype=bool)
        reasons = self._cache.bad
        self.name = files.name
        self.split = files.split
        self.classes = files.classes
        self.resolution = resolution
        self.value_range = files.value_range
        self.bad = [
            BadFile(files.image_name(row), reason) for row, reason in sorted(reasons.items())
        ]
        check_bad_share(self.bad, len(files), files.root, max_bad_share)
        good = np.array([row for row in range(len(files)) if row not in reasons], dtype=np.int64)
        next_good = good[np.searchsorted(good, np.arange(len(files))) % len(good)]
        self.labels = None if files.labels is None else torch.from_numpy(files.labels[next_good])
        self.keep = keep
        self._rows = torch.from_numpy(next_good)  # [n]
        # The thread reads from the disk while the device computes.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="smi-store")

    def __len__(self) -> int:
        return len(self._rows)

    def start(self, index: Tensor) -> Reading:
        """Start to read rows of the cache in a thread."""
        if self.keep == "square":
            return self.start_squares(index)
        rows = self._rows[index]
        future = self._thread.submit(self._read, rows.numpy())
        return lambda: (future.result(), rows)

    def start_squares(self, index: Tensor) -> SquareReading:
        """Start to read the central squares of rows of the cache in a thread."""
        rows = self._rows[index]
        future = self._thread.submit(self._read_squares, rows.numpy())
        return lambda: (future.result(), rows)

    def _check(self, rows: NDArray[np.int64]) -> None:
        """Check images that are read for the first time; decode all again if one is damaged."""
        for row in rows[~self._is_checked[rows]].tolist():
            if not self._cache.is_whole(row):
                announce(f"warning: image {row:,} of the cache of {self.name} is damaged")
                before = self._cache.bad
                self._cache = self._open(damaged_row=row)
                self._is_checked[:] = False
                if self._cache.bad.keys() != before.keys():
                    raise UserError(
                        f"the files of {self.name} have changed since the start: rerun the same "
                        "command"
                    )
            self._is_checked[row] = True

    def _read(self, rows: NDArray[np.int64]) -> Pictures:
        """Copy the bytes of images, one after another."""
        self._check(rows)

        def copy(i: int, target: NDArray[np.uint8]) -> None:
            start = self._cache.start[rows[i]]
            target[:] = self._cache.pixels[start : start + len(target)]

        return _gather(self._cache.shape[rows], copy)

    def _read_squares(self, rows: NDArray[np.int64]) -> Tensor:
        """Copy the central squares of images."""
        self._check(rows)
        side = self.resolution
        squares = np.empty((len(rows), 3, side, side), dtype=np.uint8)
        for square, row in zip(squares, rows.tolist(), strict=True):
            image = self._cache.image(row)
            top = (image.shape[1] - side) // 2
            left = (image.shape[2] - side) // 2
            square[:] = image[:, top : top + side, left : left + side]
        return torch.from_numpy(squares)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(cancel_futures=True)


class StreamingStore(Store):
    """Decode files on demand in worker processes.

    A bad file is replaced by the next good one in the order of paths.
    """

    def __init__(
        self,
        files: FileSet | ShardSet,
        resolution: int,
        *,
        keep: Keep = "aspect",
        num_workers: int | None = None,
        max_bad_share: float = MAX_BAD_SHARE,
    ):
        self.name = files.name
        self.split = files.split
        self.classes = files.classes
        self.resolution = resolution
        self.value_range = files.value_range
        self.labels = None if files.labels is None else torch.from_numpy(files.labels)
        self.bad = []
        self._files = files
        self.keep = keep
        self._max_bad_share = max_bad_share
        self._reasons: dict[int, str] = {}  # of bad files
        self._is_tried = np.zeros(len(files), dtype=bool)  # decoded or found bad
        self._num_tried = 0
        self._num_workers = num_workers or num_cores()
        # The workers write decoded images into a shared buffer.
        buffer = _open_buffer()
        self._fd = buffer.fileno()
        self._free_rows: list[int] = []
        self._num_rows = 0
        row_bytes = 3 * resolution**2 * (MAX_ASPECT if keep == "aspect" else 1)
        self._decoders = Decoders(
            self._fd,
            resolution,
            self._num_workers,
            row_bytes=row_bytes,
            value_range=files.value_range,
            path=buffer.name,
        )
        self._finalizer = weakref.finalize(self, _close, self._decoders, buffer)

    def __len__(self) -> int:
        return len(self._files)

    def start(self, index: Tensor) -> Reading:
        """Start to decode files into free rows of the buffer."""
        if self.keep == "square":
            return self.start_squares(index)
        finish = self._start(index, "aspect")

        def read() -> tuple[Pictures, Tensor]:
            with finish() as (decoded, loaded):
                shape = [(image.height, image.width) for image in decoded]
                pictures = _gather(
                    np.array(shape, dtype=np.int64).reshape(-1, 2),
                    lambda i, target: self._copy(decoded[i], target),
                )
            return pictures, loaded

        return read

    def start_squares(self, index: Tensor) -> SquareReading:
        """Start to decode the central squares of files."""
        finish = self._start(index, "square")

        def read() -> tuple[Tensor, Tensor]:
            with finish() as (decoded, loaded):
                side = self.resolution
                squares = np.empty((len(decoded), 3, side, side), dtype=np.uint8)
                for image, square in zip(decoded, squares, strict=True):
                    self._copy(image, square)
            return torch.from_numpy(squares), loaded

        return read

    def _copy(self, image: Decoded, target: NDArray[np.uint8]) -> None:
        """Copy the bytes of an image out of the buffer."""
        memory = target.data.cast("B")
        if hasattr(os, "preadv"):
            os.preadv(self._fd, [memory], image.start)
            return
        with _seeking:  # on Windows
            os.lseek(self._fd, image.start, os.SEEK_SET)
            memory[:] = os.read(self._fd, len(memory))

    def _start(
        self, index: Tensor, keep: Keep
    ) -> Callable[[], AbstractContextManager[tuple[list[Decoded], Tensor]]]:
        """Send files to the workers; the result waits for them and holds their rows meanwhile."""
        prepared = self._prepare(index.tolist())
        files = [self._next_good(i) for i in index.tolist()]
        prepared = [*prepared, *self._prepare(files)]  # others may stand in for some
        rows = self._take_rows(len(files))
        jobs = [(row, self._target(i)) for row, i in zip(rows, files, strict=True)]
        size = max(1, min(FILES_PER_CHUNK, math.ceil(len(jobs) / self._num_workers)))
        futures = [
            self._decoders.submit(jobs[i : i + size], keep) for i in range(0, len(jobs), size)
        ]

        @contextmanager
        def finish() -> Iterator[tuple[list[Decoded], Tensor]]:
            try:
                yield self._wait(files, rows, futures, keep)
            finally:
                self._free_rows.extend(rows)
                self._finish(prepared)

        return finish

    def _prepare(self, images: list[int]) -> list[int]:
        """Make images ready to be read, until `_finish` gets what this returns."""
        return []

    def _finish(self, prepared: list[int]) -> None:
        """Undo `_prepare`."""

    def _wait(
        self,
        files: list[int],
        rows: list[int],
        futures: list["Future[list[Reply]]"],
        keep: Keep,
    ) -> tuple[list[Decoded], Tensor]:
        """Wait for the replies and replace bad files; return the images and their index."""
        with disk_errors(f"decoding images of {self._files.root}"):
            replies = [reply for future in futures for reply in future.result()]
            readable = [
                self._replace_bad(i, reply, row, keep)
                for i, reply, row in zip(files, replies, rows, strict=True)
            ]
        if self._num_tried >= min(MIN_FILES_TO_JUDGE, len(self)):
            check_bad_share(self.bad, self._num_tried, self._files.root, self._max_bad_share)
        index = torch.tensor([i for i, _ in readable], dtype=torch.long)
        return [image for _, image in readable], index

    def close(self) -> None:
        """Stop the workers and free the buffer."""
        self._finalizer()

    def _replace_bad(self, i: int, reply: Reply, row: int, keep: Keep) -> tuple[int, Decoded]:
        """Record the reply for file i; if it is bad, decode the next good file to the same row."""
        self._note_tried(i)
        while isinstance(reply, str):
            if i not in self._reasons:
                self._reasons[i] = reply
                self.bad.append(BadFile(self._name(i), reply))
            i = self._next_good(i)
            (reply,) = self._decoders.submit([(row, self._target(i))], keep).result()
            self._note_tried(i)
        return i, reply

    def _note_tried(self, i: int) -> None:
        self._num_tried += not self._is_tried[i]
        self._is_tried[i] = True

    def _next_good(self, i: int) -> int:
        if len(self._reasons) == len(self):
            check_bad_share(self.bad, len(self), self._files.root, 0)
        while i in self._reasons:
            i = (i + 1) % len(self)
        return i

    def _name(self, i: int) -> str:
        return self._files.image_name(i)

    def _target(self, i: int) -> Target:
        assert isinstance(self._files, FileSet)
        return self._files.location(i)

    def _take_rows(self, count: int) -> list[int]:
        missing = max(0, count - len(self._free_rows))
        self._free_rows.extend(range(self._num_rows, self._num_rows + missing))
        self._num_rows += missing
        return [self._free_rows.pop() for _ in range(count)]


def _gather(shape: NDArray[np.int64], copy: Callable[[int, NDArray[np.uint8]], None]) -> Pictures:
    """Allocate images of the shapes [N, 2], and call `copy` to write the bytes of each."""
    sizes = 3 * shape.prod(1)
    ends = sizes.cumsum()
    pixels = np.empty(int(sizes.sum()), dtype=np.uint8)
    for i, (size, end) in enumerate(zip(sizes.tolist(), ends.tolist(), strict=True)):
        copy(i, pixels[end - size : end])
    return Pictures(*map(torch.from_numpy, (pixels, ends - sizes, shape)))


def _has_space(folder: str) -> bool:
    """Return whether a folder has space for large batches; containers may allow few megabytes."""
    return os.path.isdir(folder) and shutil.disk_usage(folder).free > 10**9


def _open_buffer() -> IO[bytes]:
    """Open a file without a name, in memory if it can be: it goes even if the process is killed.

    Where workers open it by its name, it has one until it is closed.
    """
    folder = "/dev/shm" if _has_space("/dev/shm") else None
    if WORKERS_INHERIT:
        return tempfile.TemporaryFile(dir=folder)
    return tempfile.NamedTemporaryFile(dir=folder, prefix="smi-", delete=False)


def _close(decoders: Decoders, buffer: IO[bytes]) -> None:
    decoders.close()
    buffer.close()
    if not WORKERS_INHERIT:
        os.unlink(buffer.name)


def check_bad_share(
    bad: Sequence[BadFile], total: int, root: Path | str, max_bad_share: float
) -> None:
    """Raise an error if more than the accepted share of files cannot be read."""
    first = f"({printable(bad[0].path)}: {printable(bad[0].reason)})" if bad else ""
    if len(bad) == total:
        raise UserError(
            f"none of the {total:,} files in {root} can be read as an image {first}: "
            f"run `smi data {root}` for the reasons"
        )
    if len(bad) > max_bad_share * total:
        raise UserError(
            f"{len(bad):,} of {total:,} files in {root} cannot be read as images {first}, "
            f"above the accepted share of {max_bad_share:.0%}: run `smi data {root}` for the list, "
            "and repair or remove them"
        )


def write_bad(path: Path, bad: Sequence[BadFile]) -> None:
    """Write one line per bad file: its path, a tab, the reason. Lines that are there stay."""
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = [f"{printable(item.path)}\t{printable(item.reason)}" for item in bad]
    write_text(path, "".join(f"{line}\n" for line in dict.fromkeys([*before, *lines])))
