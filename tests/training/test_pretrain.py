"""Pretrain on the digits through the real entry points, with a network of few weights."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import smi
from smi.cli import main
from smi.errors import UserError
from smi.methods import METHOD_NAMES
from smi.runs.run import Run
from smi.training.plan import next_steps
from support.digits import (
    SMI,
    TESTS,
    WIDTHS,
    command,
    digits,
    environment,
    same,
    same_run,
    tiny,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("runs") / "a"
    return out, command(*digits(out, "--epochs", "2", *WIDTHS))


def test_a_run_leaves_everything_behind(finished):
    out, result = finished
    assert result.returncode == 0, result.stderr
    assert {"config.yaml", "run.json", "metrics.jsonl", "checkpoints", "encoder.safetensors"} <= {
        path.name for path in out.iterdir()
    }
    run = smi.Run(out)
    assert run.finished
    assert "kNN" in repr(run)
    last = run.metrics()[-1]
    assert last["step"] == 50  # 1,614 images, 64 a step, two epochs
    assert {
        "loss",
        "terms",
        "ratio",
        "gradient_norm",
        "feature_std",
        "feature_std_raw",
        "effective_rank",
    } <= last.keys()
    assert {"dependency", "anticorrelated", "lr", "per_step"} <= last.keys()
    assert last["timing"].keys() == {"images_per_second", "waiting", "peak_memory_mb"}
    assert last["terms"].keys() == {"alignment", "redundancy"}
    assert last["ratio"] == pytest.approx(last["terms"]["redundancy"] / last["terms"]["alignment"])
    losses = [value for line in run.metrics() for value in line["per_step"]["loss"]]
    assert len(losses) == 50
    assert losses[-1] < losses[0]
    assert [probe["step"] for probe in run.probes()] == [0, 25, 50]
    assert run.probes()[-1]["probe"]["knn"] > 0.2


def test_without_a_terminal_one_plain_line_per_epoch_is_printed(finished):
    _, result = finished
    lines = [line for line in result.stdout.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    for word in ("epoch 1/2", "loss", "feature std", "kNN", "images/s", "ETA"):
        assert word in lines[0]
    assert all(line.startswith("warning: The encoder") for line in result.stderr.splitlines())


def test_derived_values_are_printed(tmp_path, smi_here):
    result = smi_here(
        *digits(
            tmp_path / "a",
            "--epochs",
            "1",
            *WIDTHS,
            "--optimizer.scale_lr",
            "true",
            "optimizer.lr=0.02",
        )
    )
    assert result.returncode == 0, result.stderr
    assert "peak lr 0.005 = 0.02 × 64/256" in result.stdout
    assert "64 on one device; 25 steps in 1 epoch" in result.stdout


def test_the_encoder_file_has_the_weights_of_the_checkpoint(finished):
    out, _ = finished
    encoder = smi.Run(out).encoder()
    assert not encoder.training
    weights = load_file(out / "encoder.safetensors")
    same(dict(encoder.network.state_dict()), weights)
    assert encoder(torch.zeros(2, 3, 8, 8)).shape == (2, 8)


def test_the_configuration_of_a_run_repeats_it(finished, tmp_path, smi_here):
    out, _ = finished
    result = smi_here("pretrain", str(out / "config.yaml"), "--out", str(tmp_path / "b"))
    assert result.returncode == 0, result.stderr
    same_run(out, tmp_path / "b")


def test_a_finished_run_is_left_alone(finished, smi_here):
    out, _ = finished
    before = (out / "checkpoints" / "last.pt").stat().st_mtime_ns
    result = smi_here(*digits(out, "--epochs", "2", *WIDTHS))
    assert result.returncode == 0
    assert "finished" in result.stdout
    assert (out / "checkpoints" / "last.pt").stat().st_mtime_ns == before


def test_a_different_configuration_is_refused_and_named(finished, smi_here):
    out, _ = finished
    result = smi_here(*digits(out, "--epochs", "3", *WIDTHS, "--optimizer.lr", "0.5"))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "epochs is 2 in the folder, 3 was requested" in result.stderr
    assert "optimizer.lr is 0.001 in the folder, 0.5 was requested" in result.stderr


def test_fresh_moves_the_old_run_aside(finished, tmp_path, smi_here):
    old, _ = finished
    out = tmp_path / "a"
    subprocess.run(["cp", "-r", str(old), str(out)], check=True)
    result = smi_here(*digits(out, "--epochs", "1", *WIDTHS, "--fresh"))
    assert result.returncode == 0, result.stderr
    assert smi.Run(tmp_path / "a.1").metrics()[-1]["step"] == 50
    assert smi.Run(out).metrics()[-1]["step"] == 25


def test_nan_keeps_the_last_good_checkpoint(tmp_path):
    result = command(
        *digits(
            tmp_path / "a",
            "--method",
            "support.homemade.Agreement",
            "--method.fails_at",
            "0.7",
            "--epochs",
            "4",
            "--log.save_every",
            "0.04",
        )
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "nan" in result.stderr.lower()
    state = torch.load(tmp_path / "a" / "checkpoints" / "last.pt", weights_only=True)
    assert state["step"] <= 70
    assert all(value.isfinite().all() for value in state["method"].values())
    for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda constant: pytest.fail(constant))


def test_a_folder_of_images_needs_no_other_flag(tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(40):
        Image.fromarray(generator.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(
            tmp_path / "photos" / f"{i}.png"
        )
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"not a picture")
    result = command(
        *[
            "pretrain",
            "--data",
            str(tmp_path / "photos"),
            "--out",
            str(tmp_path / "a"),
            "--epochs",
            "1",
            "--encoder",
            "support.homemade.Net",
            *WIDTHS,
        ],
        SMI_CACHE=str(tmp_path / "cache"),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("chose recipe cifar10-small for 41 images of 30 px on a CPU")
    assert "no labels to probe with" in result.stdout
    assert (tmp_path / "a" / "bad-files.txt").read_text().startswith("broken.jpg\t")


TWO_PROCESSES = [
    sys.executable,
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "smi"),
]


def test_two_processes_train_together(tmp_path):
    result = command(*digits(tmp_path / "a", "--epochs", "1", *WIDTHS), program=TWO_PROCESSES)
    assert result.returncode == 0, result.stderr
    assert "64 (32 on each of 2 devices)" in result.stdout
    assert result.stdout.count("epoch 1/1") == 1
    assert result.stdout.count("next: smi doctor") == 1
    run = smi.Run(tmp_path / "a")
    assert run.finished
    assert run.metrics()[-1]["step"] == 25
    assert run.facts.world_size == 2
    assert run.facts.world_sizes == [[0, 2]]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_trains_in_the_loop(method, tmp_path, capsys):
    run = smi.pretrain(
        "digits",
        out=tmp_path / "a",
        method=method,
        overrides={"encoder": "support.homemade.Net", "epochs": 1, "data.images": 320},
    )
    (line,) = run.metrics()
    assert run.finished
    assert len(line["per_step"]["loss"]) == 5
    assert run.facts.embedding_dim > 1
    assert f"{method} on digits" in capsys.readouterr().out


def test_a_progress_bar_on_a_terminal(tmp_path):
    leader, follower = pty.openpty()
    arguments = [*SMI, *digits(tmp_path / "a", "--epochs", "2", *WIDTHS)]
    process = subprocess.Popen(
        arguments,
        stdout=follower,
        stderr=follower,
        env=environment(TERM="xterm", COLUMNS="200"),
        cwd=TESTS,
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other side is closed
        while chunk := os.read(leader, 65536):
            shown += chunk
    os.close(leader)
    assert process.wait() == 0
    for word in ("epoch 2/2", "100 %", "loss", "feature std", "kNN", "images/s", "ETA"):
        assert word in shown.decode(), word


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pretrain", "--out", "x"], "name a recipe"),
        (["pretrain", "digits"], "--out"),
        (["pretrain", "digitz", "--out", "x"], "did you mean digits?"),
        (["pretrain", "digits", "--out", "x", "--epoch", "3"], "did you mean --epochs?"),
        (
            ["pretrain", "digits", "--out", "x", "--optimizer.lrr", "3"],
            "did you mean optimizer.lr?",
        ),
        (["pretrain", "digits", "--out", "x", "--method", "none.Such"], "cannot be imported"),
        (["pretrain", "digits", "--out", "x", "--encoder", "resnet5"], "did you mean resnet50?"),
        (["pretrain", "digits", "--out", "x", "--device", "tpu"], "there is no device"),
        (["pretrain", "digits", "--out", "x", "--batch-size", "5000"], "make the batch smaller"),
        (["pretrain", "digits", "--out", "x", "--log-to", "paper"], "there is no logger"),
        (["pretrain", "digits", "--out", "x", "--data", "nowhere"], "nowhere"),
        (["pretrain", "digits", "--out", "x", "--optimizer.lr"], "needs a value"),
        (["doctor", "x", "optimizer.lr=3"], "optimizer.lr"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    arguments, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["smi", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    errors = capsys.readouterr().err
    assert stop.value.code == 2, errors
    assert sentence in errors
    assert len(errors.splitlines()) == 1
    assert list(tmp_path.rglob("metrics.jsonl")) == []


def test_from_python(tmp_path):
    overrides = {
        "encoder": "support.homemade.Net",
        "epochs": 1,
        "batch_size": 128,
        "seed": 3,
        "method.widths": [8, 8],
        "log.every": 5,
    }
    run = smi.pretrain("digits", out=tmp_path / "a", overrides=overrides)
    assert run.folder == tmp_path / "a"
    assert run.finished
    assert run.config["seed"] == 3
    assert run.config["method"]["widths"] == [8, 8]
    with pytest.raises(UserError, match="seed is 3 in the folder, 0 was requested"):
        smi.pretrain("digits", out=tmp_path / "a", overrides=overrides | {"seed": 0})


def test_a_caller_can_ask_for_silence(tmp_path, capsys):
    overrides = {"encoder": "support.homemade.Net", "epochs": 1, "data.images": 128}
    for _ in range(2):  # the second time there is nothing to do
        smi.pretrain("digits", out=tmp_path / "a", overrides=overrides, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_arguments_take_precedence_over_overrides(tmp_path):
    overrides = {"encoder": "support.homemade.Net", "epochs": 1, "data.images": 128}
    run = smi.pretrain(
        "digits",
        out=tmp_path / "a",
        data="digits",
        method="SimCLR",
        overrides=overrides | {"method": "SMI", "data": "cifar10"},
        quiet=True,
    )
    assert run.config["method"]["name"] == "SimCLR"
    assert run.config["data"]["source"] == "digits"


def test_json_is_alone_on_stdout(finished):
    out, _ = finished
    result = command(*digits(out, "--epochs", "2", *WIDTHS, "--json"), FORCE_COLOR="1")
    outcome = json.loads(result.stdout)
    assert (outcome["folder"], outcome["status"], outcome["epochs"]) == (str(out), "finished", 2)
    assert Path(outcome["encoder"]).is_file()
    assert outcome["probe"] == Run(out).probes()[-1]["probe"]


def test_the_next_steps_of_a_finished_run_are_printed(finished, tmp_path):
    out, result = finished
    assert result.stdout.endswith(f"{next_steps(Run(out))}\n")
    assert f"next: smi doctor {out}, smi evaluate {out}" in result.stdout
    (tmp_path / "config.yaml").write_text((out / "config.yaml").read_text())
    assert next_steps(Run(tmp_path)) == ""


def test_a_mistake_does_not_take_the_folder(tmp_path):
    for wrong in (
        {"encoder.widht": 4},
        {"method.widths": [0]},
        {"method.eps": 5.0},
        {"batch_size": 1},
        {"optimizer.momentum": 1.5},
    ):
        with pytest.raises(UserError):
            tiny(tmp_path / "a", **wrong)
    assert tiny(tmp_path / "a").finished


def photographs(folder: Path) -> None:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for i in range(20):
        Image.fromarray(pixels).save(folder / f"{i}.png")


def test_labelled_images_without_a_held_out_one_are_not_probed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smi.data.folders.is_held_out", lambda path: False)
    for label in ("one", "two"):
        photographs(tmp_path / "photos" / label)
    assert smi.pretrain(
        data=tmp_path / "photos",
        out=tmp_path / "a",
        overrides={"encoder": "support.homemade.Net", "epochs": 1, "method.widths": [8, 8]},
    ).finished
    assert "no held-out images to probe with" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["2024-01-01", "010", "12:30", "a #b", "no", "@photos", "x=y"])
def test_a_folder_of_any_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / name)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "smi",
            "pretrain",
            "--data",
            name,
            "--out",
            "lr=0.1",
            "--encoder",
            "support.homemade.Net",
            "--epochs",
            "1",
        ],
    )
    main()
    assert smi.Run(tmp_path / "lr=0.1").config["data"]["source"] == str(tmp_path / name)


def test_the_configuration_is_readable(finished):
    out, _ = finished
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"]["name"] == "SMI"
    assert config["encoder"] == {"name": "support.homemade.Net"}


def test_a_number_of_steps_instead_of_epochs(tmp_path, smi_here):
    """Two and a half epochs: schedule, last checkpoint and diagnosis count in steps."""
    settings = {"encoder": "support.homemade.Net", "method.widths": [8, 8], "data.images": 512}
    settings |= {"batch_size": 128, "optimizer.warmup_epochs": 1.0, "log.every": 1}
    run = smi.pretrain("digits", out=tmp_path / "a", overrides=settings | {"steps": 10}, quiet=True)
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert run.facts.steps == 10
    assert run.facts.epochs == 2.5
    rates = [line["lr"] for line in lines]
    assert rates.index(max(rates)) == 4  # after a warm-up of an epoch, which is 4 steps
    assert rates[-1] < 0.1 * max(rates)  # the schedule ends with the run
    assert smi.load(run).about["epoch"] == 2.5
    assert "of 2.5" in smi.diagnose(run).text()
    refused = smi_here("pretrain", "digits", "--out", tmp_path / "b", "--steps", 3, "--epochs", 2)
    assert (refused.returncode, "not both" in refused.stderr) == (2, True)
    refused = smi_here("pretrain", "digits", "--out", tmp_path / "b", "--steps", 3, "--time", "1m")
    assert (refused.returncode, "not both" in refused.stderr) == (2, True)
