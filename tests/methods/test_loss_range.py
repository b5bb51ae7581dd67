"""Compare the loss range of every method with the losses themselves."""

import inspect
import math

import pytest
import torch
from torch.nn import functional as F

from smi import losses
from smi.methods import METHOD_NAMES, LossSetup, Method, find_method, settings_of
from support.homemade import Agreement

SIZES = ("world_size", "num_views")


def setup(name, n, k, **settings):
    """Return the name of a method, and a setup with these settings."""
    sizes = {size: settings.pop(size) for size in SIZES if size in settings}
    return name, LossSetup(n, k, settings=settings, **sizes)


def loss_range(name, loss_setup):
    limits = find_method(name).describe(loss_setup)["loss_range"]
    return None if limits is None else tuple(limits)


def total(loss, *arguments, **settings):
    return loss(*arguments, **settings).total.item()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def centred_orthonormal_rows(n, k):
    """Return n <= k - 1 orthogonal rows of length 1 and mean 0."""
    basis = torch.linalg.qr(
        torch.cat([torch.ones(k, 1, dtype=torch.float64), randn(k, n)], dim=1)
    ).Q
    return basis[:, 1:].T


def simplex(n):
    """Return n unit vectors as far apart as possible: every cosine is -1 / (n - 1)."""
    return F.normalize(torch.eye(n, dtype=torch.float64) - 1 / n, dim=1)


def random_scores(n, k, p):
    directions = F.normalize(randn(p, k), dim=1)
    return [F.normalize(randn(n, k), dim=1) @ directions.T for _ in range(2)]


