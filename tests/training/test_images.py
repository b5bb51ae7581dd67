"""Choose the images for training and for probes."""

import os
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import smi
from smi.config.resolve import resolve
from smi.data.folders import is_held_out
from smi.data.listing import scan
from smi.data.shard_store import ShardStore
from smi.data.shard_writer import write_shards
from smi.data.sources import Source
from smi.data.store import CachedStore, StreamingStore
from smi.errors import UserError
from smi.training.images import Images
from smi.training.signals import Interrupted
from support.digits import same_run
from support.web import serving


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
    assert [probe["images"] for probe in probes] == [10, 10, 10]
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


@pytest.fixture
def shards(folder, tmp_path):
    write_shards(folder, out=str(tmp_path / "shards"), size="4KB", quiet=True)
    assert len(list((tmp_path / "shards").glob("train-*.tar"))) > 8
    return tmp_path / "shards"


def test_a_run_on_streamed_shards_resumes_to_the_bit(shards, tmp_path, monkeypatch):
    """From the disk and from a server, whole and interrupted: the same weights and metrics."""
    settings = {"data.cache_gb": 0.0}
    run = pretrain(shards, tmp_path / "whole", **settings)
    assert run.probes()[-1]["probe"]["images"] == len(Source(shards).split("val"))
    reads = []
    original = ShardStore._prepare

    def stop_at_sixth(store, images):
        reads.append(images)
        if len(reads) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(store, images)

    monkeypatch.setattr(ShardStore, "_prepare", stop_at_sixth)
    with pytest.raises(Interrupted):
        pretrain(shards, tmp_path / "cut", **settings)
    pretrain(shards, tmp_path / "cut", **settings)
    same_run(tmp_path / "whole", tmp_path / "cut")
    count = len(list(shards.glob("train-*.tar")))
    with serving(shards) as web:
        pattern = web.url(f"train-{{000000..{count - 1:06}}}.tar")
        far = pretrain(pattern, tmp_path / "far", **settings)
    assert smi.load(far).digest() == smi.load(run).digest()


def test_single_images_cannot_be_chosen_from_streamed_shards(shards, tmp_path):
    for name, value in (("data.images", 10), ("data.validation", 0.1)):
        with pytest.raises(UserError, match=f"{name} chooses single images"):
            pretrain(shards, tmp_path / "a", **{"data.cache_gb": 0.0, name: value})


def test_images_from_python(tmp_path, monkeypatch):
    """An array: pretrain, resume, evaluate and embed; another array is refused."""
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "home"))
    pixels = np.random.default_rng(0).integers(0, 256, (60, 12, 12, 3), dtype=np.uint8)
    labels = np.arange(60) % 2
    run = pretrain((pixels, labels), tmp_path / "a")
    assert run.probes()[-1]["probe"]["images"] == sum(is_held_out(str(i)) for i in range(60))
    pretrain((pixels, labels), tmp_path / "a")  # finished: nothing to do
    with pytest.raises(UserError, match="different configuration"):
        pretrain((pixels[::-1], labels), tmp_path / "a")
    found = smi.evaluate(run, data={"train": (pixels, labels), "test": (pixels[:20], labels[:20])},
                         protocols=["knn"], quiet=True)  # fmt: skip
    assert found.rows[0].results[0].protocol["test"]["images"] == 20
    assert smi.evaluate(run, protocols=["knn"], quiet=True)  # on its own images, from the cache
    smi.embed(run.folder, data=torch.from_numpy(pixels), out=tmp_path / "f.npz", quiet=True)
    assert np.load(tmp_path / "f.npz")["features"].shape[0] == 60
