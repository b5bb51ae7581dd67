"""SwAV's prototypes (Caron et al. 2020)."""

import torch
from torch import Tensor, nn

from smi.losses.embeddings import unit_rows


class Prototypes(nn.Module):
    """Directions that embeddings are compared with: `Prototypes(dim, num_prototypes)(z)` is their cosine with each, [N, num_prototypes].

    Vectors are brought to length 1 when they are used, so no step after the optimizer's is needed.
    """

    def __init__(self, dim: int, num_prototypes: int):
        super().__init__()
        self.weight = nn.Parameter(unit_rows(torch.randn(num_prototypes, dim)))

    def forward(self, z: Tensor) -> Tensor:
        return unit_rows(z) @ unit_rows(self.weight).T
