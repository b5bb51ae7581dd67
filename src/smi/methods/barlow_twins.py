"""Train with Barlow Twins: each coordinate agrees between views and with no other coordinate."""

import math
from functools import partial

from smi.losses import barlow_twins_loss
from smi.losses.barlow_twins import REDUNDANCY_WEIGHT
from smi.methods.base import LossSetup, PairwiseMethod
from smi.methods.description import LossRange
from smi.nn import Encoder


class BarlowTwins(PairwiseMethod):
    """Push the correlations between the coordinates of two views towards the identity.

    More views are compared pair by pair. Correlations are computed over the batches of all devices.

    widths: of the projector's layers.
    views: large views of each image. crops: small ones beside them. Every pair of views counts.
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
        views: int = 2,
        crops: int = 0,
        redundancy_weight: float = REDUNDANCY_WEIGHT,
    ):
        loss = partial(barlow_twins_loss, redundancy_weight=redundancy_weight)
        super().__init__(encoder, loss, widths=widths, views=views, crops=crops)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the least loss and that of random embeddings, for the batch of all devices."""
        n, k = setup.batch_size * setup.world_size, setup.embedding_dim
        num_pairs = math.comb(setup.num_views, 2)
        weight = cls._setting(setup, "redundancy_weight")
        if k is None or n < 2 or not 0 <= weight < 1:
            return None
        # The correlation matrix has at most rank r = N - 1. With a mean d on its diagonal, its
        # squares sum to at least K^2 d^2 / r. So the loss is at least K ((1 - d)^2 + b d^2) with
        # b = weight * (K / r - 1), which is least at d = 1 / (1 + b).
        b = weight * max(0.0, k / (n - 1) - 1)
        # Independent coordinates have correlations of mean 0 and variance 1 / (N - 1).
        random = k * (1 + 1 / (n - 1)) + weight * k * (k - 1) / (n - 1)
        return num_pairs * k * b / (1 + b), num_pairs * random
