"""Train with SMI: dependent views, independent samples."""

import math
from functools import partial

from smi.losses import smi_loss
from smi.losses.loss_range import random_cosines, scalar_logcosh
from smi.losses.smi import EPS, REDUNDANCY_WEIGHT, SHIFT, TARGET, Weight, weight_in_batch
from smi.methods.base import LossSetup, PairwiseMethod, settings_of
from smi.methods.description import LossRange
from smi.nn import Encoder

WIDTHS = (4096, 4096, 4096)


class SMI(PairwiseMethod):
    """Make two views of a sample dependent and different samples independent.

    Several devices exchange nothing but gradients.

    widths: of the projector's layers.
    views: large views of each image. crops: small ones beside them. Every pair of views counts.
    redundancy_weight: the paper's lambda, the weight of dependencies between different samples.
        "auto" is 7 / (N - 1) in a batch of N samples on each device.
    target, shift: the zero of logcosh, for a sample's own views and for different samples.
    eps: keeps the dependency finite at a correlation of 1.
    """

    display_name = "SMI"
    paper = "Semantic Mutual Information, arXiv:2606.08332"
    local = True
    loss_may_rise = False
    ignores_sign = True
    collapse_remedies = "Raise redundancy_weight two to ten times, or lower the learning rate."
    low_rank_remedies = "Raise redundancy_weight, or use a larger batch."

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = WIDTHS,
        views: int = 2,
        crops: int = 0,
        redundancy_weight: Weight = REDUNDANCY_WEIGHT,
        target: float = TARGET,
        shift: float = SHIFT,
        eps: float = EPS,
    ):
        loss = partial(
            smi_loss, redundancy_weight=redundancy_weight, target=target, shift=shift, eps=eps
        )
        super().__init__(encoder, loss, widths=widths, views=views, crops=crops)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the least loss and that of random embeddings; each device has its own loss."""
        n, k, v = setup.batch_size, setup.embedding_dim, setup.num_views
        given = setup.settings.get("redundancy_weight")
        default = settings_of(cls)["redundancy_weight"].default
        weight = weight_in_batch(default if given is None else given, n)
        target = cls._setting(setup, "target")
        shift, eps = cls._setting(setup, "shift"), cls._setting(setup, "eps")
        if k is None or k < 3 or v < 2 or weight < 0:
            return None

        def dependency(rho_squared: float) -> float:
            return -0.5 * math.log(1 - rho_squared + eps)

        def aligned(rho_squared: float) -> float:
            return scalar_logcosh(dependency(rho_squared) - target)

        def redundant(rho_squared: float) -> float:
            return scalar_logcosh(dependency(rho_squared) + shift)

        def least(zero: float) -> float:
            return scalar_logcosh(max(dependency(0), min(zero, dependency(1))) - zero)

        # More samples than directions cannot all be uncorrelated: the mean square correlation of N
        # unit vectors in d = K - 1 dimensions is at least (N - d) / (d (N - 1)). The redundancy is
        # convex in the square, so it is least where all squares are equal. This binds only pairs of
        # one view.
        crowded = max(0.0, (n - (k - 1)) / ((k - 1) * (n - 1))) if n > 1 else 0.0
        same_view = redundant(crowded) if dependency(0) + shift >= 0 else least(-shift)
        view_pairs = v * (v - 1) / 2
        sample_pairs = n * (n - 1)
        lowest = view_pairs * n * least(target) + weight * sample_pairs * (
            view_pairs * least(-shift) + v * same_view
        )
        # Pearson correlations over K coordinates are cosines in K - 1 dimensions.
        cosines = random_cosines(k - 1)
        alignment = sum(w * aligned(rho * rho) for rho, w in cosines)
        redundancy = sum(w * redundant(rho * rho) for rho, w in cosines)
        random = view_pairs * n * alignment + weight * sample_pairs * (view_pairs + v) * redundancy
        return lowest, random
