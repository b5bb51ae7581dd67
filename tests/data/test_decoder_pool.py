import contextlib
import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from smi.data import decoder_pool as decoders
from smi.data.decoder import Decoded, ImageInfo
from smi.data.decoder_pool import Decoders, Job, Reply
from smi.errors import UserError
from support.pictures import Draw


def kill_while_working(pool: Decoders, jobs: list[Job]) -> list[Reply]:
    pid = pool._workers[0]._process.pid
    os.kill(pid, signal.SIGSTOP)
    future = pool.submit(jobs)
    while not pool._idle.empty():
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    return future.result()


def test_a_worker_that_dies_while_it_starts_is_replaced(tmp_path: Path, draw: Draw) -> None:
    jobs = [(0, str(draw(tmp_path / "a.png", 0)))]
    with Decoders(-1, 8, 1) as pool:
        future = pool.submit(jobs)
        os.kill(pool._workers[0]._process.pid, signal.SIGKILL)
        (reply,) = future.result()
    assert isinstance(reply, Decoded)


def test_a_worker_that_never_starts_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders.sys, "executable", "/bin/false")
    with Decoders(-1, 8, 1) as pool, pytest.raises(UserError, match="did not start"):
        pool.submit([(0, "a.png")]).result()


def test_a_worker_that_crashes_is_replaced(tmp_path: Path, draw: Draw) -> None:
    jobs = [(i, str(draw(tmp_path / f"{i}.png", i))) for i in range(3)]
    with Decoders(-1, 8, 1) as decoders:
        decoders.submit(jobs).result()
        assert kill_while_working(decoders, jobs[:1]) == ["its decoder crashed (exit code -9)"]
        assert all(isinstance(reply, Decoded) for reply in decoders.submit(jobs).result())
        assert all(isinstance(reply, Decoded) for reply in kill_while_working(decoders, jobs))


def test_workers_start_with_the_first_jobs(tmp_path: Path, draw: Draw) -> None:
    with Decoders(-1, 8, 2) as pool:
        assert pool._workers == []
        pool.submit([(0, str(draw(tmp_path / "a.png")))]).result()
        assert len(pool._workers) == 2
    unused = Decoders(-1, 8, 2)
    unused.close()
    with pytest.raises(RuntimeError):
        unused.submit([])
    assert unused._workers == []


def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert decoders.num_cores() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert decoders.num_cores() == 1
    assert decoders.num_cores(alone=True) == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert decoders.num_cores() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert decoders.num_cores() == 1


def test_a_write_error_is_raised_and_not_counted_as_a_bad_file(tmp_path: Path, draw: Draw) -> None:
    path = draw(tmp_path / "a.png")
    with (
        path.open("rb") as unwritable,
        Decoders(unwritable.fileno(), 8, 1) as decoders,
        pytest.raises(OSError, match="Bad file descriptor"),
    ):
        decoders.submit([(0, str(path))]).result()


def test_the_reply_for_a_bad_file_is_the_reason(tmp_path: Path, draw: Draw) -> None:
    (tmp_path / "broken.png").write_bytes(draw(tmp_path / "a.png").read_bytes()[:60])
    jobs = [
        (0, str(tmp_path / "absent.png")),
        (1, str(tmp_path / "broken.png")),
        (2, str(tmp_path / "a.png")),
    ]
    with Decoders(-1, 8, 1) as decoders:
        absent, broken, good = decoders.submit(jobs).result()
    assert isinstance(absent, str)
    assert "No such file" in absent
    assert isinstance(broken, str)
    assert isinstance(good, Decoded)
    assert good.info == ImageInfo(20, 16, "PNG", "RGB")


def test_a_worker_that_is_stopped_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may be stopped just when it replaces a process that died."""
    worker = decoders._Worker(-1, 8, 0)
    worker._process.kill()
    worker._process.wait()
    close = worker.close
    stopping = threading.Thread(target=worker.stop)

    def close_while_stopping() -> None:
        stopping.start()
        stopping.join(0.2)  # without a lock it is done by now
        close()

    monkeypatch.setattr(worker, "close", close_while_stopping)
    with contextlib.suppress(CancelledError):
        worker.run([], "square")
    stopping.join()
    process = worker._process
    try:
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        close()
    with pytest.raises(CancelledError):
        worker.run([], "square")
