"""Compute InfoNCE against stored negatives: MoCo's queue or PIRL's memory bank.

MoCo: He et al. 2020, arXiv:1911.05722. PIRL: Misra and van der Maaten 2020, arXiv:1912.01991.
N samples on this device, M negatives, K embedding coordinates.
"""

import torch
from torch import Tensor, nn

from smi.losses.numerics import check_embeddings, check_positive, float32_island, product, unit_rows
from smi.losses.terms import Terms

TEMPERATURE = 0.07


class InfoNCELoss(nn.Module):
    """Wrap `info_nce_loss`: `InfoNCELoss()(query, key, negatives)` is the scalar to minimise."""

    def __init__(self, temperature: float = TEMPERATURE):
        super().__init__()
        self.temperature = temperature

    def forward(self, query: Tensor, key: Tensor, negatives: Tensor) -> Tensor:
        """Return the scalar to minimise."""
        return info_nce_loss(query, key, negatives, temperature=self.temperature).total


def info_nce_loss(
    query: Tensor, key: Tensor, negatives: Tensor, *, temperature: float = TEMPERATURE
) -> Terms:
    """Find a sample's key [N, K] among stored ones [M, K] by its cosine with the query [N, K].

    The caller holds the state: `smi.nn.Queue` for MoCo, `smi.nn.MemoryBank` for PIRL. Detach every
    input that must not have a gradient. The cross-entropy is returned in two terms: alignment,
    (1 - cosine of the pair) / temperature, and uniformity, the part that the negatives add.

    W devices: the mean of W local losses. It is the loss of the joined batch if the negatives are
    the same on every device.

    A row of zeros has cosine 0 with every row and no gradient. Different shapes or devices,
    integers and a temperature that is not positive raise a ValueError. The loss is computed in
    float32, or in float64 if an input is, also under autocast.
    """
    check_positive(temperature=temperature)
    check_embeddings(query, key)
    with float32_island(query, key, negatives, same_shape=False) as (query, key, negatives):
        query, key, negatives = unit_rows(query), unit_rows(key), unit_rows(negatives)
        positive = (query * key).sum(dim=1, keepdim=True) / temperature  # [N, 1]
        negative = product(query, negatives.T) / temperature  # [N, M]
        logits = torch.cat([positive, negative], dim=1)  # [N, 1 + M]
        first = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        total = nn.functional.cross_entropy(logits, first)
        alignment = 1 / temperature - positive.mean()
        return Terms(total, alignment=alignment, uniformity=total - alignment)
