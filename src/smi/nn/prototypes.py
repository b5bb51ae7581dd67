"""Compare embeddings with SwAV's prototypes (Caron et al. 2020)."""

import torch
from torch import Tensor, nn

from smi.losses.numerics import unit_rows


class Prototypes(nn.Module):
    """Compute the cosine of embeddings with learned directions.

    `Prototypes(dim, num_prototypes)(z)` is [N, num_prototypes]. The directions are scaled to length
    1 when they are used, so they need no normalisation after a step of the optimizer.

    scale: False uses the directions as they are. They start with length 1; call `normalise` after
    each step of the optimizer.
    """

    def __init__(self, dim: int, num_prototypes: int, *, scale: bool = True):
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(unit_rows(torch.randn(num_prototypes, dim)))

    def forward(self, z: Tensor) -> Tensor:
        """Return the cosines of z [N, dim] with all prototypes."""
        return unit_rows(z) @ (unit_rows(self.weight) if self.scale else self.weight).T

    @torch.no_grad()
    def normalise(self) -> None:
        """Scale the directions to length 1."""
        self.weight.copy_(unit_rows(self.weight))
