"""Pretraining through its real entry points: on the digits, with a network of a few hundred weights."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import smi
from smi.cli import main
from smi.errors import TrainingError, UserError
from smi.health import diagnose
from smi.methods import METHOD_NAMES
from smi.training import loop as train
from smi.training.signals import Interrupted

TESTS = Path(__file__).parents[1]
SMI = [str(Path(sys.executable).with_name("smi"))]
TINY = ["--encoder", "support.homemade.Net", "--batch-size", "64", "--log.probe_images", "200"]
WIDTHS = ["--method.widths", "[16, 16]"]


@pytest.fixture(autouse=True)
def _one_thread_and_our_modules(monkeypatch):
    """Networks this small only wait for a second thread."""
    monkeypatch.syspath_prepend(TESTS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"} | more


def command(
    *arguments: str, program: list[str] = SMI, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment(**more),
        cwd=TESTS,
    )


def digits(out: Path, *arguments: str) -> list[str]:
    return ["pretrain", "digits", "--out", str(out), *TINY, *arguments]


def same(a: object, b: object, where: str = "") -> None:
    """To the bit."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def same_run(a: Path, b: Path) -> None:
    states = [
        torch.load(folder / "checkpoints" / "last.pt", weights_only=True) for folder in (a, b)
    ]
    for state in states:
        del state["journal"]["position"]  # lengths of lines differ with the time they tell
    same(*states)
    lines = [[{**line, "timing": None} for line in smi.Run(folder).lines()] for folder in (a, b)]
    same(*lines)


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
    assert [probe["step"] for probe in run.probes()] == [25, 50]
    assert run.probes()[-1]["probe"]["knn"] > 0.2


