"""Test that normalising images and undoing it gives the same pixels."""

import torch

from smi.views.normalisation import normalise, unnormalise

MEAN = (0.4, 0.5, 0.6)
STD = (0.2, 0.25, 0.3)


def test_unnormalise_undoes_normalise():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, -1, -1)
    x = normalise(images, MEAN, STD)
    assert torch.equal(unnormalise(x, MEAN, STD), images)
    assert torch.equal(unnormalise(x[0], MEAN, STD), images[0])


def test_unnormalise_clips():
    x = torch.tensor([-100.0, 100.0]).view(1, 1, 2).expand(3, 1, 2)
    pixels = unnormalise(x, MEAN, STD)
    assert pixels.dtype == torch.uint8
    assert pixels[0].tolist() == [[0, 255]]
