"""Lose a process, get a signal, or continue with another number of processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import smi
from smi.runs.run import Facts
from smi.training import run_facts
from smi.training.signals import START_AGAIN
from support.digits import SMI, TESTS, WIDTHS, command, digits, environment, same, same_run
from support.forked import Forked
from support.two_processes import finish, start_two

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
SETTINGS = [*WIDTHS, "--log.every", "5", "--log.save_every", "0.2", "--log.probe_every", "0"]
NUM_EPOCHS, STEPS_PER_EPOCH = 8, 25


def words(out: Path, epochs: int = NUM_EPOCHS) -> list[str]:
    """Return the words of a command that trains."""
    return digits(out, "--epochs", str(epochs), *SETTINGS)


def start(out: Path, *launch: str) -> "subprocess.Popen[str]":
    """Start a run under torchrun."""
    return subprocess.Popen(
        [*TORCHRUN, *launch, "-m", "smi", *words(out)],
        env=environment(),
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_saved(process: "subprocess.Popen[str] | Forked", run: Path) -> None:
    """Wait until a run has a checkpoint, and a line of metrics after it."""
    metrics = run / "metrics.jsonl"
    while not (run / "checkpoints" / "last.pt").is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    num_bytes = metrics.stat().st_size
    while metrics.stat().st_size == num_bytes and process.poll() is None:
        time.sleep(0.01)


def workers(process: "subprocess.Popen[str]") -> list[int]:
    """Return the process ids of the ranks that torchrun has started, in their order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, children))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> smi.Run:
    """Train by two processes without a stop."""
    out = tmp_path_factory.mktemp("whole") / "run"
    process = start(out, "--nproc-per-node", "2")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return smi.Run(out)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_again_after_a_killed_worker(rank, whole, tmp_path):
    process = start(tmp_path / "a", "--nproc-per-node", "2", "--max-restarts", "1")
    wait_until_saved(process, tmp_path / "a")
    os.kill(workers(process)[rank], signal.SIGKILL)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output.count("resumed    after step") == 1
    states = [run.state() for run in (whole, smi.Run(tmp_path / "a"))]
    for name in ("step", "method", "optimizer"):
        same(states[0][name], states[1][name])
    assert smi.Run(tmp_path / "a").facts.world_sizes == [[0, 2]]


@pytest.mark.long
def test_a_signal_to_torchrun_saves_and_the_run_resumes(whole, tmp_path):
    process = start(tmp_path / "a", "--nproc-per-node", "2")
    wait_until_saved(process, tmp_path / "a")
    process.terminate()
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 1, errors  # torchrun's own code, whatever those of its processes
    step = smi.Run(tmp_path / "a").state()["step"]
    assert f"stopped after step {step:,} of 200; rerun the same command" in output
    process = start(tmp_path / "a", "--nproc-per-node", "2")
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert f"resumed    after step {step:,}" in output
    same_run(whole.folder, tmp_path / "a")


@pytest.mark.parametrize("name", [pytest.param("SIGTERM", marks=pytest.mark.long), "SIGUSR1"])
def test_a_signal_of_a_scheduler_has_one_exit_code(name, tmp_path):
    process = Forked(*SMI, *words(tmp_path / "a", epochs=200), env=environment(), cwd=TESTS)
    wait_until_saved(process, tmp_path / "a")
    process.send_signal(getattr(signal, name))
    ((code, output, errors),) = finish([process])
    assert code == START_AGAIN == 143, errors
    assert "rerun the same command to resume from there" in output


def test_a_run_of_two_processes_is_continued_by_one(tmp_path):
    processes = start_two(*SMI, *words(tmp_path / "a"))
    wait_until_saved(processes[0], tmp_path / "a")
    for process in processes:  # as torchrun does with the signal that it gets
        process.send_signal(signal.SIGTERM)
    (code, output, errors), (other_code, _, other_errors) = finish(processes)
    assert code == START_AGAIN, errors
    assert other_code == START_AGAIN, other_errors
    step = smi.Run(tmp_path / "a").state()["step"]
    assert f"stopped after step {step:,} of 200; rerun the same command" in output
    result = command(*words(tmp_path / "a"))
    assert result.returncode == 0, result.stderr
    assert f"resumed    after step {step:,}" in result.stdout
    assert "the number of processes changes from 2 to 1, with 64 images on each" in result.stderr
    run = smi.Run(tmp_path / "a")
    assert run.finished
    assert run.facts.world_sizes == [[0, 2], [step, 1]]
    assert run.metrics()[-1]["step"] == NUM_EPOCHS * STEPS_PER_EPOCH


@pytest.mark.parametrize(
    ("before", "start", "expected"),
    [
        (None, 0, [[0, 4]]),
        ([[0, 2]], 0, [[0, 4]]),  # no checkpoint is left
        ([[0, 4]], 30, [[0, 4]]),
        ([[0, 2]], 30, [[0, 2], [30, 4]]),
        ([[0, 2], [10, 1]], 30, [[0, 2], [10, 1], [30, 4]]),
        ([[0, 4], [20, 1]], 20, [[0, 4]]),  # the one process did not reach a checkpoint
    ],
)
def test_changes_of_the_number_of_processes(before, start, expected, monkeypatch):
    monkeypatch.setattr(run_facts, "world_size", lambda: 4)
    assert run_facts._world_sizes(Facts(world_sizes=before), start) == expected


def test_runs_of_earlier_versions_name_one_number_of_processes(monkeypatch):
    monkeypatch.setattr(run_facts, "world_size", lambda: 4)
    assert run_facts._world_sizes(Facts(world_size=8), 30) == [[0, 8], [30, 4]]
