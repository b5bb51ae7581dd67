"""Train with the optimizer settings of methods as published, through real runs on the digits."""

import os
import signal
import sys

import pytest
import torch

import smi
from smi.cli import main
from smi.config.resolve import resolve
from smi.errors import UserError
from smi.methods import METHOD_NAMES, create_method
from smi.optim import LARC
from smi.training import build
from smi.training.signals import Interrupted
from support.digits import same_run, tiny
from support.tiny import encoder


def peak_rates(name: str, *, published: bool = True) -> list[float]:
    config = resolve("imagenet", {"method": name, "published": published, "method.widths": [8, 8]})
    method = create_method(name, encoder(), widths=(8, 8))
    return [group["peak_lr"] for group in build.build_optimizer(config, method).param_groups]


def test_biases_of_barlow_twins_on_several_devices(monkeypatch):
    assert peak_rates("BarlowTwins") == pytest.approx([1.6, 0.0384])
    monkeypatch.setattr(build, "world_size", lambda: 8)
    assert peak_rates("BarlowTwins") == pytest.approx([1.6, 0.0048])
    assert peak_rates("BarlowTwins", published=False) == pytest.approx([1.6, 0.0384])
    assert peak_rates("SMI") == pytest.approx([1.6, 0.0384])
    assert peak_rates("VICReg") == pytest.approx([1.6, 1.6])


SETTINGS = {
    "optimizer.name": "LARC",
    "optimizer.lr": 0.5,
    "optimizer.decay_vectors": True,
    "optimizer.final_weight_decay": 0.1,
    "optimizer.constant_lr": "predictor",
    "optimizer.clip": 0.01,
    "method": "SimSiam",
    "log.save_every": 1000,
}


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, monkeypatch, capsys):
    whole = tiny(tmp_path / "whole", **SETTINGS)
    said = capsys.readouterr().out
    assert "constant for predictor, weight decay 0.0001 to 0.1" in said
    assert "gradients clipped at 0.01" in said
    groups = whole.state()["optimizer"]["param_groups"]
    assert [group["constant_lr"] for group in groups] == [False, False, True, True]
    assert all(group["lr"] < 0.01 for group in groups[:2])
    assert all(group["lr"] == 0.5 for group in groups[2:])
    assert all(0.09 < group["weight_decay"] < 0.1 for group in groups)

    steps = []
    original = LARC.step

    def step(self, closure=None):
        steps.append(max(p.grad.norm().item() for g in self.param_groups for p in g["params"]))
        if len(steps) == 13:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, closure)

    with monkeypatch.context() as patch:
        patch.setattr(LARC, "step", step)
        with pytest.raises(Interrupted):
            tiny(tmp_path / "a", **SETTINGS)
    assert max(steps) == pytest.approx(0.01, rel=1e-3)  # clipped
    assert whole.metrics()[0]["gradient_norm"] > 0.02  # logged before that
    assert tiny(tmp_path / "a", **SETTINGS).finished
    same_run(tmp_path / "whole", tmp_path / "a")


def test_a_part_that_the_method_does_not_have(tmp_path):
    with pytest.raises(UserError, match=r"BYOL has no part 'teacher'; .* encoder, projector, pred"):
        tiny(tmp_path / "a", **{"method": "BYOL", "optimizer.constant_lr": "[teacher]"})


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_takes_steps_as_published(name, tmp_path, capsys):
    """Only the sizes differ from the recipe for ImageNet."""
    small = {
        "encoder": "support.homemade.Net",
        "data": "digits",
        "data.images": 128,
        "data.resolution": None,
        "views.size": 16,
        "batch_size": 32,
        "optimizer.warmup_epochs": 0,
        "epochs": 1,
        "log.every": 1,
        "log.probe_every": 0,
    }
    sizes = {
        "MoCo": {"method.queue_size": 64},
        "MoCoV2": {"method.queue_size": 64, "method.widths": [16, 8]},
        "SwAV": {"method.num_prototypes": 16, "method.widths": [16, 8]},
        "DINO": {"method.num_outputs": 32, "method.widths": [16, 16, 8]},
        "PIRL": {"method.num_negatives": 64},
    }
    run = smi.pretrain(
        "imagenet",
        out=tmp_path / "a",
        method=name,
        published=True,
        overrides=small | sizes.get(name, {"method.widths": [16, 8]}),
    )
    assert run.finished
    losses = [line["loss"] for line in run.metrics()]
    assert len(losses) == 4
    assert torch.tensor(losses).isfinite().all()
    assert f"recipe imagenet, as published: {name} on digits" in capsys.readouterr().out


def test_the_command_line_takes_it(tmp_path, monkeypatch, capsys):
    words = ["smi", "pretrain", "digits", "--published", "--out", str(tmp_path / "a")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "digits does not say how methods are published" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
