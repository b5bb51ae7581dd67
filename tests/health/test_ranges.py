"""Where a loss should be, held against the losses themselves."""

import importlib.util
import inspect
import math

import pytest
import torch
from torch.nn import functional as F

from smi import losses
from smi.health import Context, expected_range
from smi.health.ranges import PUBLISHED
from smi.methods import HOMES, find_method
from smi.methods import settings_of as settings_of_method


def context(method, n, k, **settings):
    return Context(method, batch_size=n, embedding_dim=k, feature_dim=32, settings=settings)


def total(loss, *arguments, **settings):
    return loss(*arguments, **settings).total.item()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def centred_orthonormal_rows(n, k):
    """n <= k - 1 rows of length 1 and mean 0, at right angles."""
    basis = torch.linalg.qr(
        torch.cat([torch.ones(k, 1, dtype=torch.float64), randn(k, n)], dim=1)
    ).Q
    return basis[:, 1:].T


def simplex(n):
    """n unit vectors as far apart as can be: every cosine is -1 / (n - 1)."""
    return F.normalize(torch.eye(n, dtype=torch.float64) - 1 / n, dim=1)


def prototypes_and_random_scores(n, k, p):
    directions = F.normalize(randn(p, k), dim=1)
    return [F.normalize(randn(n, k), dim=1) @ directions.T for _ in range(2)]


@pytest.mark.parametrize(
    ("expected", "loss"),
    [
        (context("SMI", 64, 128), lambda: losses.smi_loss(randn(64, 128), randn(64, 128))),
        (context("SMI", 128, 12), lambda: losses.smi_loss(randn(128, 12), randn(128, 12))),
        (
            context("SMI", 64, 64, redundancy_weight=1.0),
            lambda: losses.smi_loss(randn(64, 64), randn(64, 64), redundancy_weight=1.0),
        ),
        (
            context("SMI", 64, 64, reduction="mean"),
            lambda: losses.smi_loss(randn(64, 64), randn(64, 64), reduction="mean"),
        ),
        (
            context("SMI", 64, 64, target=2, shift=0.3, eps=0.1),
            lambda: losses.smi_loss(randn(64, 64), randn(64, 64), target=2, shift=0.3, eps=0.1),
        ),
        (
            context("BarlowTwins", 64, 256),
            lambda: losses.barlow_twins_loss(randn(64, 256), randn(64, 256)),
        ),
        (
            context("BarlowTwins", 256, 64),
            lambda: losses.barlow_twins_loss(randn(256, 64), randn(256, 64)),
        ),
        (context("VICReg", 256, 64), lambda: losses.vicreg_loss(randn(256, 64), randn(256, 64))),
        (context("SimCLR", 256, 64), lambda: losses.nt_xent_loss(randn(256, 64), randn(256, 64))),
        (
            context("SimCLR", 256, 64, temperature=0.2),
            lambda: losses.nt_xent_loss(randn(256, 64), randn(256, 64), temperature=0.2),
        ),
        (
            context("MoCo", 256, 128, num_negatives=4096),
            lambda: losses.info_nce_loss(randn(256, 128), randn(256, 128), randn(4096, 128)),
        ),
        (
            context("MoCoV2", 256, 128, queue_size=4096),
            lambda: losses.info_nce_loss(
                randn(256, 128), randn(256, 128), randn(4096, 128), temperature=0.2
            ),
        ),
        (
            context("PIRL", 256, 128, num_negatives=4096),
            lambda: losses.info_nce_loss(randn(256, 128), randn(256, 128), randn(4096, 128)),
        ),
        (
            context("SwAV", 256, 128, num_prototypes=300),
            lambda: losses.swav_loss(prototypes_and_random_scores(256, 128, 300)),
        ),
    ],
    ids=lambda value: value.method if isinstance(value, Context) else "",
)
def test_random_embeddings(expected, loss):
    lowest, random = expected_range(expected)
    value = torch.stack([loss().total for _ in range(5)]).mean().item()
    assert value == pytest.approx(random, rel=0.03)
    assert value > lowest


def test_three_views_of_smi():
    lowest, random = expected_range(Context("SMI", 32, 64, 8, num_views=3))
    value = total(losses.smi_loss, randn(32, 64), randn(32, 64), randn(32, 64))
    assert value == pytest.approx(random, rel=0.03)
    assert lowest < random


def test_smi_at_its_best():
    n, k = 16, 64
    basis = centred_orthonormal_rows(2 * n, k)
    rho = math.sqrt(1 - math.exp(-2) + 1e-6)  # where the dependency is the target, 1
    z1, z2 = basis[:n], rho * basis[:n] + math.sqrt(1 - rho**2) * basis[n:]
    lowest, _ = expected_range(context("SMI", n, k))
    assert total(losses.smi_loss, z1, z2) == pytest.approx(lowest, rel=1e-6)


def descend(loss, *shape, num_steps=400):
    z = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([z], lr=0.03)
    for _ in range(num_steps):
        optimizer.zero_grad()
        value = loss(z)
        value.backward()
        optimizer.step()
    return value.item()


@pytest.mark.parametrize(("n", "k"), [(9, 32), (9, 6)])
def test_barlow_twins_cannot_be_lower(n, k):
    lowest, _ = expected_range(context("BarlowTwins", n, k, redundancy_weight=0.05))
    found = descend(lambda z: losses.barlow_twins_loss(*z, redundancy_weight=0.05).total, 2, n, k)
    assert lowest - 1e-6 <= found <= 1.2 * lowest + 1e-3


