"""Images from Python: every kind gives the same pixels, a path that stays, and a digest."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import Dataset

from smi.data import load
from smi.data.given import as_path, as_source
from smi.data.sources import Source
from smi.errors import UserError

N, SIDE = 30, 8
PIXELS = np.random.default_rng(0).integers(0, 256, (N, SIDE, SIDE, 3), dtype=np.uint8)
LABELS = np.arange(N) % 3
PICTURES = [Image.fromarray(pixels) for pixels in PIXELS]


class Pairs(Dataset):
    def __init__(self, num_images=N, offset=0):
        self.num_images = num_images
        self.offset = offset

    def __len__(self):
        return self.num_images

    def __getitem__(self, i):
        return PICTURES[i + self.offset], int(LABELS[i + self.offset])


class Rows(Pairs):
    """As Hugging Face's datasets: items are dictionaries."""

    def __getitem__(self, i):
        return {"image": PICTURES[i], "label": int(LABELS[i])}


class Arrays(Pairs):
    def __getitem__(self, i):
        return torch.from_numpy(PIXELS[i]).permute(2, 0, 1), LABELS[i]


def images_of(source):
    return load(source, "pretrain", resolution=SIDE, keep="square")[:]


def rows_of(images):
    return sorted(images.flatten(1).tolist())


ALL = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


@pytest.mark.parametrize("given", [PICTURES, Pairs(), Rows(), Arrays()])
def test_items_are_written_without_loss(given):
    source = as_source(given)
    assert isinstance(source, str)
    assert torch.equal(images_of(source), ALL)
    assert as_source(given) == source
    labels = Source(source).split("train").labels
    if given is PICTURES:
        assert labels is None
    else:
        assert labels.tolist() == LABELS.tolist()


def test_paths(tmp_path):
    paths = []
    for i, picture in enumerate(PICTURES):
        picture.save(tmp_path / f"{i:02}.png")
        paths.append(tmp_path / f"{i:02}.png")
    assert torch.equal(images_of(as_source(paths)), ALL)
    assert torch.equal(images_of(as_source([str(path) for path in paths])), ALL)
    labelled = Source(as_source((paths, LABELS)))
    assert labelled.split("train").classes == ("0", "1", "2")
    folder = torchvision.datasets.DatasetFolder
    made = folder.__new__(folder)  # what its users have, without a folder of classes
    made.samples = [(str(path), int(i % 3)) for i, path in enumerate(paths)]
    made.classes = ["ant", "bee", "cat"]
    assert Source(as_source(made)).split("train").classes == ("ant", "bee", "cat")


def test_two_splits():
    source = Source(as_source({"train": Pairs(20), "test": Pairs(10, offset=20)}))
    assert [len(source.split(split)) for split in ("pretrain", "train", "val")] == [20, 20, 10]
    assert source.split("val").labels.tolist() == LABELS[20:].tolist()


def test_another_content_has_another_path():
    sources = {
        as_source(PICTURES),
        as_source(PICTURES[:-1]),
        as_source([PICTURES[1], *PICTURES[1:]]),
        as_source((PICTURES, LABELS)),
        as_source((PICTURES, LABELS[::-1])),
        as_source(Pairs()),
    }
    assert len(sources) == 6


def test_paths_and_names_stay(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "more").mkdir()
    monkeypatch.chdir(tmp_path)
    assert as_source("cifar10") == "cifar10"
    assert as_source("photos") == as_source(Path("photos")) == str(tmp_path / "photos")
    assert as_source("s3://bucket/a") == "s3://bucket/a"
    assert as_source("hf:me/birds") == "hf:me/birds"
    assert as_source("shards-{00..10}.tar") == f"{tmp_path}/shards-{{00..10}}.tar"
    assert as_source(["photos", "more"]) == f"{{{tmp_path}/photos,{tmp_path}/more}}"
    assert as_source(["photos"]) == str(tmp_path / "photos")
    assert as_path("photos") == "photos"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "empty"),
        (3, "cannot be read from a int"),
        (iter([1]), "cannot be read from a list_iterator"),
        ([1, 2], "an item of the dataset is a int, not an image"),
        ({"train": PICTURES, "other": PICTURES}, "is called train, val or test, not 'other'"),
        ((PICTURES, [1]), "30 images need as many labels, not 1"),
        ([torch.zeros(3, 8, 8)], "float32 arrays: give PIL images or uint8"),
        ([{"words": 1}], r"has no image: its keys are \['words'\]"),
        (["a,b", "c"], "cannot be one of several sources"),
    ],
)
def test_mistakes_are_one_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        as_source(given)
