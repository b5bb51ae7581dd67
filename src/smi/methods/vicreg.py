"""Train with VICReg: similar views, coordinates with variance and without covariance."""

import math
from functools import partial

from smi.losses import vicreg_loss
from smi.losses.vicreg import COVARIANCE_WEIGHT, INVARIANCE_WEIGHT, VARIANCE_WEIGHT
from smi.methods.base import LossSetup, PairwiseMethod
from smi.methods.description import LossRange
from smi.nn import Encoder


class VICReg(PairwiseMethod):
    """Make two views similar, keep the variance of coordinates and remove their covariance.

    The losses of all pairs of views are added up. Variance and covariance are computed over the
    batches of all devices.

    widths: of the projector's layers.
    views: large views of each image. crops: small ones beside them. Every pair of views counts.
    invariance_weight, variance_weight, covariance_weight: the paper's lambda, mu and nu.
    """

    display_name = "VICReg"
    paper = "Bardes et al. 2022, arXiv:2105.04906"
    gathers = True
    synchronises_batch_norm = True
    loss_may_rise = False
    collapse_remedies = "Raise variance_weight, or lower the learning rate."

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (8192, 8192, 8192),
        views: int = 2,
        crops: int = 0,
        invariance_weight: float = INVARIANCE_WEIGHT,
        variance_weight: float = VARIANCE_WEIGHT,
        covariance_weight: float = COVARIANCE_WEIGHT,
    ):
        loss = partial(
            vicreg_loss,
            invariance_weight=invariance_weight,
            variance_weight=variance_weight,
            covariance_weight=covariance_weight,
        )
        super().__init__(encoder, loss, widths=widths, views=views, crops=crops)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the least loss and that of random embeddings, for the batch of all devices."""
        n, k = setup.batch_size * setup.world_size, setup.embedding_dim
        invariance = cls._setting(setup, "invariance_weight")
        variance = cls._setting(setup, "variance_weight")
        covariance = cls._setting(setup, "covariance_weight")
        if k is None or n < 2 or min(invariance, variance, covariance) < 0:
            return None
        # Independent coordinates of variance 1, at which the variance term is 0: the squared
        # distance is 2, and covariances have a variance of 1 / (N - 1).
        random = 2 * invariance + 2 * covariance * (k - 1) / (n - 1)
        return 0.0, math.comb(setup.num_views, 2) * random
