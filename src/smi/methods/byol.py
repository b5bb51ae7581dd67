"""BYOL: a slow teacher's projection of the other view, predicted."""

from collections.abc import Sequence

from torch import Tensor

from smi.data import Batch
from smi.losses import Terms, negative_cosine_loss
from smi.methods.base import Method, Output
from smi.nn import Ema, Encoder, mlp
from smi.optim import cosine


class BYOL(Method):
    """Predict a slow teacher's projection of the other view, in both directions; nothing is pushed apart.

    widths: of the projector and of the predictor alike.
    momentum: the teacher's, at the start; it rises to 1 with half a cosine.
    """

    paper = "Grill et al. 2020, arXiv:2006.07733"
    shared_network = False
    momentum_encoder = True

    def __init__(
        self, encoder: Encoder, *, widths: tuple[int, ...] = (4096, 256), momentum: float = 0.996
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.predictor = mlp(widths[-1], *widths)
        self.teacher = Ema(encoder, self.projector)
        self.momentum = momentum

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h1, h2 = (self.encoder(x) for x in views)
        p1, p2 = self.predictor(self.projector(h1)), self.predictor(self.projector(h2))
        z1, z2 = (self.teacher(x) for x in views)
        cosines = negative_cosine_loss(p1, z2).total + negative_cosine_loss(p2, z1).total
        return Output(
            Terms(alignment=4 + 2 * cosines), h1, p1, z2
        )  # two squared distances of unit vectors

    def after_step(self) -> None:
        self.teacher.follow(
            self.encoder, self.projector, momentum=cosine(self.momentum, 1.0, self.progress)
        )
