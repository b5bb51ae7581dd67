"""Train with SimCLR: find the other view of an image among the views of all other images."""

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from smi.data import Batch
from smi.losses import nt_xent_loss
from smi.losses.loss_range import log_mean_exp_of_cosine
from smi.losses.nt_xent import TEMPERATURE
from smi.methods.base import LossSetup, Method, Output
from smi.methods.description import LossRange
from smi.nn import Encoder, mlp


class SimCLR(Method):
    """Find the other view of an image, by cosine, among the views of all devices (NT-Xent).

    widths: of the projector's layers.
    last_norm: batch norm with a scale and no shift after the last layer, as in the authors' code.
    temperature: the default is the paper's value for CIFAR-10; it uses 0.1 for ImageNet.
    """

    display_name = "SimCLR"
    paper = "Chen et al. 2020, arXiv:2002.05709"
    gathers = True
    synchronises_batch_norm = True
    loss_may_rise = False
    collapse_remedies = (
        "Use a larger batch or a lower temperature (0.1 to 0.5), or lower the learning rate."
    )

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 128),
        last_norm: bool = False,
        temperature: float = TEMPERATURE,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths, last_norm=last_norm, last_scale=last_norm)
        self.loss = partial(nt_xent_loss, temperature=temperature)

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the first view, and projections of both."""
        h1, h2 = (self.encoder(x) for x in views)
        return h1, self.projector(h1), self.projector(h2)

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return NT-Xent of two views."""
        h1, z1, z2 = embeddings
        return Output(self.loss(z1, z2), h1, z1, z2)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the least loss and that of random embeddings, for the batch of all devices."""
        n, temperature = setup.batch_size * setup.world_size, cls._setting(setup, "temperature")
        if n < 2:
            return None
        # log(1 + sum exp((negative - positive) / t)) is convex, so it is least where all negatives
        # are equal. The cosines of 2N unit vectors sum to 0 or more. With positives at 1, the
        # 2N - 2 negatives of each are -1 / (N - 1) on average.
        lowest = math.log1p((2 * n - 2) * math.exp((-1 / (n - 1) - 1) / temperature))
        scatter = log_mean_exp_of_cosine(temperature, setup.embedding_dim)
        return lowest, math.log(2 * n - 1) + scatter
