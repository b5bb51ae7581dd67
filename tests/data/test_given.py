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


def test_every_picture_and_label_of_a_list_counts():
    many = PICTURES * 7
    changed = [*many[:101], PICTURES[0], *many[102:]]
    labels = [0, 1] * 105
    other = [*labels[:50], 1 - labels[50], *labels[51:]]
    assert as_source(many) != as_source(changed)
    assert as_source((many, labels)) != as_source((many, other))
    assert as_source((many, torch.tensor(labels))) == as_source((many, labels))


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_pictures_of_more_than_8_bits_are_scaled(mode):
    values = np.linspace(0, 4000, SIDE * SIDE).reshape(SIDE, SIDE)
    array = values.astype({"I": np.int32, "F": np.float32, "I;16": np.uint16}[mode])
    pictures = [Image.fromarray(array) for _ in range(20)]
    assert pictures[0].mode == mode
    images = images_of(as_source(pictures))
    assert images[0, 0].min() <= 2
    assert images[0, 0].max() >= 253
    assert 120 < images[0, 0].float().mean() < 135


def test_three_splits_say_which_is_not_used(capsys):
    given = {"train": Pairs(20), "validation": Pairs(5, offset=20), "test": Pairs(5, offset=25)}
    source = Source(as_source(given))
    assert source.split("val").labels.tolist() == LABELS[20:25].tolist()
    assert "the split test is not used: validation is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([np.zeros((8, 8, 5), np.uint8)], r"an array \[8, 8, 5\], not an image"),
        ([torch.zeros(3, 8, 8, dtype=torch.bfloat16)], "bfloat16 cannot be read"),
        ({"test": PICTURES}, "must be called train"),
    ],
)
def test_more_mistakes_are_one_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        as_source(given)


def test_patterns_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert as_source("{a,b}/x") == f"{{{tmp_path}/a/x,{tmp_path}/b/x}}"
    assert as_source("*/x.tar") == f"{tmp_path}/*/x.tar"
    assert as_source("{/abs/a,b}") == f"{{/abs/a,{tmp_path}/b}}"
