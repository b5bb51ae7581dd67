"""Test energy maps against a plain norm over channels."""

import pytest
import torch
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.energy_maps import energies
from smi.runs.encoder import load
from support.figures import draw


def test_energy_is_the_norm_over_channels(trained):
    encoder = load(trained[0])
    encoder.image_size = 32  # the last map has 4 x 4 places
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    energy, places = energies(encoder, images)
    features = encoder.map(encoder.transform(images)).detach()
    assert places == tuple(features.shape[2:]) == (4, 4)
    plain = features.square().sum(dim=1, keepdim=True).sqrt()
    expected = torch.nn.functional.interpolate(plain, (8, 8), mode="bilinear")[:, 0]
    torch.testing.assert_close(energy, expected)


def test_an_earlier_map_is_shown_for_small_images(trained):
    encoder = load(trained[0])
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    for size, last in ((8, 1), (16, 2)):
        encoder.image_size = size
        x = encoder.transform(images)
        assert encoder.map(x).shape[2:] == (last, last)
        energy, places = energies(encoder, images)
        assert places == (4, 4)
        before = [
            m
            for m in encoder.network.forward_intermediates(x, intermediates_only=True)
            if m.shape[-1] == 4
        ][-1].detach()
        plain = before.square().sum(dim=1, keepdim=True).sqrt()
        torch.testing.assert_close(
            energy, torch.nn.functional.interpolate(plain, (8, 8), mode="bilinear")[:, 0]
        )
    encoder.image_size = 2
    with pytest.raises(
        UserError, match="one position for images of 2 pixels, and no earlier map has 4 × 4"
    ):
        energies(encoder, images)


def test_the_map_covers_the_crop_of_the_encoder(trained):
    encoder = load(trained[0])
    encoder.image_size = 32
    images = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    energy, _ = energies(encoder, images)
    assert energy.shape == (2, 40, 40)
    least = energy.amin((1, 2))
    for edge in (energy[:, :2], energy[:, 37:], energy[:, :, :2], energy[:, :, 37:]):
        assert torch.equal(edge, least[:, None, None].expand_as(edge))
    assert energy[:, 2:37, 2:37].std() > 0


def test_energy_maps_have_a_row_for_each_image(trained):
    figure = draw("energy-maps", trained, images=3)
    maps = [t for t in figure.data if isinstance(t, go.Heatmap)]
    pictures = [t for t in figure.data if isinstance(t, go.Image)]
    assert (len(maps), len(pictures)) == (6, 9)
    assert all(t.z.max() == 100 and t.z.min() == 0 and t.z.shape == (8, 8) for t in maps)
