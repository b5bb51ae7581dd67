"""Average weights instead of gradients (average_every), by two real processes."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

import smi
from smi.config.resolve import resolve
from smi.data import Batches, load
from smi.distributed import processes
from smi.errors import UserError
from smi.nn.weights import digest_of
from smi.optim import lr_factor, set_schedules
from smi.runs.restore import build_method, build_views
from smi.training import loop
from smi.training.build import build_optimizer
from smi.training.signals import Interrupted
from smi.training.step import Step, check_averaging
from support.digits import same, tiny
from support.tiny import make
from support.two_processes import finish, is_rank_0, start_two

NUM_STEPS = 25
SETTINGS = {"batch_size": 64, "log.every": 5, "log.probe_images": 100, "log.probe_every": 0.4}
GATHERING = ("BarlowTwins", "VICReg", "SimCLR", "MoCo", "MoCoV2", "SwAV", "DINO", "PIRL")
STOPPED_IN = 11  # the step in which a signal arrives


class Recorded(Step):
    """Print the digest of all weights after each step, with batch norm statistics if averaged."""

    def __call__(self, step, views, batch):
        taken = super().__call__(step, views, batch)
        state = dict(self._method.named_parameters())
        if self._config.average_every > 1:
            state = self._method.state_dict()
        print("after", step + 1, digest_of(state))
        if step == STOPPED_IN and Recorded.signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        return taken

    signalled = False


def train_all(folder: Path) -> None:
    """Train with weights averaged in each step, then every four; stop rank 1 and resume."""
    loop.Step = Recorded
    for name, every in (("one", 1), ("four", 4)):
        print("=====", name)
        tiny(folder / name, average_every=every, **SETTINGS)
    print("=====", "cut")
    Recorded.signalled = not is_rank_0()
    try:
        tiny(folder / "cut", average_every=4, **SETTINGS)
    except Interrupted as stop:
        print("stopped", stop.step)
    Recorded.signalled = False
    tiny(folder / "cut", average_every=4, **SETTINGS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of the runs, and what each rank prints of them."""
    folder = tmp_path_factory.mktemp("runs")
    results = finish(start_two(__file__, folder))
    for code, _, errors in results:
        assert code == 0, errors
    return folder, [output.split("=====")[1:] for _, output, _ in results]


def digests(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("after")]


@pytest.mark.parametrize(("run", "every"), [(0, 1), (1, 4)])
def test_weights_are_equal_after_the_steps_that_average(run, every, runs):
    _, (first, second) = runs
    pairs = zip(digests(first[run]), digests(second[run]), strict=True)
    equal = [step for step, (a, b) in enumerate(pairs, start=1) if a == b]
    probes = range(10, NUM_STEPS, 10)  # 0.4 epochs
    averaged = {*range(every, NUM_STEPS + 1, every), *probes, NUM_STEPS}
    assert equal == sorted(averaged)


def test_the_plan_names_it(runs):
    _, (first, _) = runs
    sentence = "averaging  of weights and optimizer every 4 steps, before probes and before"
    assert [sentence in output for output in first] == [False, True, True]


def test_a_stopped_run_resumes_to_the_bit(runs):
    """The line of metrics in which processes agree is that of step 15; weights are equal at 16."""
    folder, outputs = runs
    assert all("stopped 16" in output[2] for output in outputs)
    states = [smi.Run(folder / name).state() for name in ("four", "cut")]
    for name in ("step", "method", "optimizer"):
        same(states[0][name], states[1][name])


def test_it_is_local_training_with_averages(runs):
    """Two networks take turns in one process; the steps are those of a plain loop."""
    folder, _ = runs
    config = smi.Run(folder / "four").resolve()
    images = load("digits", "pretrain")
    pairs = []
    for rank in range(2):
        method = build_method(config, len(images), None)
        batches = Batches(images, 32, seed=config.seed, rank=rank, world_size=2)
        pairs.append((method, build_optimizer(config, method), batches))
    views = build_views(config, pairs[0][0])
    for step in range(NUM_STEPS):
        for method, optimizer, batches in pairs:
            progress = step / NUM_STEPS
            set_schedules(optimizer, progress, lr_factor("cosine", progress, warmup=0, final=0))
            batch = batches.batch(step)
            x = views(batch.images, batch.generator())
            optimizer.zero_grad()
            method(x, batch).loss.backward()
            optimizer.step()
        if (step + 1) % 4 == 0 or (step + 1) % 10 == 0:
            average(*(method.state_dict() for method, _, _ in pairs))
            for a, b in zip(*(optimizer.state.values() for _, optimizer, _ in pairs), strict=True):
                average(a, b)
    average(*(method.state_dict() for method, _, _ in pairs))
    expected = pairs[0][0].state_dict()
    trained = smi.Run(folder / "four").state()["method"]
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def average(first: dict, second: dict) -> None:
    """Give two states their mean, in place."""
    for name in first:
        if first[name].is_floating_point():
            mean = (first[name] + second[name]) / 2
            first[name].copy_(mean)
            second[name].copy_(mean)


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", GATHERING)
def test_a_loss_that_needs_other_devices_is_refused(name):
    config = resolve("digits", {"average_every": 4})
    with pytest.raises(UserError, match=f"and the loss of {name} needs those of other devices"):
        check_averaging(make(name), config, "float32")


@pytest.mark.parametrize("name", ["BYOL", "SimSiam"])
def test_synchronised_batch_norms_are_refused(name):
    config = resolve("digits", {"average_every": 4})
    with pytest.raises(UserError, match="batch norms are synchronised"):
        check_averaging(make(name), config, "float32")
    config = resolve("digits", {"average_every": 4, "sync_batch_norm": False})
    check_averaging(make(name), config, "float32")


def test_float16_is_refused():
    config = resolve("digits", {"average_every": 4})
    check_averaging(make("SMI"), config, "bfloat16")
    with pytest.raises(UserError, match="skip other steps in float16"):
        check_averaging(make("SMI"), config, "float16")


def test_the_command_refuses_a_method_with_one_sentence(tmp_path, smi_here):
    words = ["pretrain", "digits", "--method", "SimCLR", "--average-every", "4"]
    refused = smi_here(*words, "--out", tmp_path / "a")
    assert refused.returncode == 2
    assert refused.stderr == (
        "smi: average_every 4 lets every device take steps of its own, and the loss of SimCLR "
        "needs those of other devices: use average_every 1\n"
    )


if __name__ == "__main__":
    with processes(torch.device("cpu")):
        train_all(Path(sys.argv[1]))
