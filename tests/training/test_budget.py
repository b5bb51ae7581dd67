"""Fit runs into a time: what fits, what is recorded, and how such a run resumes."""

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import smi
from smi.comparison.compare import compare
from smi.config.resolve import resolve
from smi.errors import UserError
from smi.training import budget, pretrain
from smi.training.budget import (
    Pace,
    fit,
    lateness,
    parse_time,
    seconds_to_fill,
    seconds_to_time,
    steps_within,
)
from smi.training.signals import Interrupted
from support.digits import digits, same_run
from support.homemade import Net
from support.quick import make_quick
from support.signals import signal_in_step
from support.two_processes import run_together

NET = {"encoder": "support.homemade.Net", "method.widths": [8, 8], "batch_size": 64}
CPU = torch.device("cpu")
STEPS_PER_EPOCH = 25  # of 1,614 digits


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172_800), ("1e1m", 600)],
)
def test_times(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "30", "30 min", "-1h", "0s", "nanm", "infd", "1w"])
def test_times_that_are_none(text):
    with pytest.raises(UserError, match=r"--time must be a number with s, m, h or d, such as 30m"):
        parse_time(text)


@pytest.mark.parametrize(
    ("seconds", "timed"), [(10, 1), (30, 3), (60, 3), (150, 3), (1800, 36), (7200, 60)]
)
def test_steps_are_timed_for_a_share_of_the_time(seconds, timed):
    assert seconds_to_time(seconds) == pytest.approx(timed)


def seconds_of(config, pace: Pace, num_images: int) -> float:
    """Return the time of a run as the loop takes it: probes and checkpoints after some steps."""
    steps_per_epoch = (config.data.images or num_images) // config.batch_size
    steps = config.epochs * steps_per_epoch
    from_weights = config.init.source is not None
    total = steps * pace.step + (config.epochs + 1) * pace.save
    if config.log.probe_every:
        every = max(1, round(config.log.probe_every * steps_per_epoch))
        num_probes = math.ceil(steps / every)  # the last step has one, too
        halfway = from_weights and config.select == "best"
        total += num_probes * pace.probe * (2 if halfway else 1)
        total += pace.probe if from_weights else 0
    return total


