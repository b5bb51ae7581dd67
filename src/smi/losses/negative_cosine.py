"""Negative cosine: BYOL (Grill et al. 2020, arXiv:2006.07733) and SimSiam (Chen and He 2021, arXiv:2011.10566).
N samples on this device, K embedding coordinates."""

from torch import Tensor, nn

from smi.losses.embeddings import float32_island, unit_rows
from smi.losses.terms import Terms


class NegativeCosineLoss(nn.Module):
    """`negative_cosine_loss` as a module: `NegativeCosineLoss()(p, z)` is the scalar to minimise."""

    def forward(self, p: Tensor, z: Tensor) -> Tensor:
        return negative_cosine_loss(p, z).total


def negative_cosine_loss(p: Tensor, z: Tensor) -> Terms:
    """Minus the mean cosine of predictions p [N, K] and what they are to predict, z [N, K].

    Both are differentiated: detach the target. BYOL's squared distance of unit vectors is 2 + 2 times this.

    W devices: the mean of W local losses, which is the loss of the joined batch.

    A row of zeros has cosine 0 and no gradient. Shapes or devices that differ and integers are ValueErrors. Computed in float32, or
    float64 if an input is, whatever autocast says.
    """
    with float32_island(p, z) as (p, z):
        return Terms(alignment=-(unit_rows(p) * unit_rows(z)).sum(dim=1).mean())
