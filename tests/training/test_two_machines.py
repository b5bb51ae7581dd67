"""Train on two machines that share no disk, under torchrun: two network namespaces of this one."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import smi
from support.digits import SMI, same_run
from support.forked import Forked
from support.two_machines import Machine, two_machines, why_not
from support.two_processes import finish

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

NUM_IMAGES, BATCH, EPOCHS = 96, 16, 40
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
# Without it, torchrun does not tell a machine that comes back where to find rank 0.
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
NO_COMPILER = {"CXX": "no-compiler"}  # each machine would take seconds for the kernel of views
SETTINGS = {
    "--encoder": "support.homemade.Net",
    "--method.widths": "[8, 8]",
    "--batch-size": BATCH,
    "--optimizer.warmup_epochs": 0,
    "--log.every": 2,
    "--log.save_every": 0.5,
    "--log.probe_every": 0,
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Join two machines; each has the same images on a disk of its own."""
    folder = tmp_path_factory.mktemp("machines")
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (NUM_IMAGES, 20, 20, 3), dtype=np.uint8)
    with two_machines(folder) as pair:
        for machine in pair:
            photos = machine.disk / "photos"
            photos.mkdir()
            for i, pixels in enumerate(pictures):
                Image.fromarray(pixels).save(photos / f"{i}.png")
        yield pair


def command(machine: Machine, out: str, *, epochs: int = EPOCHS) -> list[object]:
    """Return the words of a command that trains."""
    disk = machine.folder / "disk"
    words = ["--epochs", epochs, *(word for pair in SETTINGS.items() for word in pair)]
    return ["pretrain", "cifar10-small", "--data", disk / "photos", *words, "--out", disk / out]


def pretrain(machine: Machine, *launch: object, words: list[object]) -> "subprocess.Popen[str]":
    """Start a run under torchrun on one machine."""
    return machine.start(*TORCHRUN, *launch, "-m", "smi", *words, **NEW_STORE, **NO_COMPILER)


def start(machines, out: str, *, first: int = 0) -> list["subprocess.Popen[str]"]:
    """Start a run whose rank 0 is on one of the machines, for good."""
    address = ["--nnodes", 2, "--master-addr", machines[first].address, "--master-port", 29500]
    ranks = [(i - first) % 2 for i in range(2)]
    return [
        pretrain(machine, *address, "--node-rank", rank, words=command(machine, out))
        for machine, rank in zip(machines, ranks, strict=True)
    ]


def start_without_torchrun(machines, out: str) -> list[Forked]:
    """Start a short run with the variables that torchrun sets; each process is forked."""
    shared = {"MASTER_ADDR": machines[0].address, "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    shared |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return [
        machine.fork(
            *SMI, *command(machine, out, epochs=2), RANK=str(rank), **shared, **NO_COMPILER
        )
        for rank, machine in enumerate(machines)
    ]


def start_elastic(machine: Machine, first: Machine, out: str) -> "subprocess.Popen[str]":
    """Start a long run that one machine or two can continue, on one of them."""
    rendezvous = ["--nnodes", "1:2", "--max-restarts", 3, "--rdzv-backend", "c10d"]
    rendezvous += ["--rdzv-endpoint", f"{first.address}:29400", "--rdzv-id", out]
    rendezvous += ["--rdzv-conf", "last_call_timeout=2"]
    return pretrain(machine, *rendezvous, words=command(machine, out, epochs=100_000))


def wait_until_saved(processes: list["subprocess.Popen[str]"], run: Path) -> None:
    """Wait until a run has a checkpoint, and a line of metrics after it."""
    metrics = run / "metrics.jsonl"
    while not (run / "checkpoints" / "last.pt").is_file():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)
    num_bytes = metrics.stat().st_size
    while metrics.stat().st_size == num_bytes and processes[0].poll() is None:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(machines):
    """Train without a stop; return what both machines print."""
    return finish(start(machines, "whole"))


