"""Barlow Twins: coordinates that agree between views and not with each other."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from smi.data import Batch
from smi.losses import barlow_twins_loss
from smi.methods.base import Method, Output
from smi.nn import Encoder, mlp


class BarlowTwins(Method):
    """The correlations between the coordinates of two views, over the batches of all devices, are to be the identity.

    redundancy_weight: the paper's lambda, of different coordinates.
    """

    paper = "Zbontar et al. 2021, arXiv:2103.03230"
    gathers = True

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (8192, 8192, 8192),
        redundancy_weight: float = 5.1e-3,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.loss = partial(barlow_twins_loss, redundancy_weight=redundancy_weight)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h1, h2 = (self.encoder(x) for x in views)
        z1, z2 = self.projector(h1), self.projector(h2)
        return Output(self.loss(z1, z2), h1, z1, z2)
