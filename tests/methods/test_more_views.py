"""More than two views, and small ones, for the methods that compare pairs of views."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from smi import losses
from smi.errors import UserError
from smi.methods import LossSetup, find_method
from smi.views import policy
from support.tiny import batch, make, views

NAMES = ["SMI", "BarlowTwins", "VICReg"]
LOSSES = {
    "SMI": losses.smi_loss_plain,
    "BarlowTwins": losses.barlow_twins_loss,
    "VICReg": losses.vicreg_loss,
}
some = pytest.mark.parametrize("name", NAMES)


def barlow_twins(z1: Tensor, z2: Tensor) -> Tensor:
    """Follow the paper, in one formula after another."""
    n, k = z1.shape
    z1, z2 = ((z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() for z in (z1, z2))
    c = z1.T @ z2 / n
    eye = torch.eye(k, dtype=c.dtype)
    return ((c - eye) ** 2 * (eye + 0.0051 * (1 - eye))).sum()


def vicreg(z1: Tensor, z2: Tensor) -> Tensor:
    """Follow the paper, in one formula after another."""
    total = 25 * (z1 - z2).square().mean()
    for z in (z1, z2):
        covariance = torch.cov(z.T)
        off = covariance - covariance.diag().diag()
        total = total + 25 * (1 - (z.var(0) + 1e-4).sqrt()).clamp_min(0).mean() / 2
        total = total + off.square().sum() / z.shape[1]
    return total


@pytest.mark.parametrize(("n", "k"), [(5, 12), (9, 4)])
@pytest.mark.parametrize("num_views", [2, 3, 5])
@pytest.mark.parametrize(
    ("loss", "reference"),
    [(losses.barlow_twins_loss, barlow_twins), (losses.vicreg_loss, vicreg)],
)
def test_losses_of_all_pairs_are_added_up(loss, reference, num_views, n, k):
    torch.manual_seed(num_views)
    shared = torch.randn(n, k, dtype=torch.float64)
    z = [
        (shared + 0.5 * torch.randn(n, k, dtype=torch.float64)).requires_grad_()
        for _ in range(num_views)
    ]
    expected = sum(reference(a, b) for a, b in combinations(z, 2))
    terms = loss(*z)
    torch.testing.assert_close(terms.total, expected)
    torch.testing.assert_close(
        torch.autograd.grad(terms.total, z), torch.autograd.grad(expected, z)
    )


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (losses.BarlowTwinsLoss, losses.barlow_twins_loss),
        (losses.VICRegLoss, losses.vicreg_loss),
    ],
)
def test_modules_take_more_views(module, function):
    z = [torch.randn(6, 4) for _ in range(3)]
    assert torch.equal(module()(*z), function(*z).total)


@some
def test_a_method_has_its_own_pass_for_each_large_view(name):
    method = make(name, views=3, crops=2)
    x = views(method, 6)
    assert [view.shape[-1] for view in x] == [8, 8, 8, 5, 5]
    out = method(x, batch(6))
    h = [method.encoder(view) for view in x[:3]]
    small = method.encoder(torch.cat(x[3:]))
    z = [method.projector(features) for features in h]
    z += method.projector(small).chunk(2)
    expected = LOSSES[name](*z)
    torch.testing.assert_close(out.loss, expected.total)
    assert list(out.terms) == list(expected)
    assert torch.equal(out.h, h[0])
    assert torch.equal(out.z2, z[1])
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@some
def test_the_views_of_the_recipe_take_turns(name):
    recipe = policy("imagenet")
    first, second = recipe.views
    assert make(name).policy(recipe) is recipe
    assert make(name, views=5).policy(recipe).views == (first, second, first, second, first)
    mixed = make(name, views=3, crops=4).policy(recipe).views
    assert [view.size for view in mixed] == [224] * 3 + [96] * 4
    assert [view.solarize_p for view in mixed] == [0, 1, 0] + [0] * 4


@some
@pytest.mark.parametrize("num_views", [0, 1])
def test_fewer_than_two_views_are_refused(name, num_views):
    with pytest.raises(UserError, match=f"method.views must be 2 or more, not {num_views}"):
        make(name, views=num_views)


@some
def test_random_embeddings_give_the_expected_loss(name):
    """Compare the range with the loss of Gaussian embeddings, for four views."""
    n, k, num_views = 64, 32, 4
    lowest, random = find_method(name).loss_range(LossSetup(n, k, num_views=num_views))
    generator = torch.Generator().manual_seed(0)
    measured = [
        LOSSES[name](*torch.randn(num_views, n, k, generator=generator)).total.item()
        for _ in range(20)
    ]
    # The standard deviations of VICReg's coordinates fall a little below 1 by chance.
    tolerance = 0.1 if name == "VICReg" else 0.02
    assert sum(measured) / 20 == pytest.approx(random, rel=tolerance)
    assert lowest < min(measured)
