"""Runs with less memory: smaller batches by themselves, parts, recomputed activations, float16."""

import json

import pytest
import torch

import smi
from smi import device
from smi.errors import UserError
from smi.training import pretrain, session, step
from smi.training.build import recorded_precision
from smi.training.loop import Interrupted
from support.digits import TINY, digits, same_run, tiny
from support.signals import signal_in_step

LARGE = ["--method", "support.homemade.Large", "--epochs", "1"]


def test_a_batch_that_does_not_fit_is_halved(tmp_path, smi_here):
    out = tmp_path / "a"
    result = smi_here(*digits(out, *LARGE))
    assert result.returncode == 0, result.stderr
    for before, after in ((64, 32), (32, 16)):
        sentence = (
            f"runs out of memory with a batch of {before}. Training starts again with {after};"
        )
        assert sentence in result.stderr
    assert "16 on one device; 100 steps in 1 epoch" in result.stdout
    run = smi.Run(out)
    assert run.finished
    assert run.config["batch_size"] == 16
    assert (run.facts.requested_batch_size, run.facts.batch_per_device) == (64, 16)
    assert run.metrics()[-1]["step"] == 100
    again = smi_here(*digits(out, *LARGE))
    assert again.returncode == 0
    assert "is finished: nothing to do" in again.stdout
    direct = tmp_path / "direct"
    assert smi_here(*digits(direct, *LARGE, "--batch-size", "16")).returncode == 0
    same_run(out, direct)


def test_a_run_with_a_halved_batch_is_resumed(tmp_path):
    settings = {
        "method": "support.homemade.Large",
        "encoder": "support.homemade.Net",
        "epochs": 1,
        "batch_size": 64,
        "log.probe_every": 0,
    }

    def pretrain(name, **more):
        return smi.pretrain("digits", out=tmp_path / name, overrides=settings | more)

    with pytest.raises(Interrupted), signal_in_step(13):
        pretrain("a")
    assert smi.Run(tmp_path / "a").state()["step"] == 13
    with pytest.raises(UserError, match="batch_size is 16 in the folder, 48 was requested"):
        pretrain("a", batch_size=48)
    assert pretrain("a").finished
    assert pretrain("whole").finished
    same_run(tmp_path / "whole", tmp_path / "a")
    assert smi.Run(tmp_path / "a").facts.requested_batch_size == 64


def test_several_processes_do_not_try_again_unless_all_know(tmp_path, monkeypatch):
    """One that fails in the real step ends; the others would wait for it in theirs."""

    def fail(parameters):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(session, "world_size", lambda: 2)
    monkeypatch.setattr(step, "gradient_norm", fail)
    with pytest.raises(UserError, match="the first step runs out of memory: use a smaller"):
        tiny(tmp_path / "a")
    assert smi.Run(tmp_path / "a").config["batch_size"] == 64


def test_the_learning_rate_follows_a_halved_batch(tmp_path, smi_here):
    result = smi_here(*digits(tmp_path / "a", *LARGE, "--optimizer.scale_lr", "true"))
    assert "the learning rate follows" in result.stderr
    run = smi.Run(tmp_path / "a")
    assert run.facts.peak_lr[0] == pytest.approx(run.config["optimizer"]["lr"] * 16 / 256)


def test_a_batch_is_not_halved_without_end(tmp_path, smi_here):
    result = smi_here(*digits(tmp_path / "a", *LARGE, "--method.most", "1"))
    assert result.returncode == 2
    assert "runs out of memory with a batch of 4 on 1 device" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("method", ["SMI", "BarlowTwins"])
def test_the_command_trains_in_parts(method, tmp_path, smi_here):
    settings = ["--epochs", "1", "--accumulate", "2", "--method", method]
    result = smi_here(*digits(tmp_path / "a", *settings, "--method.widths", "[16, 16]"))
    assert result.returncode == 0, result.stderr
    assert "64 on one device in 2 parts; 25 steps" in result.stdout
    run = smi.Run(tmp_path / "a")
    assert run.config["accumulate"] == 2
    assert run.metrics()[-1]["step"] == 25


def test_a_method_without_parts_is_refused_before_training(tmp_path, smi_here):
    result = smi_here(*digits(tmp_path / "a", *LARGE, "--accumulate", "2"))
    assert result.returncode == 2
    assert "accumulate 2 needs a method with `embed` and `objective`" in result.stderr


def test_the_command_recomputes_activations(tmp_path, smi_here):
    words = ["pretrain", "digits", "--data.images", "128", "--epochs", "1", *TINY[2:]]
    weights = []
    for name, flags in (("a", ["--checkpoint-activations"]), ("b", [])):
        out = tmp_path / name
        result = smi_here(*words, "--method.widths", "[16, 16]", "--out", str(out), *flags)
        assert result.returncode == 0, result.stderr
        assert smi.Run(out).config["checkpoint_activations"] is bool(flags)
        weights.append((out / "encoder.safetensors").read_bytes())
    assert weights[0] == weights[1]
    refused = smi_here(*digits(tmp_path / "c", "--epochs", "1", "--checkpoint-activations"))
    assert refused.returncode == 2
    assert "Net cannot checkpoint its activations" in refused.stderr


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_in_float16_resumes_to_the_bit(accumulate, tmp_path):
    settings = {"precision": "float16", "log.every": 5, "accumulate": accumulate}
    with pytest.raises(Interrupted), signal_in_step(13):
        tiny(tmp_path / "a", **settings)
    state = smi.Run(tmp_path / "a").state()
    assert state["scaler"]["scale"] <= 2.0**16
    assert tiny(tmp_path / "a", **settings).finished
    assert tiny(tmp_path / "whole", **settings).finished
    same_run(tmp_path / "whole", tmp_path / "a")
    lines = [line for line in smi.Run(tmp_path / "a").lines() if "probe" not in line]
    taken = sum(len(line.get("per_step", {}).get("loss", ())) for line in lines)
    assert taken + sum(line["skipped"] for line in lines) == 25
    assert all(line["scale"] > 0 for line in lines)


def test_a_run_that_is_resumed_on_another_processor_keeps_its_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "trains_faster_in_bfloat16", lambda network: True)
    with pytest.raises(Interrupted), signal_in_step(13):
        tiny(tmp_path / "a", precision="auto")
    assert tiny(tmp_path / "whole", precision="auto").facts.precision == "bfloat16"
    monkeypatch.setattr(device, "trains_faster_in_bfloat16", lambda network: False)
    settings = {"encoder": "support.homemade.Net", "epochs": 1, "method.widths": [8, 8]}
    settings |= {"precision": "auto"}
    plan = pretrain.preview("digits", out=tmp_path / "a", overrides=settings)
    assert plan.text().endswith(", bfloat16")
    assert tiny(tmp_path / "a", precision="auto").facts.precision == "bfloat16"
    same_run(tmp_path / "whole", tmp_path / "a")
    assert tiny(tmp_path / "new", precision="auto").facts.precision == "float32"


def test_a_run_that_a_gpu_began_follows_the_cpu_that_resumes_it(tmp_path):
    run = tiny(tmp_path / "a", precision="bfloat16")
    cpu = torch.device("cpu")
    assert recorded_precision(run, cpu) == "bfloat16"
    assert recorded_precision(run, torch.device("cuda")) is None
    facts = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps(facts | {"device": "NVIDIA A100"}))
    assert recorded_precision(run, cpu) is None