@given(
    seconds=st.floats(1, 1e6),
    step=st.floats(1e-3, 10),
    probe=st.floats(0, 100),
    save=st.floats(0, 10),
    num_images=st.integers(64, 2_000_000),
    recipe=st.sampled_from(["digits", "adapt"]),
    probe_every=st.sampled_from([0, 1, 5]),
)
def test_a_fitted_run_fills_its_time(seconds, step, probe, save, num_images, recipe, probe_every):
    defaults = {"data.source": "digits", "views.size": 64}
    settings = {"batch_size": 64, "log.probe_every": probe_every}
    if probe_every == 0:
        settings |= {"select": "last"}
        probe = 0.0
    config = resolve(recipe, settings, defaults)
    pace = Pace(step, probe, save)
    try:
        fitted = fit(config, seconds, pace, num_images=num_images)
    except UserError:
        images = min(2, num_images // 64) * 64
        least = replace(config, epochs=1, data=replace(config.data, images=images))
        assert seconds_of(least, pace, num_images) + 2 * probe > seconds * (1 - 1e-9)
        return
    assert fitted.epochs >= 1
    spent = seconds_of(fitted, pace, num_images)
    assert spent <= seconds * (1 + 1e-9)
    assert 64 <= (fitted.data.images or num_images) <= num_images
    # One step more in every epoch would not fit, or little is left, apart from some probes.
    unused = seconds - spent
    shortest = 2 * step * (fitted.epochs + 1)  # of one epoch more
    assert unused <= shortest + 0.05 * seconds + 10 * probe + 2 * save


def test_a_twentieth_of_the_time_is_kept_for_a_slower_machine():
    assert seconds_to_fill(100, spent=10) == pytest.approx(85)


@pytest.mark.usefixtures("_pace")
def test_a_run_leaves_a_share_of_its_time_free(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "SPARE_SHARE", 0.5)
    assert timed(tmp_path / "a", time="12s").facts.steps == 60


def test_warm_up_keeps_its_share():
    config = resolve("cifar10", {"optimizer.warmup_epochs": 10, "epochs": 100})
    fitted = fit(config, 100.0, Pace(0.01), num_images=50_000)
    assert fitted.optimizer.warmup_epochs / fitted.epochs == pytest.approx(0.1)


def timed(out: Path, time: str = "6s", **settings: object) -> smi.Run:
    return smi.pretrain("digits", out=out, overrides=NET | settings, time=time)


@pytest.mark.usefixtures("_pace")
def test_a_run_records_what_fits(tmp_path, capsys):
    """60 steps fit: three epochs of 20 steps, with fewer images."""
    run = timed(tmp_path / "a")
    assert (run.config["epochs"], run.config["data"]["images"]) == (3, 20 * 64)
    assert run.facts.requested_seconds == 6
    assert run.facts.steps == 60
    said = capsys.readouterr().out
    assert "6 s: 3 epochs of 1,280 of 1,614 images fit (a step takes 0.1 s" in said
    again = smi.pretrain(run.folder / "config.yaml", out=tmp_path / "b")
    assert (again.folder / "config.yaml").read_text() == (run.folder / "config.yaml").read_text()
    assert smi.load(again).digest() == smi.load(run).digest()
    whole = timed(tmp_path / "c", time="5.1s")  # a step more than two whole epochs
    assert (whole.config["epochs"], whole.config["data"]["images"]) == (2, None)


@pytest.mark.usefixtures("_pace")
def test_a_resumed_run_keeps_what_fitted(tmp_path, monkeypatch):
    whole = timed(tmp_path / "whole")
    with pytest.raises(Interrupted), signal_in_step(31):
        timed(tmp_path / "cut")
    monkeypatch.setattr(pretrain, "measure_pace", lambda *_: pytest.fail("timed again"))
    cut = timed(tmp_path / "cut")
    same_run(whole.folder, cut.folder)
    with pytest.raises(UserError, match=r"cut was made with --time 6s: do the same, or"):
        timed(tmp_path / "cut", time="7s")
    with pytest.raises(UserError, match=r"epochs is 3 in the folder"):
        smi.pretrain("digits", out=tmp_path / "cut", overrides=NET)
    plain = smi.pretrain("digits", out=tmp_path / "plain", overrides=NET | {"epochs": 1})
    with pytest.raises(UserError, match=r"plain was made without --time"):
        timed(plain.folder)


def test_a_time_and_epochs_are_refused(tmp_path):
    with pytest.raises(UserError, match="give --time or --epochs, not both"):
        timed(tmp_path / "a", epochs=3)
    with pytest.raises(UserError, match="give --time or --epochs, not both"):
        compare(["SMI"], recipe="digits", out=tmp_path / "c", time="1m", overrides={"epochs": 2})
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("_pace")
def test_a_time_that_is_too_short_leaves_no_folder(tmp_path):
    with pytest.raises(UserError, match="--time is too short"):
        timed(tmp_path / "a", time="0.01s")
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("_pace")
def test_a_preview_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = pretrain.preview("digits", overrides=NET, time="6s")
    assert "60 steps in 3 epochs" in shown.text()
    assert shown.plain() == {"plan": shown.text().splitlines()}
    assert "1,280 of 1,614 images fit" in capsys.readouterr().out
    shown = pretrain.preview("digits", out="runs/a", overrides=NET | {"epochs": 4})
    assert "100 steps in 4 epochs" in shown.text()
    assert list(tmp_path.iterdir()) == []


def test_a_late_end_is_reported():
    assert lateness(60, 65) == ""
    assert "this took 2 min instead of 60 s: it was slower than" in lateness(60, 130)


@pytest.mark.usefixtures("_pace")
def test_methods_are_compared_in_equal_time(tmp_path, monkeypatch, capfd):
    """Runs are made in this process, so that their pace is that of the fixture."""
    make_quick(monkeypatch)
    given = {"recipe": "digits", "out": tmp_path / "c", "seeds": 1, "protocols": ["knn"]}
    widths = NET["method.widths"]  # PIRL has none
    overrides = {key: value for key, value in NET.items() if key != "method.widths"}
    given |= {"overrides": overrides | {"methods.SMI.widths": widths}}
    first = compare(["SMI", "PIRL"], time="3s", **given)
    assert not first.failed
    (note,) = [note for note in first.notes() if note.startswith("equal time: 3 s for each run")]
    assert note.endswith("Steps: SMI 30, PIRL 30")
    assert "batch size; a method keeps" in first.notes()[0]
    assert ", 3 s for each run" in first.text()
    again = compare(["SMI", "PIRL"], time="3s", **given)
    assert "2 of 2 runs exist already" in capfd.readouterr().out
    assert again.text() == first.text()
    for time in ("4s", None):
        with pytest.raises(UserError, match="was made with --time 3s"):
            compare(["SMI", "PIRL"], time=time, **given)


@pytest.mark.usefixtures("_pace")
def test_all_seeds_of_a_method_have_the_same_length(tmp_path, monkeypatch):
    """The first seed is timed; the others are told what it found."""
    make_quick(monkeypatch)
    given = {"recipe": "digits", "out": tmp_path / "c", "protocols": ["knn"], "overrides": NET}
    compare(["SMI"], time="3s", seeds=1, **given)
    monkeypatch.setattr(pretrain, "measure_pace", lambda *_: pytest.fail("timed again"))
    both = compare(["SMI"], time="3s", seeds=2, **given)
    assert not both.failed
    first, second = (smi.Run(run.folder) for run in both.rows[0].runs)
    assert first.config["epochs"] == second.config["epochs"] == 2
    assert first.config["data"]["images"] == second.config["data"]["images"] == 15 * 64
    for run in both.rows[0].runs:
        assert "--time" not in run.command
        assert "epochs=2 --data.images=960" in run.command


@pytest.mark.usefixtures("_pace")
def test_a_recipe_is_chosen_without_epochs(tmp_path, monkeypatch, capfd):
    make_quick(monkeypatch)
    given = {"data": "digits", "out": tmp_path / "c", "seeds": 1, "protocols": ["knn"]}
    compared = compare(["SMI"], time="3s", overrides=NET, **given)
    assert not compared.failed
    assert "epochs" not in capfd.readouterr().out.splitlines()[0]


def test_steps_within_a_time(monkeypatch):
    """A clock that moves by 0.5 s at each look stands for passes of 0.5 s."""
    monkeypatch.setattr(budget.time, "perf_counter", partial(next, itertools.count(0, 0.5)))
    monkeypatch.setattr(budget, "NUM_TIMED_VIEWS", 16)
    per_step = 0.5 / 16 * 2 * 64
    assert steps_within(resolve("digits", NET), 100, CPU) == 100 / per_step
    four = resolve("digits", NET | {"method.views": 4})
    assert steps_within(four, 100, CPU) == 100 / (2 * per_step)


def test_views_that_need_too_much_memory_are_fewer(monkeypatch):
    tried = []

    class Hungry(Net):
        def forward(self, x):
            tried.append(len(x))
            if len(x) > 8:
                raise RuntimeError("CUDA out of memory")
            return super().forward(x).detach()  # nothing to train

    monkeypatch.setattr(budget, "create_encoder", lambda **_: Hungry())
    monkeypatch.setattr(budget, "NUM_TIMED_VIEWS", 32)
    assert steps_within(resolve("digits", NET), 100, CPU) > 0
    assert tried == [32, 16, 8, 8, 8, 8]


def test_an_encoder_that_fails_is_one_sentence(monkeypatch):
    class Failing(Net):
        def forward(self, x):
            raise RuntimeError("a mistake of the network")

    monkeypatch.setattr(budget, "create_encoder", lambda **_: Failing())
    with pytest.raises(UserError, match=r"the encoder .*Net with these settings .*a mistake"):
        steps_within(resolve("digits", NET), 100, CPU)


@pytest.mark.usefixtures("_pace")
def test_a_run_without_a_checkpoint_keeps_what_fitted(tmp_path, monkeypatch):
    """It is killed after its first steps, and another pace would fit other epochs."""
    whole = timed(tmp_path / "whole")
    with pytest.raises(Interrupted), signal_in_step(31):
        timed(tmp_path / "cut")
    smi.Run(tmp_path / "cut").checkpoint.unlink()
    monkeypatch.setattr(pretrain, "measure_pace", pytest.fail)
    same_run(whole.folder, timed(tmp_path / "cut").folder)


@pytest.mark.usefixtures("_pace")
def test_a_first_epoch_that_freezes_a_part_is_not_the_only_one(tmp_path):
    run = timed(tmp_path / "a", time="1.5s", method="SwAV", **{"method.frozen_epochs": 1})
    assert (run.config["epochs"], run.config["data"]["images"]) == (2, 7 * 64)


@pytest.mark.usefixtures("_pace")
def test_a_batch_that_does_not_fit_is_halved_before_the_folder_is_made(tmp_path, capsys):
    overrides = {"encoder": "support.homemade.Net", "method": "support.homemade.Large"}
    overrides |= {"batch_size": 64}
    old = smi.pretrain("digits", out=tmp_path / "a", overrides=NET | {"epochs": 1})
    run = smi.pretrain("digits", out=old.folder, overrides=overrides, time="6s", fresh=True)
    assert "Training starts again with 16;" in capsys.readouterr().err
    assert run.config["batch_size"] == 16
    assert run.config["method"]["name"] == "support.homemade.Large"
    with pytest.raises(UserError, match="runs out of memory with a batch of 64"):
        pretrain.preview("digits", overrides=overrides, time="6s")


@pytest.mark.usefixtures("_pace")
def test_a_mistake_in_the_first_step_is_one_sentence(tmp_path):
    overrides = {"encoder": NET["encoder"], "batch_size": 1614}
    with pytest.raises(UserError, match="PIRL with these settings"):
        smi.pretrain("digits", out=tmp_path / "a", method="PIRL", overrides=overrides, time="6s")
    assert not (tmp_path / "a").exists()


def test_a_real_pace_has_all_its_parts(tmp_path, monkeypatch):
    """Timed steps leave the weights as they were: their learning rate is 0."""
    monkeypatch.setattr(budget, "seconds_to_time", lambda seconds: 0.0)
    measured = []

    def pace(job, seconds):
        before = {k: v.clone() for k, v in job.method.named_parameters()}
        measured.append(budget.measure_pace(job, seconds))
        after = dict(job.method.named_parameters())
        assert all(before[name].equal(after[name]) for name in before)
        return replace(measured[0], step=0.5)

    monkeypatch.setattr(pretrain, "measure_pace", pace)
    run = timed(tmp_path / "a", time="20s", **{"log.probe_images": 50})
    (found,) = measured
    assert min(found.step, found.probe, found.save) > 0
    assert run.facts.steps <= 40


@pytest.mark.long
def test_two_processes_agree_on_what_fits(tmp_path):
    words = digits(tmp_path / "run", "--method.widths", "[8, 8]", "--time", "4s")
    (said,) = run_together(words)
    run = smi.Run(tmp_path / "run")
    assert run.finished
    assert run.facts.world_size == 2
    assert said.stdout.count("images fit (a step takes") == 1
    images = run.config["data"]["images"] or 1614
    assert run.metrics()[-1]["step"] == run.config["epochs"] * (images // 64)
