"""Train with BYOL: predict the projection of the other view by a slowly moving teacher."""

from collections.abc import Sequence

from torch import Tensor

from smi.data import Batch
from smi.losses import Terms, negative_cosine_loss
from smi.methods.base import LossSetup, Method, Output
from smi.methods.description import LossRange
from smi.nn import Ema, Encoder, mlp
from smi.optim import cosine


class BYOL(Method):
    """Predict the teacher's projection of the other view, in both directions, without negatives.

    widths: of the projector's layers, and of the predictor's.
    momentum: the teacher's at the start; it rises to 1 along half a cosine.
    """

    display_name = "BYOL"
    paper = "Grill et al. 2020, arXiv:2006.07733"
    shared_network = False
    momentum_encoder = True
    synchronises_batch_norm = True
    least_loss_is_collapse = True
    collapse_remedies = (
        "Bring the teacher's momentum nearer to 1, lower the learning rate, and keep batch norm in "
        "projector and predictor."
    )

    def __init__(
        self, encoder: Encoder, *, widths: tuple[int, ...] = (4096, 256), momentum: float = 0.996
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths)
        self.predictor = mlp(widths[-1], *widths)
        self.teacher = Ema(encoder, self.projector)
        self.momentum = momentum

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the first view, and predictions of both."""
        h1, h2 = (self.encoder(x) for x in views)
        return h1, self.predictor(self.projector(h1)), self.predictor(self.projector(h2))

    def targets(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the teacher's projections."""
        return tuple(self.teacher(x) for x in views)

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the squared distances of unit vectors, summed over both directions."""
        h1, p1, p2, z1, z2 = embeddings
        cosines = negative_cosine_loss(p1, z2).total + negative_cosine_loss(p2, z1).total
        # The squared distance of two unit vectors is 2 - 2 cosine.
        return Output(Terms(alignment=4 + 2 * cosines), h1, p1, z2)

    def after_step(self) -> None:
        """Move the teacher towards the student."""
        self.teacher.follow(
            self.encoder, self.projector, momentum=cosine(self.momentum, 1.0, self.progress)
        )

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange:
        """Return the least loss and that of random embeddings: two times 2 - 2 cosine."""
        return 0.0, 4.0
