from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.v2 import functional as T

from smi.data import load
from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.errors import UserError
from smi.evaluation import extract, extract_labelled, pixels
from smi.evaluation.features import is_mapped

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x))).mean((2, 3))


def reference(encoder, images, size=None):
    x = images.double() / 255
    if size is not None:
        side = images.shape[-1]
        x = T.center_crop(x, [round(side * 7 / 8)] * 2) if side > size else x
        x = T.resize(x, [size, size], antialias=True)
    x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with torch.no_grad():
        return encoder.eval()(x.float())


@pytest.mark.parametrize("size", [None, 8, 6, 12])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_features_are_those_of_the_images_in_order(store, size, batch_size):
    encoder = Small()
    h = extract(encoder, store, mean=MEAN, std=STD, size=size, batch_size=batch_size)
    assert h.dtype == torch.float32
    torch.testing.assert_close(h, reference(encoder, store[:], size), rtol=1e-4, atol=1e-5)


def test_features_repeat_and_can_be_trained_on(store):
    encoder = Small()
    first, second = (extract(encoder, store, mean=MEAN, std=STD) for _ in range(2))
    assert torch.equal(first, second)
    nn.Linear(5, 2)(first).sum().backward()


def test_modes_and_batch_norm_statistics_do_not_change(store):
    encoder = Small().train()
    encoder.norm.eval()
    statistics = encoder.norm.running_mean.clone()
    extract(encoder, store, mean=MEAN, std=STD)
    assert (
        encoder.training,
        encoder.conv.training,
        encoder.norm.training,
        encoder.drop.training,
    ) == (True, True, False, True)
    assert torch.equal(encoder.norm.running_mean, statistics)


def test_modes_are_restored_after_an_error(store):
    encoder = nn.Sequential(nn.Dropout(), nn.Flatten(), nn.Linear(7, 1))
    encoder[0].eval()
    with pytest.raises(RuntimeError):
        extract(encoder, store, mean=MEAN, std=STD)
    assert [part.training for part in encoder] == [False, True, True]


def test_half_precision_gives_nearly_the_same(store):
    encoder = Small()
    h = extract(encoder, store, mean=MEAN, std=STD, precision="bfloat16")
    assert h.dtype == torch.float32
    torch.testing.assert_close(h, reference(encoder, store[:]), rtol=0.05, atol=0.02)


def test_pixels(store):
    torch.testing.assert_close(pixels(store), store[:].flatten(1) / 255)
    assert pixels(store, size=4).shape == (11, 48)
    torch.testing.assert_close(
        pixels(store, size=1), (store[:] / 255).mean((2, 3)), rtol=0.2, atol=0.2
    )


def test_raw_pixels_are_whole_or_cropped_as_for_an_encoder(store):
    """The crop is decided by the input of the encoder, not by the size of the pixels."""
    whole, _ = extract_labelled(nn.Flatten(), store, mean=(0, 0, 0), std=(1, 1, 1), size=4, crop=8)
    cropped, _ = extract_labelled(
        nn.Flatten(), store, mean=(0, 0, 0), std=(1, 1, 1), size=4, crop=7
    )
    assert torch.equal(whole, pixels(store, size=4))
    expected = T.resize(T.center_crop(store[:].float(), [7, 7]), [4, 4], antialias=True) / 255
    torch.testing.assert_close(cropped, expected.flatten(1), rtol=1e-4, atol=1e-5)


def test_features_larger_than_memory_are_mapped_from_a_file(store, tmp_path, monkeypatch):
    """The file has no name, so that it ends with the process."""
    encoder = Small()
    held = extract(encoder, store, mean=MEAN, std=STD, batch_size=4)
    monkeypatch.setattr("smi.evaluation.features.MAX_SHARE_OF_MEMORY", 0.0)
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    mapped = extract(encoder, store, mean=MEAN, std=STD, batch_size=4)
    assert is_mapped(mapped)
    assert not is_mapped(held)
    assert torch.equal(mapped, held)
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"making room for features in .*file failed"):
        extract(encoder, store, mean=MEAN, std=STD)


def test_labels_come_with_their_images(store):
    h, labels = extract_labelled(nn.Flatten(), store, mean=(0, 0, 0), std=(1, 1, 1))
    assert torch.equal(labels, store.labels)
    torch.testing.assert_close(h, pixels(store))


@pytest.mark.parametrize("max_cache_bytes", [0, 10**9])
def test_the_image_that_replaces_a_bad_file_has_its_own_label(
    tmp_path, monkeypatch, max_cache_bytes
):
    """This holds for cached and for streamed files."""
    monkeypatch.setattr("smi.evaluation.features.FEATURE_BATCH_SIZE", 5)
    for name, files in (("a", 8), ("b", 8)):
        (tmp_path / "set" / "train" / name).mkdir(parents=True)
        for i in range(files):
            colour = np.full((8, 8, 3), 10 * i + (100 if name == "b" else 0), dtype=np.uint8)
            Image.fromarray(colour).save(tmp_path / "set" / "train" / name / f"{i}.png")
    (tmp_path / "set" / "train" / "a" / "7.png").write_bytes(b"nothing")
    store = load(
        tmp_path / "set",
        resolution=8,
        cache=tmp_path / "cache",
        max_cache_bytes=max_cache_bytes,
        num_workers=1,
    )
    h, labels = extract_labelled(nn.Flatten(), store, mean=(0, 0, 0), std=(1, 1, 1))
    assert labels.tolist() == (h[:, 0] * 255 >= 99).long().tolist()
    store.close()


def test_mistakes_are_sentences(store):
    unlabelled = ArrayStore(replace(ArraySet("some", "pretrain", (store[:].numpy(),)), labels=None))
    with pytest.raises(UserError, match="has no labels"):
        extract_labelled(nn.Flatten(), unlabelled, mean=MEAN, std=STD)
    with pytest.raises(
        UserError, match=r"features \[11, F\] for 11 images; this one returned \[11, 3, 8, 8\]"
    ):
        extract(nn.Identity(), store, mean=MEAN, std=STD)
    for wrong in ({"batch_size": 0}, {"size": 0}, {"precision": "float8"}):
        with pytest.raises(UserError):
            extract(nn.Flatten(), store, mean=MEAN, std=STD, **wrong)
