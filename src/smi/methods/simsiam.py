"""SimSiam: the other view's projection, predicted and held still."""

from collections.abc import Sequence

from torch import Tensor

from smi.data import Batch
from smi.losses import Terms, negative_cosine_loss
from smi.methods.base import Method, Output
from smi.nn import Encoder, mlp


class SimSiam(Method):
    """Predict the other view's projection, in both directions, without a gradient to what is predicted; no teacher, nothing pushed apart.

    bottleneck: the width within the predictor.
    """

    paper = "Chen and He 2021, arXiv:2011.10566"

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 2048, 2048),
        bottleneck: int = 512,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths, last_norm=True)
        self.predictor = mlp(widths[-1], bottleneck, widths[-1], bias=True)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h1, h2 = (self.encoder(x) for x in views)
        z1, z2 = self.projector(h1), self.projector(h2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        z1, z2 = z1.detach(), z2.detach()
        cosines = negative_cosine_loss(p1, z2).total + negative_cosine_loss(p2, z1).total
        return Output(Terms(alignment=cosines / 2), h1, p1, z2)
