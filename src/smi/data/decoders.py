"""A pool of worker processes that decode files into rows of one file: a cache being built, or a window for streaming.

The workers are started afresh, not forked: threads of this process (torch's, a data loader's) cannot deadlock them, and a user's script
needs no `if __name__ == "__main__"`. One that dies of a file is replaced, and the file counts as bad.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from smi.data.decoder import Found

Job = tuple[int, str]  # row, path
Reply = Found | str  # or why not

CHUNK = 16  # files handed to a worker at once: the wait for its next errand vanishes among so many


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Decoders:
    """`submit` hands over files; row r goes to bytes [r * 3 S S, (r + 1) * 3 S S) of the file open as `fd`; -1: nowhere."""

    def __init__(self, fd: int, resolution: int, num_workers: int):
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers = [_Worker(fd, resolution) for _ in range(num_workers)]
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="smi-decoder")

    def submit(self, jobs: Sequence[Job]) -> "Future[list[Reply]]":
        return self._threads.submit(self._run, jobs)

    def _run(self, jobs: Sequence[Job]) -> list[Reply]:
        worker = self._idle.get()
        try:
            return worker.run(jobs)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
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
    def __init__(self, fd: int, resolution: int):
        self._fd, self._resolution = fd, resolution
        self._ready = self._stopped = False
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "smi.data.decoder", str(self._fd), str(self._resolution)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._fd,) if self._fd >= 0 else (),
            # Pillow keeps the memory of an image for the next: fresh pages from the system take as long as decoding a small JPEG.
            env={"PILLOW_BLOCKS_MAX": "8"} | os.environ | {"PYTHONPATH": paths},
            encoding="ascii",
        )

    def run(self, jobs: Sequence[Job]) -> list[Reply]:
        """One line there, one line back. If none comes back, the files are tried one by one to find which it died of."""
        if self._stopped:
            raise CancelledError
        if self._process.poll() is not None:
            self.close()
            self._process, self._ready = self._start(), False
        self._await_ready()
        with contextlib.suppress(BrokenPipeError):  # it died: the missing answer will tell
            self._process.stdin.write(json.dumps(jobs) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if line:
            return [_parse(answer) for answer in json.loads(line)]
        self._process.wait()
        if len(jobs) == 1:
            return [f"its decoder crashed (exit code {self._process.returncode})"]
        return [reply for job in jobs for reply in self.run([job])]

    def _await_ready(self) -> None:
        if not self._ready and self._process.stdout.readline() != "ready\n":  # type: ignore[union-attr]
            raise RuntimeError("a worker process for decoding did not start: its message is above")
        self._ready = True

    def stop(self) -> None:
        self._stopped = True
        self._process.kill()  # it holds nothing that must be finished

    def close(self) -> None:
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]


def _parse(answer: list[Any]) -> Reply:
    if len(answer) == 1:
        return str(answer[0])
    if len(answer) == 2:  # nowhere to write it: the disk is full, not the file bad
        raise OSError(*answer)
    return Found(*answer)
