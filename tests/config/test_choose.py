"""Choose a recipe by image size, image count and device."""

import numpy as np
import pytest
import torch
from PIL import Image

from smi.config.choose import LARGE_RECIPES, SMALL_RECIPES, choose_recipe
from smi.config.resolve import resolve
from smi.errors import UserError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def folder(path, count, size):
    path.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (*reversed(size), 3), dtype=np.uint8)
    for i in range(count):
        Image.fromarray(pixels).save(path / f"{i}.png")
    return str(path)


@pytest.mark.parametrize(
    ("size", "device", "recipe"),
    [
        ((12, 20), CPU, "digits"),
        ((40, 32), CPU, "cifar10-small"),
        ((40, 32), CUDA, "cifar10"),
        ((300, 200), CPU, "imagenette-small"),
        ((300, 200), CUDA, "imagenette"),
    ],
)
def test_by_size_and_device(size, device, recipe, tmp_path):
    source = folder(tmp_path / "photos", 40, size)
    choice = choose_recipe(source, None, device)
    assert choice.recipe == recipe
    assert recipe in choice.sentence
    assert "40 images" in choice.sentence
    config = resolve(choice.recipe, {**choice.settings, "data": source})
    assert config.batch_size <= 40
    assert config.data.images is None


@pytest.mark.parametrize(
    ("size", "small", "large"),
    [((40, 32), "cifar10-small", "cifar10"), ((300, 200), "imagenette-small", "imagenette")],
)
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_large_or_small_encoder_can_be_requested(size, small, large, device, tmp_path):
    source = folder(tmp_path / "photos", 40, size)
    assert choose_recipe(source, None, device, large=True).recipe == large
    assert choose_recipe(source, None, device, large=False).recipe == small
    assert small in SMALL_RECIPES
    assert large in LARGE_RECIPES


def test_tiny_images_have_one_recipe():
    assert choose_recipe("digits", None, CPU, large=True).recipe == "digits"
    assert choose_recipe("digits", None, CUDA, large=False).recipe == "digits"


def test_few_images_are_seen_often_in_small_batches(tmp_path):
    few = choose_recipe(folder(tmp_path / "few", 64, (30, 30)), None, CPU).settings
    more = choose_recipe(folder(tmp_path / "more", 1000, (30, 30)), None, CPU).settings
    assert few["batch_size"] < more["batch_size"]
    assert few["epochs"] > more["epochs"]


def test_the_weight_of_smi_follows_a_smaller_batch(tmp_path):
    few = choose_recipe(folder(tmp_path / "few", 64, (30, 30)), None, CPU)
    many = choose_recipe(folder(tmp_path / "many", 2048, (30, 30)), None, CPU)
    assert resolve(few.recipe, few.settings).method["redundancy_weight"] == "auto"
    assert resolve(many.recipe, many.settings).method["redundancy_weight"] == 0.055
    asked = {**few.settings, "method.redundancy_weight": 0.3}
    assert resolve(few.recipe, asked).method["redundancy_weight"] == 0.3


def test_a_named_set():
    choice = choose_recipe("digits", None, CPU)
    assert choice.recipe == "digits"
    assert "1,614 images of 8 px on a CPU" in choice.sentence


def test_weights_at_hand_are_continued_from(tmp_path, monkeypatch):
    monkeypatch.setattr("smi.config.choose.is_cached", lambda name: True)
    source = folder(tmp_path / "photos", 600, (80, 70))
    choice = choose_recipe(source, None, CPU)
    assert choice.recipe == "adapt"
    assert choice.settings["encoder"] == "tf_efficientnet_lite0.in1k"
    assert choice.settings["epochs"] == 30
    assert "`smi pretrain imagenette-small` starts from scratch" in choice.sentence
    assert choose_recipe(source, None, CUDA).settings["encoder"] == "resnet50.a1_in1k"
    assert choose_recipe(source, None, CPU, adapt=False).recipe == "imagenette-small"
    assert choose_recipe("digits", None, CPU).recipe == "digits"  # too small for such networks


def test_without_weights_at_hand_the_choice_names_them(tmp_path):
    source = folder(tmp_path / "photos", 40, (80, 70))
    choice = choose_recipe(source, None, CPU)
    assert choice.recipe == "imagenette-small"
    assert "`smi pretrain adapt` would start from the weights of tf_eff" in choice.sentence
    assert choose_recipe(source, None, CPU, adapt=True).recipe == "adapt"


def test_too_few_or_none(tmp_path):
    with pytest.raises(UserError, match="needs 16 or more"):
        choose_recipe(folder(tmp_path / "three", 3, (30, 30)), None, CPU)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match="can be read as an image"):
        choose_recipe(str(tmp_path / "broken"), None, CPU)
