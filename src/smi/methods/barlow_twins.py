"""Train with Barlow Twins: each coordinate agrees between views and with no other coordinate."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from smi.data import Batch
from smi.losses import barlow_twins_loss
from smi.losses.barlow_twins import REDUNDANCY_WEIGHT
from smi.methods.base import LossSetup, Method, Output
from smi.methods.description import LossRange
from smi.nn import Encoder, mlp


class BarlowTwins(Method):
    """Push the correlations between the coordinates of two views towards the identity.

    They are computed over the batches of all devices.

    widths: of the projector's layers.
    redundancy_weight: the paper's lambda, the weight of different coordinates.
    """

    display_name = "Barlow Twins"
    paper = "Zbontar et al. 2021, arXiv:2103.03230"
    gathers = True
    synchronises_batch_norm = True
    loss_may_rise = False
    collapse_remedies = "Raise redundancy_weight two to ten times, or lower the learning rate."
    low_rank_remedies = "Raise redundancy_weight, or use a larger batch."

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (8192, 8192, 8192),
        redundancy_weight: float = REDUNDANCY_WEIGHT,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.loss = partial(barlow_twins_loss, redundancy_weight=redundancy_weight)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        """Return the Barlow Twins loss of two views."""
        h1, h2 = (self.encoder(x) for x in views)
        z1, z2 = self.projector(h1), self.projector(h2)
        return Output(self.loss(z1, z2), h1, z1, z2)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the least loss and that of random embeddings, for the batch of all devices."""
        n, k = setup.batch_size * setup.world_size, setup.embedding_dim
        weight = cls._setting(setup, "redundancy_weight")
        if k is None or n < 2 or not 0 <= weight < 1:
            return None
        # The correlation matrix has at most rank r = N - 1. With a mean d on its diagonal, its
        # squares sum to at least K^2 d^2 / r. So the loss is at least K ((1 - d)^2 + b d^2) with
        # b = weight * (K / r - 1), which is least at d = 1 / (1 + b).
        b = weight * max(0.0, k / (n - 1) - 1)
        # Independent coordinates have correlations of mean 0 and variance 1 / (N - 1).
        return k * b / (1 + b), k * (1 + 1 / (n - 1)) + weight * k * (k - 1) / (n - 1)
