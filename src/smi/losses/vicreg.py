"""VICReg (Bardes et al. 2022, arXiv:2105.04906). N samples on all devices together, K embedding coordinates."""

import torch
from torch import Tensor, nn

from smi.distributed import join
from smi.losses.embeddings import (
    check_finite,
    check_positive,
    float32_island,
    gram,
    off_diagonal,
    peak,
    product,
)
from smi.losses.terms import Terms


class VICRegLoss(nn.Module):
    """`vicreg_loss` as a module: `VICRegLoss()(z0, z1)` is the scalar to minimise."""

    def __init__(
        self,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        eps: float = 1e-4,
    ):
        super().__init__()
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight
        self.eps = eps

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        return vicreg_loss(
            z1,
            z2,
            invariance_weight=self.invariance_weight,
            variance_weight=self.variance_weight,
            covariance_weight=self.covariance_weight,
            eps=self.eps,
        ).total


def vicreg_loss(
    z1: Tensor,
    z2: Tensor,
    *,
    invariance_weight: float = 25.0,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
    eps: float = 1e-4,
) -> Terms:
    """Bring two views together (alignment) while every coordinate keeps its variance and shares none (variance, covariance).

    Up to N = K/2 the squares of the K x K covariances are summed from an N x N matrix and a few rows: the same number, sooner.

    W devices of N samples give the value of one batch of W*N, and its gradient once averaged as DDP does: the embeddings are gathered.

    N = 1 has no variance and no covariance. The loss grows with the fourth power of the scale: embeddings with coordinates beyond 1e5 are
    scaled down to 1e5, so that value and gradient stay finite. Shapes or devices that differ and integers are ValueErrors. Computed in
    float32, or float64 if an input is, whatever autocast says.
    """
    check_positive(eps=eps)
    check_finite(
        invariance_weight=invariance_weight,
        variance_weight=variance_weight,
        covariance_weight=covariance_weight,
    )
    with float32_island(z1, z2) as (z1, z2):
        z1, z2 = _limit(join(z1)), _limit(join(z2))
        z1_centred, z2_centred = z1 - z1.mean(dim=0), z2 - z2.mean(dim=0)
        variance1, covariance1 = _variance_and_covariance(z1_centred, eps)
        variance2, covariance2 = _variance_and_covariance(z2_centred, eps)
        return Terms(
            alignment=invariance_weight * nn.functional.mse_loss(z1, z2),
            variance=variance_weight * (variance1 + variance2) / 2,
            covariance=covariance_weight * (covariance1 + covariance2),
        )


def _variance_and_covariance(z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What the standard deviations lack to 1, on average, and the squared covariances of different coordinates, summed and divided by K."""
    num_samples, dim = z.shape
    freedom = max(num_samples - 1, 1)
    variance = z.square().sum(dim=0) / freedom
    if 2 * num_samples <= dim:
        squares = _squares_from_samples(z, variance, freedom)
    else:
        squares = off_diagonal(product(z.T, z) / freedom).square().sum()
    return nn.functional.relu(1 - (variance + eps).sqrt()).mean(), squares / dim


def _squares_from_samples(z: Tensor, variance: Tensor, freedom: int) -> Tensor:
    """Squared covariances of different coordinates without the K x K matrix of them.

    The squares of all entries of z.T z and of z z.T have one sum, and the squared variances are taken from it. A few coordinates with far
    more variance than the rest would leave only rounding: the rows of those with most are formed and summed directly.
    """
    heavy = variance.detach().topk(min(16, len(variance))).indices
    rest = torch.ones_like(variance).index_fill(0, heavy, 0)  # [K]: 1 for the others
    rows = product(z[:, heavy].T, z) / freedom  # [16, K]
    rows = rows.scatter(1, heavy[:, None], 0)
    among_rest = (gram(z * rest) / freedom).square().sum() - (variance * rest).square().sum()
    return (
        rows.square() * (1 + rest)
    ).sum() + among_rest  # a heavy and another coordinate meet twice


def _limit(z: Tensor) -> Tensor:
    return z * (1e5 / peak(z.flatten(), 0).clamp_min(1e5))
