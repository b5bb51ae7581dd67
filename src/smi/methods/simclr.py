"""SimCLR: a view's partner told from the views of all other images."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from smi.data import Batch
from smi.losses import nt_xent_loss
from smi.methods.base import Method, Output
from smi.nn import Encoder, mlp


class SimCLR(Method):
    """Find a view's partner, by cosine, among the views of the batches of all devices: the loss is NT-Xent.

    temperature: the paper's for CIFAR-10; for ImageNet it has 0.1.
    """

    paper = "Chen et al. 2020, arXiv:2002.05709"
    gathers = True

    def __init__(
        self, encoder: Encoder, *, widths: tuple[int, ...] = (2048, 128), temperature: float = 0.5
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.loss = partial(nt_xent_loss, temperature=temperature)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h1, h2 = (self.encoder(x) for x in views)
        z1, z2 = self.projector(h1), self.projector(h2)
        return Output(self.loss(z1, z2), h1, z1, z2)
