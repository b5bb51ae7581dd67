"""Semantic Mutual Information: dependent views, independent samples."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from smi.data import Batch
from smi.losses import smi_loss
from smi.methods.base import Method, Output
from smi.nn import Encoder, mlp


class SMI(Method):
    """Two views of a sample depend on each other, different samples do not; several devices exchange nothing but gradients."""

    paper = "Semantic Mutual Information"

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (4096, 4096, 4096),
        redundancy_weight: float = 0.01,
        target: float = 1.0,
        shift: float = 0.06,
        eps: float = 1e-6,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.loss = partial(
            smi_loss, redundancy_weight=redundancy_weight, target=target, shift=shift, eps=eps
        )

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h = [self.encoder(x) for x in views]
        z = [self.projector(features) for features in h]
        return Output(self.loss(*z), h[0], z[0], z[1])
