"""Compute the Barlow Twins loss (Zbontar et al. 2021, arXiv:2103.03230).

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

REDUNDANCY_WEIGHT = 5.1e-3  # the paper's lambda
EPS = 1e-5


class BarlowTwinsLoss(nn.Module):
    """Wrap `barlow_twins_loss`: `BarlowTwinsLoss()(z1, z2)` is the scalar to minimise.

    More views work too.
    """

    def __init__(self, redundancy_weight: float = REDUNDANCY_WEIGHT, eps: float = EPS):
        super().__init__()
        self.redundancy_weight = redundancy_weight
        self.eps = eps

    def forward(self, z1: Tensor, z2: Tensor, *more: Tensor) -> Tensor:
        """Return the scalar to minimise."""
        return barlow_twins_loss(
            z1, z2, *more, redundancy_weight=self.redundancy_weight, eps=self.eps
        ).total


def barlow_twins_loss(
    z1: Tensor,
    z2: Tensor,
    *more: Tensor,
    redundancy_weight: float = REDUNDANCY_WEIGHT,
    eps: float = EPS,
) -> Terms:
    """Push the cross-correlation of two views towards the identity.

    The losses of all pairs of more than two views are added up.

    Up to N = K/2 the squares off its diagonal are summed from two N x N matrices without forming
    it: the same number in less time. (The squares of the diagonal are subtracted from the sum of
    all squares. The rank of the matrix leaves at least as much off the diagonal, unless most
    coordinates are dead. Then the alignment is far larger than the rounding error.)

    redundancy_weight: the paper's lambda, the weight of different coordinates.
    eps: added to the variance of each coordinate, as batch norm does.

    W devices of N samples give the value of one batch of W*N, and its gradient after the averaging
    of DDP: the embeddings are gathered.

    A coordinate without variance has correlation 0 with all others and no gradient; at N = 1 this
    holds for all. Different shapes or devices and integers raise a ValueError. The loss is computed
    in float32, or in float64 if an input is, also under autocast.
    """
    check_positive(eps=eps)
    check_weights(redundancy_weight=redundancy_weight)
    with float32_island(z1, z2, *more) as zs:
        zs = [standardize_columns(join(z), eps) for z in zs]
        num_samples, dim = zs[0].shape
        from_samples = 2 * num_samples <= dim
        grams = [gram(z) for z in zs] if from_samples else []
        alignments, redundancies = [], []
        for a, b in combinations(range(len(zs)), 2):
            if from_samples:
                diagonal = (zs[a] * zs[b]).sum(dim=0) / num_samples
                squares = (grams[a] * grams[b]).sum() / num_samples**2 - diagonal.square().sum()
            else:
                c = product(zs[a].T, zs[b]) / num_samples  # [K, K]
                diagonal, squares = c.diagonal(), off_diagonal(c).square().sum()
            alignments.append((1 - diagonal).square().sum())
            redundancies.append(squares)
        return Terms(
            alignment=torch.stack(alignments).sum(),
            redundancy=redundancy_weight * torch.stack(redundancies).sum(),
        )


def standardize_columns(z: Tensor, eps: float) -> Tensor:
    """Give coordinates mean 0 and variance 1 over the batch, at any scale of the input."""
    # Huge coordinates are scaled down before they are squared, and eps with them.
    scale = peak(z, 0).clamp_min(1)
    z = z / scale
    z = z - z.mean(dim=0)
    rounding = 2 * torch.finfo(z.dtype).eps
    variance = z.square().mean(dim=0) + (eps / scale.square()).clamp_min(rounding**2)
    return z * variance.rsqrt()
