"""Choose a recipe from images, machine and time, and keep it when a run is resumed."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

import smi
from smi.errors import UserError
from smi.training import pretrain, recipe_choice
from smi.training.recipe_choice import choose_for_run
from smi.training.signals import Interrupted
from support.signals import signal_in_step

NET = {"encoder": "support.homemade.Net", "method.widths": [8, 8], "batch_size": 16}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    draws = np.random.default_rng(0)
    for i in range(32):
        pixels = draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


@pytest.mark.parametrize("steps", [0, 3999.9, 4000])
def test_a_short_time_takes_the_small_recipe(steps, photos, monkeypatch, capsys):
    monkeypatch.setattr(recipe_choice, "steps_within", lambda config, seconds, device: steps)
    given = {"data": str(photos)}
    chosen, settings = recipe_choice.choose_recipe_for(given, None, CUDA, timed=True, seconds=1800)
    few = steps < 4000
    assert chosen == ("cifar10-small" if few else "cifar10")
    assert "epochs" not in settings
    needed = ", and it needs 4,000: a smaller one is taken" if few else ""
    said = f"30 min: about {int(steps):,} steps of recipe cifar10 fit{needed}\n"
    assert said in capsys.readouterr().out


def test_published_settings_keep_the_recipe_that_has_them(photos, monkeypatch):
    monkeypatch.setattr(recipe_choice, "steps_within", pytest.fail)
    given = {"data": str(photos), "published": True}
    assert recipe_choice.choose_recipe_for(given, None, CUDA, timed=True, seconds=9)[0] == "cifar10"


def test_on_a_cpu_and_without_a_time_the_device_decides(photos, monkeypatch):
    monkeypatch.setattr(recipe_choice, "steps_within", pytest.fail)
    choose, given = recipe_choice.choose_recipe_for, {"data": str(photos)}
    assert choose(given, None, CPU, timed=True, seconds=9)[0] == "cifar10-small"
    assert choose(given, None, CUDA)[0] == "cifar10"


@pytest.mark.usefixtures("_pace")
@pytest.mark.parametrize(("recipe", "other"), [("cifar10", CPU), ("cifar10-small", CUDA)])
def test_a_resumed_run_keeps_its_recipe(recipe, other, photos, tmp_path, monkeypatch):
    """The other device would choose the other recipe."""
    given = {"out": tmp_path / "a", "data": photos, "time": "3s", "overrides": NET}
    original = recipe_choice.choose_recipe

    def choose(*words, large, **more):
        return original(*words, large=recipe == "cifar10", **more)

    with monkeypatch.context() as patched:
        patched.setattr(recipe_choice, "choose_recipe", choose)
        patched.setattr(recipe_choice, "steps_within", lambda *_: 4000)
        with pytest.raises(Interrupted), signal_in_step(17):
            smi.pretrain(**given)
    monkeypatch.setattr(recipe_choice, "steps_within", pytest.fail)
    again = partial(choose_for_run, {"data": str(photos)}, None, other)
    assert again(3, tmp_path / "a", False)[0] == recipe
    with pytest.raises(UserError, match="was made with --time 3s"):
        again(None, tmp_path / "a", False)
    assert f"recipe {recipe}: SMI on" in pretrain.preview(**given).text()
    run = smi.pretrain(**given)
    assert run.finished
    assert run.facts.recipe == recipe


def test_a_run_that_a_cpu_began_keeps_its_epochs_on_a_gpu(photos, tmp_path):
    run = smi.pretrain(out=tmp_path / "a", data=photos, overrides=NET | {"epochs": 3})
    chosen, settings = choose_for_run({"data": str(photos)}, None, CUDA, None, run.folder, False)
    assert (chosen, settings["epochs"]) == ("cifar10-small", 3)


def test_a_name_of_a_recipe_is_recorded_and_a_file_is_not(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits\n")
    given = {"out": tmp_path / "a", "overrides": NET | {"steps": 6}}
    with pytest.raises(Interrupted), signal_in_step(3):
        smi.pretrain("digits", **given)
    assert smi.pretrain(tmp_path / "mine.yaml", **given).facts.recipe == "digits"
    other = smi.pretrain(tmp_path / "mine.yaml", out=tmp_path / "b", overrides=NET | {"steps": 1})
    assert other.facts.recipe is None