def check_whole(results, machines, name: str) -> None:
    for code, _, errors in results:
        assert code == 0, errors
    a, b = machines
    run = smi.Run(a.disk / name)
    assert run.finished
    assert run.facts.world_size == 2
    assert sorted(path.name for path in b.disk.iterdir()) == ["cache", "photos"]
    assert "8 on each of 2 devices" in results[0][1]
    assert "8 on each of 2 devices" not in results[1][1]  # rank 1 prints nothing


def test_only_rank_0_needs_the_folder_of_the_run(machines):
    results = finish(start_without_torchrun(machines, "short"))
    check_whole(results, machines, "short")


@pytest.mark.long
def test_only_rank_0_needs_the_folder_of_the_run_under_torchrun(whole, machines):
    check_whole(whole, machines, "whole")


@pytest.mark.long
def test_a_signal_to_one_machine_stops_both_and_the_run_resumes(whole, machines):
    """Rank 0 reads the checkpoint and sends it to the other machine."""
    a, b = machines
    processes = start(machines, "cut")
    wait_until_saved(processes, a.disk / "cut")
    processes[1].send_signal(signal.SIGTERM)
    (code, output, errors), (other, _, _) = finish(processes)
    assert code != 0, errors
    assert other != 0
    assert "rerun the same command to resume from there" in output
    step = smi.Run(a.disk / "cut").state()["step"]
    assert step < NUM_IMAGES // BATCH * EPOCHS
    (code, output, errors), (other, _, _) = finish(start(machines, "cut"))
    assert (code, other) == (0, 0), errors
    assert f"resumed    after step {step:,}" in output
    same_run(a.disk / "whole", a.disk / "cut")
    assert not (b.disk / "cut").exists()


@pytest.mark.long
def test_rank_0_on_the_other_machine_does_not_start_over(whole, machines):
    results = finish(start(machines, "whole", first=1))
    assert all(code != 0 for code, _, _ in results)
    disk = machines[0].folder / "disk"
    sentence = f"{disk / 'whole'} has a checkpoint on a and none on b, which is rank 0 now"
    assert all(sentence in errors for _, _, errors in results)
    assert not (machines[1].disk / "whole").exists()


@pytest.mark.long
def test_machines_with_different_images_are_refused(machines):
    photo = machines[1].disk / "photos" / "7.png"
    pixels = photo.read_bytes()
    photo.unlink()
    try:
        results = finish(start(machines, "fewer"))
    finally:
        photo.write_bytes(pixels)
    sentence = f"the processes find different numbers of images in {machines[0].folder}"
    assert sentence in results[0][2]
    assert f"({NUM_IMAGES}, {NUM_IMAGES - 1}, in the order of ranks)" in results[0][2]
    shutil.move(machines[1].disk / "photos", machines[1].disk / "moved")
    try:
        results = finish(start(machines, "none"))
    finally:
        shutil.move(machines[1].disk / "moved", machines[1].disk / "photos")
    assert "(rank 1, on b)" in results[0][2]


@pytest.mark.long
def test_a_machine_is_lost_and_comes_back(machines):
    """torchrun starts the processes again; each time they continue from the last checkpoint."""
    a, b = machines
    run = a.disk / "elastic"
    first, lost = (start_elastic(machine, a, "elastic") for machine in machines)
    wait_until_saved([first, lost], run)
    b.kill()
    lost.communicate()
    wait_for_processes(first, run, [2, 1])
    second = start_elastic(b, a, "elastic")
    wait_for_processes(first, run, [2, 1, 2])
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
    (_, output, errors), _ = finish([first, second])
    steps = [step for step, _ in smi.Run(run).facts.world_sizes]
    assert steps == sorted(set(steps))
    for step in steps[1:]:
        assert f"resumed    after step {step:,}" in output
    assert "the number of processes changes from 2 to 1, with 16 images on each" in errors
    assert "the number of processes changes from 1 to 2, with 8 images on each" in errors
    assert smi.Run(run).state()["step"] > steps[-1]
    assert not (b.disk / "elastic").exists()


def wait_for_processes(first: "subprocess.Popen[str]", run: Path, numbers: list[int]) -> None:
    """Wait until a run has been continued by these numbers of processes."""
    while [number for _, number in smi.Run(run).facts.world_sizes or []] != numbers:
        assert first.poll() is None, finish([first])
        time.sleep(0.05)
