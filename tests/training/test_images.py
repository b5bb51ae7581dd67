"""Choose the images for training and for probes."""

import os
import signal
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import smi
from smi.config.resolve import resolve
from smi.data.listing import scan
from smi.data.store import CachedStore, StreamingStore
from smi.training.images import Images
from smi.training.signals import Interrupted
from support.digits import same_run


def test_validation_images_are_kept_from_training():
    config = resolve("digits", {"data.validation": 0.2, "data.images": 1000})
    images = Images.open(config)
    assert len(images.pretrain) == len(images.bank) == 1000
    assert len(images.held_out) == round(0.2 * 1614)
    apart = {image.numpy().tobytes() for image in images.held_out[:]}
    shown = {image.numpy().tobytes() for image in images.pretrain[:]}
    assert len(apart & shown) <= 1  # two of scikit-learn's digits may be alike to the pixel


def test_without_labels_views_of_held_out_images_are_retrieved(tmp_path, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "home"))
    (tmp_path / "flat").mkdir()
    for i in range(40):
        pixels = np.random.default_rng(i).integers(0, 256, (3, 3, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((20, 20)).save(tmp_path / "flat" / f"{i}.png")
    overrides = SETTINGS | {"data.images": None, "data.validation": 0.25, "select": "best"}
    run = smi.pretrain(
        "cifar10-small", data=tmp_path / "flat", out=tmp_path / "a", overrides=overrides
    )
    probes = [line["probe"] for line in run.probes()]
    assert [probe["images"] for probe in probes] == [10, 10]
    assert all(0.1 <= probe["retrieval"] <= 1 for probe in probes)
    assert run.facts.num_images == 30
    assert "retrieval" in repr(run)
    assert smi.load(run).about["step"] in (3, 6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of wide, tall and square files in two classes."""
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "home"))
    for i in range(48):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        size = [(40, 20), (20, 40), (24, 24), (90, 10), (31, 20)][i % 5]
        Image.fromarray(pixels).resize(size).save(path)
    return tmp_path / "photos"


SETTINGS = {
    "encoder": "support.homemade.Net",
    "epochs": 2,
    "batch_size": 8,
    "method.widths": [8, 8],
    "views.size": 8,
    "data.resolution": 12,
}


def pretrain(folder, out, **overrides):
    return smi.pretrain("cifar10", data=folder, out=out, overrides=SETTINGS | overrides, quiet=True)


@contextmanager
def terminated_while_reading(monkeypatch):
    """Send SIGTERM while the sixth batch is read."""
    reads = []
    original = CachedStore._read

    def read(store, rows):
        reads.append(rows)
        if len(reads) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(store, rows)

    with monkeypatch.context() as patch:
        patch.setattr(CachedStore, "_read", read)
        yield


def test_a_run_on_files_of_different_shapes_resumes_to_the_bit(folder, tmp_path, monkeypatch):
    """Compare three runs: in one go, stopped and resumed, and decoded on demand."""
    pretrain(folder, tmp_path / "whole")
    with terminated_while_reading(monkeypatch), pytest.raises(Interrupted) as stopped:
        pretrain(folder, tmp_path / "cut")
    assert 0 < stopped.value.step < 8
    pretrain(folder, tmp_path / "cut")
    same_run(tmp_path / "whole", tmp_path / "cut")
    pretrain(folder, tmp_path / "streamed", **{"data.cache_gb": 0.0})
    same_run(tmp_path / "whole", tmp_path / "streamed")
    pretrain(folder, tmp_path / "square", **{"data.keep": "square"})
    with pytest.raises(AssertionError):
        same_run(tmp_path / "whole", tmp_path / "square")


def test_the_settings_decide_how_files_are_kept(folder, monkeypatch):
    scans = []
    monkeypatch.setattr("smi.data.folders.scan", lambda root: scans.append(root) or scan(root))
    images = Images.open(resolve("cifar10", {"data": str(folder), **SETTINGS}))
    assert len(scans) == 1  # for the images to train on and for both sides of the probe
    assert images.held_out is not None
    assert isinstance(images.pretrain, CachedStore)
    images.close()
    images = Images.open(
        resolve("cifar10", {"data": str(folder), **SETTINGS, "data.cache_gb": 0.0})
    )
    assert isinstance(images.pretrain, StreamingStore)
    images.close()
