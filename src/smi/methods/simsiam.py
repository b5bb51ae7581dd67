"""Train with SimSiam: predict the projection of the other view, which gets no gradient."""

from collections.abc import Sequence

from torch import Tensor

from smi.data import Batch
from smi.losses import Terms, negative_cosine_loss
from smi.methods.base import LossSetup, Method, Output
from smi.methods.description import LossRange
from smi.nn import Encoder, mlp


class SimSiam(Method):
    """Predict the projection of the other view, in both directions, with a stopped gradient.

    There is no teacher and there are no negatives.

    widths: of the projector's layers.
    bottleneck: the width of the predictor's hidden layer.
    """

    display_name = "SimSiam"
    paper = "Chen and He 2021, arXiv:2011.10566"
    synchronises_batch_norm = True
    least_loss_is_collapse = True
    collapse_remedies = (
        "Lower the learning rate, keep batch norm after the projector's last layer, and keep the "
        "predictor's learning rate constant."
    )

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

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the first view, predictions, and projections without a gradient."""
        h1, h2 = (self.encoder(x) for x in views)
        z1, z2 = self.projector(h1), self.projector(h2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return h1, p1, p2, z1.detach(), z2.detach()

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the negative cosine, averaged over both directions."""
        h1, p1, p2, z1, z2 = embeddings
        cosines = negative_cosine_loss(p1, z2).total + negative_cosine_loss(p2, z1).total
        return Output(Terms(alignment=cosines / 2), h1, p1, z2)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange:
        """Return the least loss and that of random embeddings: minus a cosine."""
        return -1.0, 0.0
