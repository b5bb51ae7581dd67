"""Test the centre crop, and that normalising images and undoing it gives the same pixels."""

import pytest
import torch
from torchvision.transforms.v2 import functional as T

from smi.views.normalisation import centre_crop, kept_side, normalise, unnormalise

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


@pytest.mark.parametrize(
    ("resolution", "size", "side"),
    [(256, 224, 224), (256, 96, 224), (73, 64, 64), (20, 16, 18), (32, 32, 32), (8, 16, 8)],
)
def test_images_with_a_margin_keep_seven_eighths(resolution, size, side):
    """Those of the encoder's size or smaller stay whole."""
    assert kept_side(resolution, size) == side
    images = torch.randint(0, 256, (2, 3, resolution, resolution), dtype=torch.uint8)
    kept = centre_crop(images, side)
    assert torch.equal(kept, T.center_crop(images, [side, side]))
    expected = T.resize(kept.float(), [size, size], antialias=True)
    torch.testing.assert_close(
        normalise(images, (0, 0, 0), (1 / 255,) * 3, size), expected, rtol=0, atol=0.01
    )


def test_a_crop_to_the_input_size_does_not_resize():
    images = torch.randint(0, 256, (2, 3, 256, 256), dtype=torch.uint8)
    x = normalise(images, MEAN, STD, 224)
    assert torch.equal(unnormalise(x, MEAN, STD), images[..., 16:240, 16:240])
    whole = normalise(images, MEAN, STD, 224, crop=256)
    assert not torch.equal(whole, x)