def test_one_plain_line_per_epoch_where_there_is_no_terminal(finished):
    _, result = finished
    lines = [line for line in result.stdout.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    for word in ("epoch 1/2", "loss", "feature std", "kNN", "images/s", "ETA"):
        assert word in lines[0]
    assert result.stderr == ""


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
    assert "64 on one device; 25 steps in 1 epochs" in result.stdout


def test_the_encoder_comes_back(finished):
    out, _ = finished
    encoder = smi.Run(out).encoder()
    assert not encoder.training
    weights = load_file(out / "encoder.safetensors")
    same(dict(encoder.network.state_dict()), weights)
    assert encoder(torch.zeros(2, 3, 8, 8)).shape == (2, 8)


def test_its_configuration_repeats_it(finished, tmp_path, smi_here):
    out, _ = finished
    result = smi_here("pretrain", str(out / "config.yaml"), "--out", str(tmp_path / "b"))
    assert result.returncode == 0, result.stderr
    same_run(out, tmp_path / "b")


def test_again_when_finished_is_nothing_to_do(finished, smi_here):
    out, _ = finished
    before = (out / "checkpoints" / "last.pt").stat().st_mtime_ns
    result = smi_here(*digits(out, "--epochs", "2", *WIDTHS))
    assert result.returncode == 0
    assert "finished" in result.stdout
    assert (out / "checkpoints" / "last.pt").stat().st_mtime_ns == before


def test_another_configuration_is_refused_and_named(finished, smi_here):
    out, _ = finished
    result = smi_here(*digits(out, "--epochs", "3", *WIDTHS, "--optimizer.lr", "0.5"))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "epochs: 2 there, 3 asked" in result.stderr
    assert "optimizer.lr: 0.001 there, 0.5 asked" in result.stderr


def test_fresh_moves_the_old_run_aside(finished, tmp_path, smi_here):
    old, _ = finished
    out = tmp_path / "a"
    subprocess.run(["cp", "-r", str(old), str(out)], check=True)
    result = smi_here(*digits(out, "--epochs", "1", *WIDTHS, "--fresh"))
    assert result.returncode == 0, result.stderr
    assert smi.Run(tmp_path / "a.1").metrics()[-1]["step"] == 50
    assert smi.Run(out).metrics()[-1]["step"] == 25


def test_killed_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    """kill -9, whatever it is doing; with dropout, a teacher and a queue, so that they count too."""
    method, cuts = ["MoCoV2", "--method.queue_size", "128", "--method.widths", "[16, 8]"], (3, 9)
    settings = [
        "--method",
        *method,
        "--epochs",
        "6",
        "--encoder.drop",
        "0.1",
        "--log.save_every",
        "0.1",
        "--log.every",
        "7",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert command(*digits(whole, *settings)).returncode == 0
    kills = 0
    for lines in cuts:
        process = subprocess.Popen(
            [*SMI, *digits(cut, *settings)],
            env=environment(),
            cwd=TESTS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        metrics = cut / "metrics.jsonl"
        while process.poll() is None and not (
            metrics.is_file() and metrics.read_bytes().count(b"\n") >= lines
        ):
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= len(cuts) - 1
    result = command(*digits(cut, *settings))
    assert result.returncode == 0, result.stderr
    assert "resumed    after step" in result.stdout
    same_run(whole, cut)
    assert (whole / "encoder.safetensors").read_bytes() == (
        cut / "encoder.safetensors"
    ).read_bytes()


def test_a_signal_leaves_a_checkpoint_of_that_step(tmp_path):
    number = signal.SIGTERM
    settings = [*WIDTHS, "--epochs", "40", "--log.save_every", "1000", "--log.every", "7"]
    process = subprocess.Popen(
        [*SMI, *digits(tmp_path / "a", *settings)],
        env=environment(),
        cwd=TESTS,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "a" / "metrics.jsonl"
    while process.poll() is None and not (
        metrics.is_file() and metrics.read_bytes().count(b"\n") >= 3
    ):
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "the same command goes on from there" in output
    state = torch.load(tmp_path / "a" / "checkpoints" / "last.pt", weights_only=True)
    assert f"stopped after step {state['step']:,} of 1,000" in output
    logged = sum(len(line["per_step"]["loss"]) for line in smi.Run(tmp_path / "a").metrics())
    assert state["step"] == logged + len(
        state["journal"]["pending"].get("loss", ())
    )  # nothing is lost between two lines


@pytest.mark.parametrize("failing", ["fails_at", "gradient_fails_at"])
@pytest.mark.parametrize("log_every", [7, 1000])
@pytest.mark.parametrize("probe_every", [0, 0.2])
def test_what_is_not_finite_is_never_saved(failing, log_every, probe_every, tmp_path, capsys):
    """Whether it is met by a line of metrics, a probe or a checkpoint."""
    settings = {
        f"method.{failing}": 0.5,
        "log.every": log_every,
        "log.save_every": 0.04,
        "log.probe_every": probe_every,
    }
    with pytest.raises(TrainingError, match="NaN or infinite"):
        smi.pretrain(
            "digits",
            out=tmp_path / "a",
            method="support.homemade.Agreement",
            encoder="support.homemade.Net",
            epochs=2,
            batch_size=64,
            settings=settings,
        )
    if (tmp_path / "a" / "checkpoints" / "last.pt").is_file():
        state = torch.load(tmp_path / "a" / "checkpoints" / "last.pt", weights_only=True)
        assert state["step"] <= 25
        assert all(value.isfinite().all() for value in state["method"].values())
    capsys.readouterr()
    said = diagnose(tmp_path / "a").text()
    assert "NaN or infinite" in said
    assert "ok       Every loss is a finite number" not in said


def test_nan_stops_behind_the_last_good_checkpoint(tmp_path):
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


def test_a_folder_of_photographs_needs_no_other_flag(tmp_path):
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


def test_two_processes_train_together(tmp_path, smi_here):
    program = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "smi",
    ]
    result = command(*digits(tmp_path / "a", "--epochs", "1", *WIDTHS), program=program)
    assert result.returncode == 0, result.stderr
    assert "64 (32 on each of 2 devices)" in result.stdout
    assert result.stdout.count("epoch 1/1") == 1
    run = smi.Run(tmp_path / "a")
    assert run.finished
    assert run.metrics()[-1]["step"] == 25
    assert run.about["world_size"] == 2
    refused = smi_here(*digits(tmp_path / "a", "--epochs", "1", *WIDTHS))
    assert refused.returncode == 2
    assert "world_size: 2 there, 1 now" in refused.stderr


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_trains_in_the_loop(method, tmp_path, capsys):
    run = smi.pretrain(
        "digits",
        out=tmp_path / "a",
        method=method,
        encoder="support.homemade.Net",
        epochs=1,
        settings={"data.images": 320},
    )
    (line,) = run.metrics()
    assert run.finished
    assert len(line["per_step"]["loss"]) == 5
    assert run.about["embedding_dim"] > 1
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
        (["pretrain", "digits", "--out", "x", "--data", "nowhere"], "there is no set or folder"),
        (["pretrain", "digits", "--out", "x", "--optimizer.lr"], "needs a value"),
        (["cost", "optimizer.lr=3"], "optimizer.lr"),
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


def test_from_python(tmp_path, capsys):
    run = smi.pretrain(
        "digits",
        out=tmp_path / "a",
        encoder="support.homemade.Net",
        epochs=1,
        batch_size=128,
        seed=3,
        settings={"method.widths": [8, 8], "log.every": 5},
    )
    assert run.folder == tmp_path / "a"
    assert run.finished
    assert run.config["seed"] == 3
    assert run.config["method"]["widths"] == [8, 8]
    with pytest.raises(UserError, match="seed: 3 there, 0 asked"):
        smi.pretrain(
            "digits",
            out=tmp_path / "a",
            encoder="support.homemade.Net",
            epochs=1,
            batch_size=128,
            settings={"method.widths": [8, 8], "log.every": 5},
        )


def tiny(out, **settings):
    return smi.pretrain(
        "digits",
        out=out,
        encoder="support.homemade.Net",
        epochs=1,
        settings={"method.widths": [8, 8], **settings},
    )


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


def test_killed_while_it_was_set_up(tmp_path):
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "config.yaml.partial").write_text("half")
    assert tiny(tmp_path / "a").finished


def test_metrics_shorter_than_the_checkpoint_says(tmp_path):
    """A machine that loses power may keep the one and not the other."""
    with pytest.raises(Interrupted), monkeypatched_signal():
        tiny(tmp_path / "a", **{"log.every": 5})
    metrics = tmp_path / "a" / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[: len(whole) // 2])
    run = tiny(tmp_path / "a", **{"log.every": 5})
    assert run.finished
    assert b"\0" not in metrics.read_bytes()


@contextlib.contextmanager
def monkeypatched_signal():
    """SIGTERM in the middle of a step."""
    original, steps = train.gradient_norm, []

    def norm(parameters):
        steps.append(1)
        if len(steps) == 13:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(parameters)

    train.gradient_norm = norm
    try:
        yield
    finally:
        train.gradient_norm = original


def photographs(folder: Path) -> None:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for i in range(20):
        Image.fromarray(pixels).save(folder / f"{i}.png")


def test_labelled_images_of_which_none_is_held_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smi.data.folders.is_held_out", lambda path: False)
    for label in ("one", "two"):
        photographs(tmp_path / "photos" / label)
    settings = {"method.widths": [8, 8]}
    assert smi.pretrain(
        data=tmp_path / "photos",
        out=tmp_path / "a",
        encoder="support.homemade.Net",
        epochs=1,
        settings=settings,
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


def test_a_folder_that_is_something_else_is_left_alone(tmp_path, smi_here):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "letter.txt").write_text("dear")
    result = smi_here(*digits(tmp_path / "notes", *WIDTHS))
    assert result.returncode == 2
    assert "is no run" in result.stderr
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["letter.txt"]


def test_the_configuration_is_readable(finished):
    out, _ = finished
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"]["name"] == "SMI"
    assert config["encoder"] == {"name": "support.homemade.Net"}