@pytest.mark.parametrize(
    ("expected", "loss"),
    [
        (setup("SMI", 64, 128), lambda: losses.smi_loss(randn(64, 128), randn(64, 128))),
        (setup("SMI", 128, 12), lambda: losses.smi_loss(randn(128, 12), randn(128, 12))),
        (
            setup("SMI", 64, 64, redundancy_weight=1.0),
            lambda: losses.smi_loss(randn(64, 64), randn(64, 64), redundancy_weight=1.0),
        ),
        (
            setup("SMI", 64, 64, target=2, shift=0.3, eps=0.1),
            lambda: losses.smi_loss(randn(64, 64), randn(64, 64), target=2, shift=0.3, eps=0.1),
        ),
        (
            setup("BarlowTwins", 64, 256),
            lambda: losses.barlow_twins_loss(randn(64, 256), randn(64, 256)),
        ),
        (
            setup("BarlowTwins", 256, 64),
            lambda: losses.barlow_twins_loss(randn(256, 64), randn(256, 64)),
        ),
        (setup("VICReg", 256, 64), lambda: losses.vicreg_loss(randn(256, 64), randn(256, 64))),
        (setup("SimCLR", 256, 64), lambda: losses.nt_xent_loss(randn(256, 64), randn(256, 64))),
        (
            setup("SimCLR", 256, 64, temperature=0.2),
            lambda: losses.nt_xent_loss(randn(256, 64), randn(256, 64), temperature=0.2),
        ),
        (
            setup("MoCo", 256, 128, queue_size=4096),
            lambda: losses.info_nce_loss(randn(256, 128), randn(256, 128), randn(4096, 128)),
        ),
        (
            setup("MoCoV2", 256, 128, queue_size=4096),
            lambda: losses.info_nce_loss(
                randn(256, 128), randn(256, 128), randn(4096, 128), temperature=0.2
            ),
        ),
        (
            setup("PIRL", 256, 128, num_negatives=4096),
            lambda: losses.info_nce_loss(randn(256, 128), randn(256, 128), randn(4096, 128)),
        ),
        (
            setup("SwAV", 256, 128, num_prototypes=300),
            lambda: losses.swav_loss(random_scores(256, 128, 300)),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_loss_of_random_embeddings(expected, loss):
    lowest, random = loss_range(*expected)
    value = torch.stack([loss().total for _ in range(5)]).mean().item()
    assert value == pytest.approx(random, rel=0.03)
    assert value > lowest


def test_range_of_smi_with_three_views():
    lowest, random = loss_range(*setup("SMI", 32, 64, num_views=3))
    value = total(losses.smi_loss, randn(32, 64), randn(32, 64), randn(32, 64))
    assert value == pytest.approx(random, rel=0.03)
    assert lowest < random


def test_least_loss_of_smi():
    n, k = 16, 64
    basis = centred_orthonormal_rows(2 * n, k)
    rho = math.sqrt(1 - math.exp(-2) + 1e-6)  # where the dependency is the target, 1
    z1, z2 = basis[:n], rho * basis[:n] + math.sqrt(1 - rho**2) * basis[n:]
    lowest, _ = loss_range(*setup("SMI", n, k))
    assert loss_range(*setup("SMI", n, k, redundancy_weight="auto")) == loss_range(
        *setup("SMI", n, k, redundancy_weight=7 / (n - 1))
    )
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
def test_least_loss_of_barlow_twins(n, k):
    lowest, _ = loss_range(*setup("BarlowTwins", n, k, redundancy_weight=0.05))
    least = descend(lambda z: losses.barlow_twins_loss(*z, redundancy_weight=0.05).total, 2, n, k)
    assert lowest - 1e-6 <= least <= 1.2 * lowest + 1e-3


def test_least_loss_of_smi_with_more_samples_than_dimensions():
    lowest, _ = loss_range(*setup("SMI", 20, 6, redundancy_weight=1.0))
    assert (
        descend(lambda z: losses.smi_loss_plain(*z, redundancy_weight=1.0).total, 2, 20, 6)
        >= lowest
    )
    assert lowest > 2 * loss_range(*setup("SMI", 20, 60, redundancy_weight=1.0))[0]


def test_least_loss_of_vicreg():
    z = 10 * centred_orthonormal_rows(8, 40).T
    assert total(losses.vicreg_loss, z, z) == pytest.approx(
        loss_range(*setup("VICReg", 40, 8))[0], abs=1e-9
    )


def test_least_loss_of_nt_xent():
    z = simplex(16)
    lowest, _ = loss_range(*setup("SimCLR", 16, 16))
    assert total(losses.nt_xent_loss, z, z) == pytest.approx(lowest, rel=1e-9)
    assert descend(lambda z: losses.nt_xent_loss(*z).total, 2, 16, 16) == pytest.approx(
        lowest, rel=1e-2
    )


def test_least_loss_of_info_nce():
    q = torch.eye(4, dtype=torch.float64)[:1]
    lowest, _ = loss_range(*setup("MoCo", 1, 4, queue_size=9, temperature=0.5))
    assert total(losses.info_nce_loss, q, q, -q.expand(9, 4), temperature=0.5) == pytest.approx(
        lowest, rel=1e-9
    )


@pytest.mark.parametrize(
    ("method", "offset", "scale"), [("BYOL", 4, 4), ("SimSiam", 0, 1)]
)  # BYOL: two times 2 - 2 cosine
def test_range_of_negative_cosine(method, offset, scale):
    z = randn(2000, 64)
    lowest, random = loss_range(*setup(method, 2000, 64))
    assert offset + scale * total(losses.negative_cosine_loss, z, z) == pytest.approx(
        lowest, abs=1e-9
    )
    assert offset + scale * total(losses.negative_cosine_loss, z, randn(2000, 64)) == pytest.approx(
        random, abs=0.02
    )


def test_least_loss_of_swav():
    scores = torch.tensor(
        [[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64
    )  # two prototypes, opposite to each other
    lowest, _ = loss_range(*setup("SwAV", 2, 4, num_prototypes=2))
    assert total(losses.swav_loss, [scores, scores]) == pytest.approx(lowest, rel=1e-3)


def test_range_of_dino():
    flat, sharp, center = torch.zeros(4, 50), 1e3 * torch.eye(50)[:4], torch.zeros(50)
    lowest, random = loss_range(*setup("DINO", 4, None, num_outputs=50))
    assert total(losses.dino_loss, [flat], [flat, flat], center) == pytest.approx(random, rel=1e-6)
    assert total(losses.dino_loss, [sharp], [sharp, sharp], center) == pytest.approx(
        lowest, abs=1e-6
    )


@pytest.mark.parametrize("name", ["BarlowTwins", "VICReg", "SimCLR"])
def test_methods_that_gather_have_the_range_of_the_joined_batch(name):
    joined = loss_range(*setup(name, 64, 64))
    assert joined is not None
    assert loss_range(*setup(name, 32, 64, world_size=2)) == joined
    assert loss_range(*setup(name, 32, 64)) != joined


@pytest.mark.parametrize("name", sorted({*METHOD_NAMES} - {"BarlowTwins", "VICReg", "SimCLR"}))
def test_other_methods_have_a_range_per_device(name):
    alone = loss_range(*setup(name, 32, 64))
    assert alone is not None
    assert loss_range(*setup(name, 32, 64, world_size=2)) == alone


@pytest.mark.parametrize(
    "refused",
    [
        setup("SMI", 8, None),
        setup("SMI", 0, 8),
        setup("SMI", 8, 8, redundancy_weight=-1.0),
        setup("SMI", 8, 8, eps=-5.0),
        setup("SMI", 8, 8, redundancy_weight=math.inf),
        setup("SMI", 8, 8, redundancy_weight="much"),
        setup("BarlowTwins", 1, 8),
        setup("VICReg", 8, None),
        setup("SimCLR", 1, 8),
        setup("SimCLR", 8, 8, temperature=0.0),
        setup("MoCo", 8, 8, queue_size=0),
        setup("PIRL", 8, 8, num_negatives=0),
        setup("SwAV", 8, 8, num_prototypes=0),
        setup("DINO", 8, 8, num_outputs=1),
        setup("support.homemade.Agreement", 8, 8),
    ],
    ids=lambda refused: refused[0],
)
def test_range_is_none_if_it_cannot_be_computed(refused):
    assert loss_range(*refused) is None


# The settings on which a range depends, and another value of each. BYOL and SimSiam have none.
SETTINGS = {
    "SMI": {"redundancy_weight": 0.5, "target": 2.0, "shift": 0.3, "eps": 0.1},
    "BarlowTwins": {"redundancy_weight": 0.1},
    "VICReg": {"invariance_weight": 5.0, "covariance_weight": 3.0},
    "SimCLR": {"temperature": 0.2},
    "BYOL": {},
    "MoCo": {"temperature": 0.2, "queue_size": 100},
    "MoCoV2": {"temperature": 0.1, "queue_size": 100},
    "SimSiam": {},
    "SwAV": {"temperature": 0.2, "num_prototypes": 100},
    "DINO": {"num_outputs": 100},
    "PIRL": {"temperature": 0.2, "num_negatives": 100},
}


def test_all_methods_are_here():
    assert tuple(SETTINGS) == METHOD_NAMES


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_decide_the_range_and_their_defaults_stand_in_the_signature(name):
    by_default = loss_range(*setup(name, 64, 256))
    assert by_default is not None
    parameters = settings_of(find_method(name))
    for setting, value in SETTINGS[name].items():
        default = parameters[setting].default
        assert loss_range(*setup(name, 64, 256, **{setting: default})) == by_default
        assert loss_range(*setup(name, 64, 256, **{setting: value})) != by_default


@pytest.mark.parametrize("name", ["SMI", "BarlowTwins", "VICReg", "SimCLR", "MoCo", "PIRL", "SwAV"])
def test_methods_have_the_defaults_of_their_losses(name):
    loss = {
        "SMI": losses.SMILoss,
        "BarlowTwins": losses.BarlowTwinsLoss,
        "VICReg": losses.VICRegLoss,
        "SimCLR": losses.NTXentLoss,
        "MoCo": losses.InfoNCELoss,
        "PIRL": losses.InfoNCELoss,
        "SwAV": losses.SwAVLoss,
    }[name]
    of_method = settings_of(find_method(name))
    of_loss = inspect.signature(loss).parameters
    shared = set(of_method) & set(of_loss)
    assert shared
    assert all(of_method[setting].default == of_loss[setting].default for setting in shared)


def test_a_subclass_without_the_settings_has_no_range():
    class Renamed(find_method("SimCLR")):  # type: ignore[misc]
        def __init__(self, encoder, *, heat: float = 0.5):
            super().__init__(encoder, temperature=heat)

    assert Renamed.display_name == "Renamed"
    assert Renamed.describe(LossSetup(8, 8))["loss_range"] is None


def test_a_method_of_ones_own_has_generic_descriptions():
    description = Agreement.describe(LossSetup(8, 8))
    assert description["display_name"] == "Agreement"
    assert description["loss_range"] is None
    assert description["collapse_remedies"] == Method.collapse_remedies
