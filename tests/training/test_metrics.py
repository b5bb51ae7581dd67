"""Measure features and projections."""

import math

import pytest
import torch

from smi.training.metrics import effective_rank, feature_std, representation_metrics


def test_against_plain_float64():
    h, z1, z2 = torch.randn(32, 12).relu(), torch.randn(32, 20), torch.randn(32, 20)
    z2 = z2 + 0.3 * z1
    found = representation_metrics(h, z1, z2)
    wide = h.double()
    unit = wide / wide.norm(dim=1, keepdim=True)
    rho = torch.stack(
        [
            torch.corrcoef(torch.stack([a, b]))[0, 1]
            for a, b in zip(z1.double(), z2.double(), strict=True)
        ]
    )
    spectrum = torch.linalg.eigvalsh(torch.cov(wide.T)).clamp_min(0)
    share = spectrum / spectrum.sum()
    expected = {
        "feature_std": unit.std(dim=0).mean(),
        "feature_std_raw": wide.std(dim=0).mean(),
        "effective_rank": torch.exp(-torch.special.xlogy(share, share).sum()),
        "dependency": (-0.5 * torch.log(1 - rho.square() + 1e-6)).mean(),
        "anticorrelated": (rho < 0).double().mean(),
    }
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.item() == pytest.approx(expected[name].item(), rel=1e-4), name


@pytest.mark.parametrize(("n", "f"), [(64, 8), (8, 64)])
def test_rank_counts_directions(n, f):
    basis = torch.linalg.qr(torch.randn(f, f))[0]
    for rank in (1, 3, 5):
        coordinates = torch.linalg.qr(torch.randn(n, n))[0][:, : rank + 1]
        coordinates = torch.linalg.qr(coordinates - coordinates.mean(dim=0))[0][:, :rank]
        assert effective_rank(5 + coordinates @ basis[:rank]).item() == pytest.approx(
            rank, rel=1e-3
        )


@pytest.mark.parametrize(
    "h",
    [
        torch.zeros(4, 3),
        torch.ones(4, 3),
        torch.ones(1, 3),
        1e20 * torch.randn(4, 3),
        1e-20 * torch.randn(4, 3),
    ],
)
def test_extremes_are_finite(h):
    assert all(value.isfinite() for value in representation_metrics(h, h, h).values())
    assert effective_rank(torch.ones(4, 3)) == 0
    assert feature_std(torch.ones(1, 3)) == 0


def test_isotropic_features_have_the_largest_std():
    h = torch.nn.functional.normalize(torch.randn(4096, 64), dim=1)
    assert feature_std(h).item() == pytest.approx(1 / math.sqrt(64), rel=0.02)


def test_half_precision():
    h = torch.randn(8, 4, dtype=torch.bfloat16)
    assert all(value.isfinite() for value in representation_metrics(h, h, -h).values())
    assert representation_metrics(h, h, -h)["anticorrelated"] == 1
