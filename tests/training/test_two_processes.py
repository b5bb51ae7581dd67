"""Train by two real processes: commands, stop and resume, and an error on rank 0."""

import os
import signal
import socket
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import yaml

import smi
from smi import device
from smi.data.subset import Subset
from smi.errors import UserError
from smi.training import images, pretrain
from smi.training.signals import Interrupted
from support.digits import WIDTHS, digits, same_run, tiny
from support.homemade import Agreement
from support.two_processes import finish, is_rank_0, run_together, start_two

PUBLISHED = {
    "data": {"source": "digits"},
    "views": {"policy": "digits", "size": 8},
    "method": "SMI",
    "encoder": {"name": "support.homemade.Net"},
    "optimizer": {"name": "AdamW", "lr": 1e-3, "weight_decay": 1e-4},
    "epochs": 1,
    "batch_size": 64,
    "as_published": {
        "BarlowTwins": {
            "optimizer": {"name": "LARS", "lr": 0.2, "lr_vectors": 0.0048, "weight_decay": 1e-6},
            "method": {"widths": [8, 8]},
        }
    },
}


FEW = ["--epochs", "1", "--data.images", "128", "--log.probe_every", "0"]
COMMANDS = {
    "synchronised": ["--method", "BarlowTwins", *WIDTHS],
    "switched on": ["--sync-batch-norm", "true", *WIDTHS],
    "switched off": ["--method", "BarlowTwins", "--sync-batch-norm", "false", *WIDTHS],
    "parts": ["--accumulate", "2", *WIDTHS],
    "halved": ["--method", "support.homemade.Large"],
}


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Return the folder of the runs, and what each command prints."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = folder / "mine.yaml"
    recipe.write_text(yaml.safe_dump(PUBLISHED))
    words = {name: digits(folder / name, *FEW, *more) for name, more in COMMANDS.items()}
    words["published"] = ["pretrain", recipe, "--method", "BarlowTwins", "--published"]
    words["published"] += ["--out", folder / "published"]
    return folder, dict(zip(words, run_together(*words.values()), strict=True))


@pytest.mark.parametrize("name", ["synchronised", "switched on", "switched off"])
def test_batch_norms(name, commands):
    folder, said = commands
    sentence = "64 (32 on each of 2 devices, batch norm synchronised over 2 devices)"
    assert (sentence in said[name].stdout) == (name != "switched off")
    network = smi.load(folder / name).network
    assert network.norm.num_batches_tracked == 4  # two views, two steps


def test_a_batch_in_parts(commands):
    folder, said = commands
    assert "64 (32 on each of 2 devices in 2 parts)" in said["parts"].stdout
    assert smi.Run(folder / "parts").finished


def test_a_batch_that_does_not_fit_is_halved_by_both(commands):
    folder, said = commands
    assert said["halved"].stderr.count("Training starts again with 32;") == 1
    assert "32 (16 on each of 2 devices)" in said["halved"].stdout
    run = smi.Run(folder / "halved")
    assert (run.config["batch_size"], run.facts.requested_batch_size) == (32, 64)


def test_barlow_twins_as_published(commands):
    folder, said = commands
    assert "mine.yaml, as published: BarlowTwins on digits" in said["published"].stdout
    assert "peak lr 0.2, 0.0024 for biases and norms" in said["published"].stdout
    run = smi.Run(folder / "published")
    assert run.facts.peak_lr == [0.2, 0.0024]
    assert run.config["published"] is True


def train(out: Path) -> smi.Run:
    return smi.pretrain(
        "digits",
        out=out,
        method="support.homemade.Agreement",
        overrides={
            "encoder": "support.homemade.Net",
            "epochs": 1,
            "log.every": 5,
            "log.probe_images": 100,
            "log.probe_every": 0.5,
        },
    )


def call_in_step(step: int, action) -> None:
    """Call `action` in the forward pass of a step."""
    forward = Agreement.forward

    def forward_and_act(self, views, batch):
        if round(self.progress * 25) == step:
            action()
        return forward(self, views, batch)

    Agreement.forward = forward_and_act


def fail(*arguments: object, **settings: object) -> None:
    raise RuntimeError("a bug on rank 0")


