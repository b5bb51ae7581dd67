"""Barlow Twins (Zbontar et al. 2021, arXiv:2103.03230). N samples on all devices together, K embedding coordinates."""

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


class BarlowTwinsLoss(nn.Module):
    """`barlow_twins_loss` as a module: `BarlowTwinsLoss()(z0, z1)` is the scalar to minimise."""

    def __init__(self, redundancy_weight: float = 5.1e-3, eps: float = 1e-5):
        super().__init__()
        self.redundancy_weight = redundancy_weight
        self.eps = eps

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        return barlow_twins_loss(
            z1, z2, redundancy_weight=self.redundancy_weight, eps=self.eps
        ).total


def barlow_twins_loss(
    z1: Tensor, z2: Tensor, *, redundancy_weight: float = 5.1e-3, eps: float = 1e-5
) -> Terms:
    """Push the cross-correlation of two views towards the identity.

    Up to N = K/2 its off-diagonal squares are summed without forming it, from two N x N matrices: the same number, sooner. (The diagonal's
    squares are taken from the sum of all. By the rank of the matrix at least as much is left, unless most coordinates are dead, and then
    the alignment is larger by far than what rounding leaves.)

    eps: added to the variance of each coordinate, as batch normalisation does.

    W devices of N samples give the value of one batch of W*N, and its gradient once averaged as DDP does: the embeddings are gathered.

    A coordinate without variance, as all are at N = 1, has correlation 0 with all others and no gradient. Shapes or devices that differ and
    integers are ValueErrors. Computed in float32, or float64 if an input is, whatever autocast says.
    """
    check_positive(eps=eps)
    check_finite(redundancy_weight=redundancy_weight)
    with float32_island(z1, z2) as (z1, z2):
        z1, z2 = standardize_columns(join(z1), eps), standardize_columns(join(z2), eps)
        num_samples, dim = z1.shape
        if 2 * num_samples <= dim:
            diagonal = (z1 * z2).sum(dim=0) / num_samples
            squares = (gram(z1) * gram(z2)).sum() / num_samples**2 - diagonal.square().sum()
        else:
            c = product(z1.T, z2) / num_samples  # [K, K]
            diagonal, squares = c.diagonal(), off_diagonal(c).square().sum()
        return Terms(
            alignment=(1 - diagonal).square().sum(), redundancy=redundancy_weight * squares
        )


def standardize_columns(z: Tensor, eps: float) -> Tensor:
    """Coordinates with mean 0 and variance 1 over the batch, at any scale of the input."""
    scale = peak(z, 0).clamp_min(
        1
    )  # huge coordinates are brought down before they are squared, and eps with them
    z = z / scale
    z = z - z.mean(dim=0)
    rounding = 2 * torch.finfo(z.dtype).eps
    variance = z.square().mean(dim=0) + (eps / scale.square()).clamp_min(rounding**2)
    return z * variance.rsqrt()
