"""Decode files in a pool of worker processes, into one file.

That file is a cache being built, or the shared buffer of a streaming store. Workers are started as
new processes, not forked: threads of this process (of torch or of a data loader) cannot deadlock
them, and a user's script needs no `if __name__ == "__main__"`. A worker that crashes on a file is
replaced, and the file counts as bad.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from smi.data.decoder import Decoded, ImageInfo, Keep, Target, ValueRange
from smi.errors import UserError

Job = tuple[int, Target]  # with its row
Reply = Decoded | str  # or the reason why the file is bad

# Workers inherit the file that they write; on Windows they open it by its path.
WORKERS_INHERIT = hasattr(os, "fork")
NUM_STARTS = 3  # of a worker that dies before it is ready
FILES_PER_CHUNK = 16  # files per message to a worker, so that messages cost little time


def num_cores(*, alone: bool = False) -> int:
    """Return the number of cores for this process: its share if torchrun started several here.

    alone: the other processes wait meanwhile, so all cores count.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = 1 if alone else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, (cores or 1) // processes)


class Decoders:
    """Decode files into the file open as `fd`; with fd -1 the pixels are discarded.

    Row r is written from byte r * row_bytes on. With row_bytes 0 every image is appended. The
    workers start with the first jobs. value_range: scales images of more than 8 bits. path: of the
    file, which is needed where workers do not inherit it.
    """

    def __init__(
        self,
        fd: int,
        resolution: int,
        num_workers: int,
        *,
        row_bytes: int = 0,
        value_range: ValueRange | None = None,
        path: Path | str | None = None,
    ):
        if fd >= 0 and not WORKERS_INHERIT and path is None:
            raise ValueError("on this system workers need the path of their file")
        self._file: int | str = fd if fd < 0 or WORKERS_INHERIT else os.path.abspath(str(path))
        self._resolution = resolution
        self._row_bytes = row_bytes
        self._value_range = value_range
        self._num_workers = num_workers
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="smi-decoder")

    def submit(self, jobs: Sequence[Job], keep: Keep = "square") -> "Future[list[Reply]]":
        """Send jobs to the next idle worker; the future holds one reply per job."""
        while len(self._workers) < self._num_workers:
            self._workers.append(
                _Worker(self._file, self._resolution, self._row_bytes, self._value_range)
            )
            self._idle.put(self._workers[-1])
        return self._threads.submit(self._run, jobs, keep)

    def _run(self, jobs: Sequence[Job], keep: Keep) -> list[Reply]:
        worker = self._idle.get()
        try:
            return worker.run(jobs, keep)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Stop all workers and cancel the jobs that are left."""
        self._num_workers = 0  # none starts from now on
        for worker in self._workers:
            worker.stop()  # first, so that no thread waits for an answer
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Worker:
    """Run smi.data.decoder in a process, and restart it when it dies."""

    def __init__(
        self,
        file: int | str,
        resolution: int,
        row_bytes: int,
        value_range: ValueRange | None = None,
    ):
        self._file = file
        self._arguments = [
            str(value) for value in (file, resolution, row_bytes, *(value_range or ()))
        ]
        self._ready = False
        self._stopped = False
        self._starting = threading.Lock()  # a stopped worker must not start another process
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "smi.data.decoder", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._file,) if isinstance(self._file, int) and self._file >= 0 else (),
            # Pillow keeps the memory of an image for the next one: new pages from the system take
            # as long as decoding a small JPEG.
            env={"PILLOW_BLOCKS_MAX": "8"} | os.environ | {"PYTHONPATH": paths},
            encoding="ascii",
        )

    def run(self, jobs: Sequence[Job], keep: Keep) -> list[Reply]:
        """Send one line of jobs and read one line of replies.

        If the process dies, try the files one by one to find the file that killed it.
        """
        with self._starting:
            if self._stopped:
                raise CancelledError
            if self._process.poll() is not None:
                self.close()
                self._process = self._start()
                self._ready = False
        self._await_ready()
        with contextlib.suppress(BrokenPipeError):  # it died, and no answer will come
            self._process.stdin.write(json.dumps([keep, jobs]) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if line:
            return [_parse(answer) for answer in json.loads(line)]
        self._process.wait()
        if len(jobs) == 1:
            return [f"its decoder crashed (exit code {self._process.returncode})"]
        return [reply for job in jobs for reply in self.run([job], keep)]

    def _await_ready(self) -> None:
        """Wait until the process has started; one that dies meanwhile is replaced."""
        for attempt in range(NUM_STARTS):
            if self._ready or self._process.stdout.readline() == "ready\n":  # type: ignore[union-attr]
                self._ready = True
                return
            with self._starting:
                if self._stopped:
                    raise CancelledError
                if attempt + 1 < NUM_STARTS:
                    self.close()
                    self._process = self._start()
        raise UserError("a process that decodes images did not start; see its error message above")

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
            self._process.kill()  # it has nothing that must be finished

    def close(self) -> None:
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]


def _parse(answer: list[Any]) -> Reply:
    if len(answer) == 1:
        return str(answer[0])
    if len(answer) == 2:  # the disk or the memory is full, the file is not bad
        raise OSError(*answer)
    start, height, width, info = answer
    return Decoded(start, height, width, ImageInfo(*info))
