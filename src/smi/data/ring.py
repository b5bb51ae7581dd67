"""Keep the shards in use on this machine: fetched ahead, shared by its processes, then removed.

    ring = Ring(shards, folder)
    ring.want([3, 7, 1])           # start to fetch them, and let go of others
    with ring.holding([3]):        # wait for a shard, and keep it meanwhile
        ring.get(3).target(0)

A fetched shard is a file in the folder, NAME. A process fetches it under the lock NAME.lock. While
it needs the shard it holds a lock of its own, NAME.use-…; the last process removes the shard,
under NAME.lock. The folder has such locks, too. Locks end with their process, so a killed run
leaves files but no locks: the same run uses them again, another one removes them.
"""

import contextlib
import glob
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from smi.data.remote import LostError, refuse_full_disk
from smi.data.shard_files import OpenShard, Shard, needs_scratch, open_shard, scratch_name
from smi.files import lock, try_lock

NUM_THREADS = 4  # that fetch
NUM_KEPT = 4  # shards that nobody wants any more, for a reader that goes back
RING = "ring"  # name of the folder's own locks


class Ring:
    """Open shards, and fetch them first where they are far away."""

    def __init__(self, shards: Sequence[Shard], folder: Path):
        self._shards = shards
        self._folder = folder
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="smi-ring")
        self._guard = threading.Lock()
        self._opened: dict[int, Future[OpenShard]] = {}  # in the order of their last use
        self._uses: dict[int, _Use] = {}  # of fetched shards
        self._pins: Counter[int] = Counter()
        self._wanted: list[int] = []
        self._own_use: _Use | None = None
        self._stopped = threading.Event()
        self.num_fetched = 0

    @property
    def wanted(self) -> list[int]:
        """Return the shards that are wanted now."""
        return self._wanted

    def want(self, numbers: Sequence[int]) -> None:
        """Start to open these shards in this order, and close others that nobody holds."""
        if list(numbers) != self._wanted:
            self._wanted = list(numbers)
            self.request(numbers)
            self._let_go()

    def request(self, numbers: Iterable[int]) -> None:
        """Start to open shards."""
        with self._guard:
            for number in numbers:
                future = self._opened.pop(number, None)
                self._opened[number] = future or self._threads.submit(self._open, number)

    def get(self, number: int) -> OpenShard:
        """Wait for a shard; raise LostError if it cannot be read."""
        self.request([number])
        return self._opened[number].result()

    @contextlib.contextmanager
    def holding(self, numbers: Iterable[int]) -> Iterator[None]:
        """Keep shards open."""
        numbers = list(numbers)
        self.hold(numbers)
        try:
            yield
        finally:
            self.release(numbers)

    def hold(self, numbers: Iterable[int]) -> None:
        """Keep shards until they are released."""
        with self._guard:
            self._pins.update(numbers)

    def release(self, numbers: Iterable[int]) -> None:
        """Let go of shards that were held."""
        with self._guard:
            self._pins.subtract(numbers)
            self._pins += Counter()  # drops those that nobody holds
        self._let_go()

    def _let_go(self) -> None:
        """Close shards that are neither wanted nor held, but for the last few."""
        with self._guard:
            idle = [
                number
                for number, future in self._opened.items()
                if number not in self._wanted and not self._pins[number] and future.done()
            ]
            for number in idle[: max(0, len(idle) - NUM_KEPT)]:
                del self._opened[number]
                self._remove(number)

    def _open(self, number: int) -> OpenShard:
        shard = self._shards[number]
        if not needs_scratch(shard):
            return open_shard(shard, self._folder)
        self._prepare()
        name = scratch_name(shard)
        try:
            with lock(self._folder / f"{name}.lock", f"another process fetches {shard.location}"):
                is_new = not (self._folder / name).exists()
                opened = open_shard(shard, self._folder, self._stopped.is_set)
                self.num_fetched += is_new
                use = _Use(self._folder, name)
        except OSError as error:
            refuse_full_disk(error, shard.location)
            raise LostError(f"{shard.location}: {error}") from error
        with self._guard:
            self._uses[number] = use
        return opened

    def _remove(self, number: int) -> None:
        """Remove the files of a fetched shard, unless another process uses or opens it."""
        use = self._uses.pop(number, None)
        if use is None:
            return
        name = scratch_name(self._shards[number])
        opening = try_lock(self._folder / f"{name}.lock")
        use.end()
        if opening is None:  # another process opens it, and will remove it
            return
        try:
            if not _is_used(self._folder, name):
                for path in (self._folder / name, self._folder / f"{name}.bytes"):
                    path.unlink(missing_ok=True)
        except OSError:  # it is left for the next run
            pass
        finally:
            opening.release()

    def _prepare(self) -> None:
        """Make the folder, and remove folders that killed processes have left."""
        with self._guard:
            if self._own_use is not None:
                return
            with self._changing_folders():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._own_use = _Use(self._folder, RING)
                for other in self._folder.parent.iterdir():
                    if other != self._folder and other.is_dir():
                        _remove_unused(other)

    def close(self) -> None:
        """Stop to fetch, and remove what no other process uses."""
        self._stopped.set()
        self._threads.shutdown(cancel_futures=True)
        for number in list(self._uses):
            self._remove(number)
        if self._own_use is not None:
            with self._changing_folders():
                self._own_use.end()
                self._own_use = None
                _remove_unused(self._folder)

    def _changing_folders(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock under which folders of rings are made and removed."""
        home = self._folder.parent
        return lock(home.with_name(f"{home.name}.lock"), f"waiting for another process in {home}")


class _Use:
    """Tell other processes that this one needs something in a folder, until it ends."""

    def __init__(self, folder: Path, name: str):
        self._path = folder / f"{name}.use-{secrets.token_hex(8)}"
        self._lock = try_lock(self._path)

    def end(self) -> None:
        """Release the lock, and remove its file."""
        if self._lock is not None:
            self._lock.release()
        self._path.unlink(missing_ok=True)


def _is_used(folder: Path, name: str) -> bool:
    """Return whether a process uses it; remove the locks of processes that have died."""
    for path in folder.glob(f"{glob.escape(name)}.use-*"):
        unused = try_lock(path)
        if unused is None:
            return True
        unused.release()
        path.unlink(missing_ok=True)
    return False


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a ring that no process uses."""
    with contextlib.suppress(OSError):
        if not _is_used(folder, RING):
            shutil.rmtree(folder, ignore_errors=True)