def test_smi_cannot_be_lower_where_it_is_crowded():
    lowest, _ = expected_range(context("SMI", 20, 6, redundancy_weight=1.0))
    assert (
        descend(lambda z: losses.smi_loss_plain(*z, redundancy_weight=1.0).total, 2, 20, 6)
        >= lowest
    )
    assert (
        lowest > 2 * expected_range(context("SMI", 20, 60, redundancy_weight=1.0))[0]
    )  # with room for all it can be


def test_vicreg_at_its_best():
    z = 10 * centred_orthonormal_rows(8, 40).T
    assert total(losses.vicreg_loss, z, z) == pytest.approx(
        expected_range(context("VICReg", 40, 8))[0], abs=1e-9
    )


def test_nt_xent_at_its_best():
    z = simplex(16)
    lowest, _ = expected_range(context("SimCLR", 16, 16))
    assert total(losses.nt_xent_loss, z, z) == pytest.approx(lowest, rel=1e-9)
    assert descend(lambda z: losses.nt_xent_loss(*z).total, 2, 16, 16) == pytest.approx(
        lowest, rel=1e-2
    )


def test_info_nce_at_its_best():
    q = torch.eye(4, dtype=torch.float64)[:1]
    lowest, _ = expected_range(context("MoCo", 1, 4, num_negatives=9, temperature=0.5))
    assert total(losses.info_nce_loss, q, q, -q.expand(9, 4), temperature=0.5) == pytest.approx(
        lowest, rel=1e-9
    )


@pytest.mark.parametrize(
    ("method", "offset", "scale"), [("BYOL", 4, 4), ("SimSiam", 0, 1)]
)  # BYOL: two times 2 - 2 cosine
def test_negative_cosine(method, offset, scale):
    z = randn(2000, 64)
    lowest, random = expected_range(context(method, 2000, 64))
    assert offset + scale * total(losses.negative_cosine_loss, z, z) == pytest.approx(
        lowest, abs=1e-9
    )
    assert offset + scale * total(losses.negative_cosine_loss, z, randn(2000, 64)) == pytest.approx(
        random, abs=0.02
    )


def test_swav_at_its_best():
    scores = torch.tensor(
        [[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64
    )  # two prototypes, opposite to each other
    lowest, _ = expected_range(context("SwAV", 2, 4, num_prototypes=2))
    assert total(losses.swav_loss, [scores, scores]) == pytest.approx(lowest, rel=1e-3)


def test_dino():
    flat, sharp, center = torch.zeros(4, 50), 1e3 * torch.eye(50)[:4], torch.zeros(50)
    lowest, random = expected_range(context("DINO", 4, None, num_outputs=50))
    assert expected_range(context("DINO", 4, 50)) == (lowest, random)
    assert total(losses.dino_loss, [flat], [flat, flat], center) == pytest.approx(random, rel=1e-6)
    assert total(losses.dino_loss, [sharp], [sharp, sharp], center) == pytest.approx(
        lowest, abs=1e-6
    )


def test_devices_together():
    for method in ("BarlowTwins", "VICReg", "SimCLR"):
        both = expected_range(Context(method, 32, 64, 8, world_size=2))
        assert both == expected_range(context(method, 64, 64))
    assert expected_range(Context("SMI", 32, 64, 8, world_size=2)) == expected_range(
        context("SMI", 32, 64)
    )


@pytest.mark.parametrize(
    "unknown",
    [
        context("mine.Method", 8, 8),
        context("SMI", 8, None),
        context("SMI", 0, 8),
        context("SMI", 8, 8, redundancy_weight=-1.0),
        context("SMI", 8, 8, eps=-5.0),
        context("SMI", 8, 8, redundancy_weight=math.inf),
        context("BarlowTwins", 1, 8),
        context("VICReg", 8, None),
        context("SimCLR", 1, 8),
        context("SimCLR", 8, 8, temperature=0.0),
        context("MoCo", 8, 8),
        context("SwAV", 8, 8),
        context("DINO", 8, None),
    ],
)
def test_none_where_nothing_can_be_said(unknown):
    assert expected_range(unknown) is None


def test_published_settings_are_those_of_the_losses():
    of = {
        "smi": losses.smi_loss,
        "barlowtwins": losses.barlow_twins_loss,
        "vicreg": losses.vicreg_loss,
        "simclr": losses.nt_xent_loss,
        "moco": losses.info_nce_loss,
        "pirl": losses.info_nce_loss,
        "swav": losses.swav_loss,
    }
    for method, loss in of.items():
        knobs = {p.name: p.default for p in inspect.signature(loss).parameters.values()}
        assert {name: knobs[name] for name in PUBLISHED[method]} == PUBLISHED[method]


@pytest.mark.parametrize(
    "method",
    [name for name, home in HOMES.items() if importlib.util.find_spec(f"smi.methods.{home}")],
)
def test_settings_have_the_names_that_methods_give_them(method):
    settings = settings_of_method(find_method(method))
    assert {
        name: settings[name].default for name in PUBLISHED.get(method.lower(), {})
    } == PUBLISHED.get(method.lower(), {})
    counts = {
        "MoCo": ("num_negatives", "queue_size"),
        "PIRL": ("num_negatives",),
        "SwAV": ("num_prototypes",),
        "DINO": ("num_outputs",),
    }
    needed = counts.get(method.replace("V2", ""))
    assert needed is None or set(needed) & set(settings), (
        f"smi.health knows the size of {method} by {needed}"
    )
