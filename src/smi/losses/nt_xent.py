"""Compute NT-Xent, the loss of SimCLR (Chen et al. 2020, arXiv:2002.05709).

N samples on all devices together, K embedding coordinates.
"""

import torch
from torch import Tensor, nn

from smi.distributed import join
from smi.losses.numerics import check_positive, float32_island, gram, unit_rows
from smi.losses.terms import Terms

TEMPERATURE = 0.5  # the paper's value for CIFAR-10; it uses 0.1 for ImageNet


class NTXentLoss(nn.Module):
    """Wrap `nt_xent_loss`: `NTXentLoss()(z1, z2)` is the scalar to minimise."""

    def __init__(self, temperature: float = TEMPERATURE):
        super().__init__()
        self.temperature = temperature

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Return the scalar to minimise."""
        return nt_xent_loss(z1, z2, temperature=self.temperature).total


def nt_xent_loss(z1: Tensor, z2: Tensor, *, temperature: float = TEMPERATURE) -> Terms:
    """Find each sample's other view among the views of all other samples, by cosine.

    The cross-entropy is returned in two terms: alignment, (1 - cosine of the pair) / temperature,
    and uniformity, the part that the other samples add.

    W devices of N samples give the value of one batch of W*N, and its gradient after the averaging
    of DDP: the embeddings are gathered.

    A row of zeros has cosine 0 with every row and no gradient. N = 1 on one device has no negative:
    the loss is 0. Different shapes or devices, integers and a temperature that is not positive
    raise a ValueError. The loss is computed in float32, or in float64 if an input is, also under
    autocast.
    """
    check_positive(temperature=temperature)
    with float32_island(z1, z2) as (z1, z2):
        z = torch.cat([unit_rows(join(z1)), unit_rows(join(z2))])  # [2N, K]
        similarity = gram(z) / temperature  # [2N, 2N]
        size = z.shape[0]  # len(), and the offset of a diagonal, would fix it in torch.export
        similarity = similarity.masked_fill(
            torch.eye(size, dtype=torch.bool, device=z.device), -torch.inf
        )
        partner = torch.arange(size, device=z.device).roll(size // 2)
        total = nn.functional.cross_entropy(similarity, partner)
        alignment = 1 / temperature - similarity[: size // 2, size // 2 :].diagonal().mean()
        return Terms(total, alignment=alignment, uniformity=total - alignment)
