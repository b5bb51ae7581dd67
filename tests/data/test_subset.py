"""Test a subset of the images of a store."""

import numpy as np
import torch

from smi.data import Batches, load
from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.data.subset import Subset
from support.pictures import Draw

PIXELS = np.arange(64, dtype=np.uint8).reshape(64, 1, 1, 1).repeat(3, axis=1)


def test_a_subset_has_its_own_images_labels_and_index() -> None:
    whole = ArrayStore(ArraySet("numbers", "train", (PIXELS,), np.arange(64) % 5, tuple("abcde")))
    part = Subset(whole, torch.tensor([3, 9, 30, 60]))
    assert len(part) == 4
    assert part[:][:, 0, 0, 0].tolist() == [3, 9, 30, 60]
    assert part.labels is not None
    assert part.labels.tolist() == [3, 4, 0, 0]
    batch = Batches(part, 4, seed=1).batch(0)
    assert sorted(batch.index.tolist()) == [0, 1, 2, 3]
    assert torch.tensor([3, 9, 30, 60])[batch.index].tolist() == batch.images[:, 0, 0, 0].tolist()


def test_a_bad_file_is_replaced_within_the_subset(tmp_path, draw: Draw) -> None:
    for i in range(20):
        draw(tmp_path / "photos" / f"{i:02}.png", seed=i)
    (tmp_path / "photos" / "05.png").write_bytes(b"no picture")
    whole = load(tmp_path / "photos", "pretrain", resolution=8, max_cache_bytes=0)
    part = Subset(whole, torch.tensor([0, 5, 6]))
    images, index = part.start_squares(torch.tensor([1]))()
    assert index.tolist() == [2]  # 06 replaces it, which is in the subset
    assert torch.equal(images, part[[2]])
    others = Subset(whole, torch.tensor([0, 5, 9]))  # 06 is not in this subset: 09 replaces it
    images, index = others.start_squares(torch.tensor([1, 0]))()
    assert index.tolist() == [2, 0]
    assert torch.equal(images[0], whole[[9]][0])
    assert [bad.path for bad in part.bad] == ["05.png"]
    part.close()
