"""Foretell what pretraining would do with a source."""

import json

import numpy as np
import pytest
from PIL import Image

import smi
from smi.training.foretell import foretell


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    for i in range(20):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (80, 90, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_the_resolution_is_that_of_the_run(photos, tmp_path):
    foretold = foretell(str(photos))
    assert foretold.recipe == "imagenette-small"
    text = foretold.text()
    assert "images at 96 px, decoded once into a cache of about" in text
    assert "It would choose recipe imagenette-small for " in text
    document = json.loads(json.dumps(foretold.plain()))
    assert (document["resolution"], document["recipe"]) == (96, "imagenette-small")
    run = smi.pretrain(
        data=photos,
        out=tmp_path / "run",
        overrides={"epochs": 1, "log.probe_every": 0, "optimizer.warmup_epochs": 0},
        quiet=True,
    )
    assert run.facts.resolution == document["resolution"]
    assert run.facts.num_images == document["pretraining_images"]


def test_too_few_images_are_told(tmp_path):
    (tmp_path / "few").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "few" / "a.png")
    foretold = foretell(str(tmp_path / "few"))
    assert foretold.recipe is None
    assert "Pretraining would stop: " in foretold.text()
    assert "needs 16 or more" in foretold.text()
