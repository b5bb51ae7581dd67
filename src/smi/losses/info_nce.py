"""InfoNCE against stored negatives: MoCo's queue (He et al. 2020, arXiv:1911.05722), PIRL's memory bank (Misra and van der Maaten 2020,
arXiv:1912.01991). N samples on this device, M negatives, K embedding coordinates."""

import torch
from torch import Tensor, nn

from smi.losses.embeddings import check, check_positive, float32_island, product, unit_rows
from smi.losses.terms import Terms


class InfoNCELoss(nn.Module):
    """`info_nce_loss` as a module: `InfoNCELoss()(query, key, negatives)` is the scalar to minimise."""

    def __init__(self, temperature: float = 0.07):
        super().__init__()
        self.temperature = temperature

    def forward(self, query: Tensor, key: Tensor, negatives: Tensor) -> Tensor:
        return info_nce_loss(query, key, negatives, temperature=self.temperature).total


def info_nce_loss(
    query: Tensor, key: Tensor, negatives: Tensor, *, temperature: float = 0.07
) -> Terms:
    """Tell a sample's key [N, K] from stored ones [M, K] by its cosine with the query [N, K].

    The state is yours: `smi.nn.Queue` for MoCo, `smi.nn.MemoryBank` for PIRL. Detach what is to have no gradient. The cross-entropy is
    returned in two terms: alignment, (1 - cosine of the pair) / temperature, and uniformity, what the negatives add to it.

    W devices: the mean of W local losses. Negatives that are the same on every device make that the loss of the joined batch.

    A row of zeros has cosine 0 with every row and no gradient. Shapes or devices that differ, integers and a temperature that is not
    positive are ValueErrors. Computed in float32, or float64 if an input is, whatever autocast says.
    """
    check_positive(temperature=temperature)
    check(query, key)
    with float32_island(query, key, negatives, same_shape=False) as (query, key, negatives):
        query, key, negatives = unit_rows(query), unit_rows(key), unit_rows(negatives)
        positive = (query * key).sum(dim=1, keepdim=True) / temperature  # [N, 1]
        logits = torch.cat(
            [positive, product(query, negatives.T) / temperature], dim=1
        )  # [N, 1 + M]
        total = nn.functional.cross_entropy(
            logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        )
        alignment = 1 / temperature - positive.mean()
        return Terms(total, alignment=alignment, uniformity=total - alignment)