def stop_and_resume(folder: Path) -> None:
    """Train without a stop; stop rank 1 alone; resume, with a checkpoint that only rank 0 reads."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    train(folder / "whole")
    forward = Agreement.forward
    if not is_rank_0():
        call_in_step(11, lambda: os.kill(os.getpid(), signal.SIGTERM))
        pretrain.load_checkpoint = lambda path: pytest.fail("rank 1 reads a checkpoint")
    try:
        train(folder / "cut")
    except Interrupted as stop:
        print("stopped", stop.step, stop.exit_code, smi.Run(folder / "cut").state()["step"])
    Agreement.forward = forward
    train(folder / "cut")
    dist.destroy_process_group()


def fail_in_probe(folder: Path) -> None:
    images.knn_accuracy = fail
    train(folder / "run")


def finish_run(folder: Path) -> None:
    train(folder / "run")
    print("left", *threads())


def interrupt_run(folder: Path) -> None:
    call_in_step(11, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        train(folder / "run")
    except Interrupted:
        print("left", *threads())


def disagree(folder: Path) -> None:
    """Train with images, and then with a folder, that only one of the processes has."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    train(folder / "run")
    read = images.load
    if not is_rank_0():
        images.load = refuse
    complain(folder / "a")
    if not is_rank_0():
        images.load = lambda *words, **more: Subset(read(*words, **more), torch.arange(100))
    complain(folder / "a")
    images.load = read
    complain(folder / ("nothing" if is_rank_0() else "run"))
    dist.destroy_process_group()


def refuse(*words: object, **more: object) -> None:
    raise UserError("there are no photos here")


def complain(out: Path) -> None:
    try:
        train(out)
    except UserError as error:
        print("refused:", error)


def threads() -> list[str]:
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def differ_in_precision(folder: Path) -> None:
    """Train where only the processor of rank 0 computes in bfloat16, and where both do."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    for name, has_instructions in (("mixed", is_rank_0()), ("same", True)):
        with patch.object(device, "trains_faster_in_bfloat16", return_value=has_instructions):
            tiny(folder / name, precision="auto", **{"data.images": 128, "log.probe_every": 0})
    dist.destroy_process_group()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        stop_and_resume,
        fail_in_probe,
        finish_run,
        interrupt_run,
        disagree,
        differ_in_precision,
    )
}


def test_a_signal_to_one_process_stops_both_after_a_checkpoint(tmp_path):
    results = finish(start_two(__file__, "stop_and_resume", tmp_path))
    for code, output, errors in results:
        assert code == 0, errors
        # The signal came in the twelfth step. The next line of metrics is that of step 15.
        assert f"stopped 15 {128 + signal.SIGTERM} 15" in output
    assert "stopped after step 15 of 25" in results[0][1]
    assert "resumed    after step 15" in results[0][1]
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_an_error_on_rank_0_ends_both_processes(tmp_path):
    """The group would wait for a day; the processes end as soon as one of them has failed."""
    (code, _, errors), (other, _, _) = finish(start_two(__file__, "fail_in_probe", tmp_path))
    assert code == 1
    assert "a bug on rank 0" in errors
    assert other != 0
    assert not smi.Run(tmp_path / "run").finished


@pytest.mark.long
def test_what_one_process_lacks_is_said_by_both(tmp_path):
    for code, output, errors in finish(start_two(__file__, "disagree", tmp_path)):
        assert code == 0, errors
        said = [line for line in output.splitlines() if line.startswith("refused:")]
        machine = socket.gethostname()
        assert said[0] == f"refused: there are no photos here (rank 1, on {machine})"
        assert "different numbers of images in digits (1614, 100, in the order of ranks)" in said[1]
        assert f"has a checkpoint on {machine} and none on {machine}, which is rank 0" in said[2]
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "nothing").exists()


def test_processors_that_differ_train_in_float32(tmp_path):
    for code, _, errors in finish(start_two(__file__, "differ_in_precision", tmp_path)):
        assert code == 0, errors
    assert smi.Run(tmp_path / "mixed").facts.precision == "float32"
    assert smi.Run(tmp_path / "same").facts.precision == "bfloat16"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads have names on Linux")
@pytest.mark.long
@pytest.mark.parametrize("scenario", ["finish_run", "interrupt_run"])
def test_no_thread_of_the_process_group_is_left(scenario, tmp_path):
    """One that drops a tensor while Python shuts down would abort the process."""
    for code, output, errors in finish(start_two(__file__, scenario, tmp_path)):
        assert code == 0, errors
        (left,) = [line for line in output.splitlines() if line.startswith("left")]
        assert "gloo" not in left


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
