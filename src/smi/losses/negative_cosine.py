"""Compute the negative cosine of BYOL and SimSiam.

BYOL: Grill et al. 2020, arXiv:2006.07733. SimSiam: Chen and He 2021, arXiv:2011.10566.
N samples on this device, K embedding coordinates.
"""

from torch import Tensor, nn

from smi.losses.numerics import float32_island, unit_rows
from smi.losses.terms import Terms


class NegativeCosineLoss(nn.Module):
    """Wrap `negative_cosine_loss`: `NegativeCosineLoss()(p, z)` is the scalar to minimise."""

    def forward(self, p: Tensor, z: Tensor) -> Tensor:
        """Return the scalar to minimise."""
        return negative_cosine_loss(p, z).total


def negative_cosine_loss(p: Tensor, z: Tensor) -> Terms:
    """Return minus the mean cosine of predictions p [N, K] and their targets z [N, K].

    Both are differentiated: detach the target. BYOL's squared distance of unit vectors is 2 + 2
    times this.

    W devices: the mean of W local losses, which is the loss of the joined batch.

    A row of zeros has cosine 0 and no gradient. Different shapes or devices and integers raise a
    ValueError. The loss is computed in float32, or in float64 if an input is, also under autocast.
    """
    with float32_island(p, z) as (p, z):
        return Terms(alignment=-(unit_rows(p) * unit_rows(z)).sum(dim=1).mean())
