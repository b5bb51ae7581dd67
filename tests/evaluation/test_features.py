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


def test_labels_come_with_their_images(store):
    h, labels = extract_labelled(nn.Flatten(), store, mean=(0, 0, 0), std=(1, 1, 1))
    assert torch.equal(labels, store.labels)
    torch.testing.assert_close(h, pixels(store))


@pytest.mark.parametrize("max_cache_bytes", [0, 10**9])
def test_the_image_that_replaces_a_bad_file_has_its_own_label(tmp_path, max_cache_bytes):
    """This holds for cached and for streamed files."""
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
    h, labels = extract_labelled(nn.Flatten(), store, mean=(0, 0, 0), std=(1, 1, 1), batch_size=5)
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
