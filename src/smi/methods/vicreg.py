"""VICReg: views that are alike, coordinates that vary and share nothing."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from smi.data import Batch
from smi.losses import vicreg_loss
from smi.methods.base import Method, Output
from smi.nn import Encoder, mlp


class VICReg(Method):
    """Invariance between two views; variance of each coordinate and no covariance between them, over the batches of all devices.

    invariance_weight, variance_weight, covariance_weight: the paper's lambda, mu and nu.
    """

    paper = "Bardes et al. 2022, arXiv:2105.04906"
    gathers = True

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (8192, 8192, 8192),
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.loss = partial(
            vicreg_loss,
            invariance_weight=invariance_weight,
            variance_weight=variance_weight,
            covariance_weight=covariance_weight,
        )

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h1, h2 = (self.encoder(x) for x in views)
        z1, z2 = self.projector(h1), self.projector(h2)
        return Output(self.loss(z1, z2), h1, z1, z2)
