"""Compute the VICReg loss (Bardes et al. 2022, arXiv:2105.04906).

N samples on all devices together, K embedding coordinates.
"""

from itertools import combinations

import torch
from torch import Tensor, nn

from smi.distributed import join
from smi.losses.numerics import (
    check_positive,
    check_weights,
    float32_island,
    gram,
    off_diagonal,
    peak,
    product,
)
from smi.losses.terms import Terms

INVARIANCE_WEIGHT = 25.0  # the paper's lambda
VARIANCE_WEIGHT = 25.0  # mu
COVARIANCE_WEIGHT = 1.0  # nu
EPS = 1e-4
MAX_COORDINATE = 1e5  # the loss grows with the fourth power: larger embeddings are scaled down
NUM_HEAVY = 16  # coordinates with the most variance; their covariances are formed directly


class VICRegLoss(nn.Module):
    """Wrap `vicreg_loss`: `VICRegLoss()(z1, z2)` is the scalar; more views work too."""

    def __init__(
        self,
        invariance_weight: float = INVARIANCE_WEIGHT,
        variance_weight: float = VARIANCE_WEIGHT,
        covariance_weight: float = COVARIANCE_WEIGHT,
        eps: float = EPS,
    ):
        super().__init__()
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight
        self.eps = eps

    def forward(self, z1: Tensor, z2: Tensor, *more: Tensor) -> Tensor:
        """Return the scalar to minimise."""
        return vicreg_loss(
            z1,
            z2,
            *more,
            invariance_weight=self.invariance_weight,
            variance_weight=self.variance_weight,
            covariance_weight=self.covariance_weight,
            eps=self.eps,
        ).total


def vicreg_loss(
    z1: Tensor,
    z2: Tensor,
    *more: Tensor,
    invariance_weight: float = INVARIANCE_WEIGHT,
    variance_weight: float = VARIANCE_WEIGHT,
    covariance_weight: float = COVARIANCE_WEIGHT,
    eps: float = EPS,
) -> Terms:
    """Bring two views together while coordinates keep their variance and are uncorrelated.

    The terms are alignment, variance and covariance. invariance_weight, variance_weight and
    covariance_weight are the paper's lambda, mu and nu.

    The losses of all pairs of more than two views are added up, so the variance and the covariance
    of each of V views count V - 1 times.

    Up to N = K/2 the squares of the K x K covariances are summed from an N x N matrix and a few
    rows: the same number in less time.

    W devices of N samples give the value of one batch of W*N, and its gradient after the averaging
    of DDP: the embeddings are gathered.

    N = 1 has no variance and no covariance. The loss grows with the fourth power of the scale:
    embeddings with coordinates beyond 1e5 are scaled down to 1e5, so that value and gradient stay
    finite. Different shapes or devices and integers raise a ValueError. The loss is computed in
    float32, or in float64 if an input is, also under autocast.
    """
    check_positive(eps=eps)
    check_weights(
        invariance_weight=invariance_weight,
        variance_weight=variance_weight,
        covariance_weight=covariance_weight,
    )
    with float32_island(z1, z2, *more) as zs:
        zs = [_limit(join(z)) for z in zs]
        centred = [z - z.mean(dim=0) for z in zs]
        of_views = [_variance_and_covariance(z, eps) for z in centred]
        variances, covariances = zip(*of_views, strict=True)
        distances = [nn.functional.mse_loss(a, b) for a, b in combinations(zs, 2)]
        num_others = len(zs) - 1
        return Terms(
            alignment=invariance_weight * torch.stack(distances).sum(),
            variance=variance_weight * num_others * torch.stack(variances).sum() / 2,
            covariance=covariance_weight * num_others * torch.stack(covariances).sum(),
        )


def _variance_and_covariance(z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean shortfall of the standard deviations from 1, and the covariance term.

    The covariance term is the sum of the squared covariances of different coordinates, over K.
    """
    num_samples, dim = z.shape
    freedom = max(num_samples - 1, 1)
    variance = z.square().sum(dim=0) / freedom
    if 2 * num_samples <= dim:
        squares = _squares_from_samples(z, variance, freedom)
    else:
        squares = off_diagonal(product(z.T, z) / freedom).square().sum()
    return nn.functional.relu(1 - (variance + eps).sqrt()).mean(), squares / dim


def _squares_from_samples(z: Tensor, variance: Tensor, freedom: int) -> Tensor:
    """Sum the squared covariances of different coordinates without their K x K matrix.

    The squares of all entries of z.T z and of z z.T have the same sum, and the squared variances
    are subtracted from it. If a few coordinates had far more variance than the rest, only rounding
    would be left. So the rows of those with the most variance are formed and summed directly.
    """
    heavy = variance.detach().topk(min(NUM_HEAVY, len(variance))).indices
    rest = torch.ones_like(variance).index_fill(0, heavy, 0)  # [K]: 1 for the others
    rows = product(z[:, heavy].T, z) / freedom  # [16, K]
    rows = rows.scatter(1, heavy[:, None], 0)
    among_rest = (gram(z * rest) / freedom).square().sum() - (variance * rest).square().sum()
    # Each pair of a heavy and another coordinate counts twice.
    return (rows.square() * (1 + rest)).sum() + among_rest


def _limit(z: Tensor) -> Tensor:
    """Scale the embeddings down if a coordinate is beyond MAX_COORDINATE."""
    return z * (MAX_COORDINATE / peak(z.flatten(), 0).clamp_min(MAX_COORDINATE))
