"""Write a method of your own, train it with all of smi's machinery, and ask how it does.

python examples/own_method.py
smi pretrain digits --method own_method.Whitened --method.weight 0.5 --out runs/own   # in examples/

The method brings two views together and pushes the covariance of features towards the identity.
Its class attributes tell `smi doctor` what to expect of it, and
`smi list methods own_method.Whitened` prints its settings.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import smi
from smi.data import Batch
from smi.losses import Terms
from smi.methods import LossSetup, Method, Output
from smi.nn import Encoder, mlp


class Whitened(Method):
    """Bring two views together and the covariance of their projections close to the identity.

    width: the number of projections. A covariance of N rows has a rank of N - 1 at most, so it
        should be smaller than the batch.
    weight: of the covariance.
    """

    paper = "an example"
    gathers = False  # each device uses its own batch
    loss_may_rise = False
    collapse_remedies = "Raise weight."

    def __init__(self, encoder: Encoder, *, width: int = 32, weight: float = 1.0):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, 512, width)
        self.weight = weight

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the first view and projections of both: all parameters are here."""
        h1, h2 = (self.encoder(x) for x in views)
        return h1, self.projector(h1), self.projector(h2)

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the loss by its terms."""
        h1, z1, z2 = embeddings
        terms = Terms(
            alignment=(z1 - z2).square().mean(),
            whitening=self.weight * (self._distance(z1) + self._distance(z2)) / 2,
        )
        return Output(terms, h1, z1, z2)

    @staticmethod
    def _distance(z: Tensor) -> Tensor:
        """Return the mean squared distance of a row of the covariance from that of the identity."""
        covariance = torch.cov(z.T)  # [K, K]
        return (covariance - torch.eye(len(covariance), device=z.device)).square().sum(1).mean()

    @classmethod
    def loss_range(cls, setup: LossSetup) -> tuple[float, float] | None:
        """Return the least loss and that of random embeddings of variance 1."""
        if setup.embedding_dim is None or setup.batch_size < 2:
            return None
        weight = cls._setting(setup, "weight")
        return 0.0, 2.0 + weight * setup.embedding_dim / (setup.batch_size - 1)


def main(out: str | Path, epochs: int = 4) -> smi.Run:
    """Train on digits, and print the health of the run and its accuracy."""
    run = smi.pretrain(
        "digits",
        out=out,
        method="own_method.Whitened",  # the import path, as on the command line
        overrides={"epochs": epochs, "method.weight": 1.0},
        quiet=True,
    )
    print(smi.diagnose(run).text())
    print(smi.evaluate(run, protocols=["fewshot"], quiet=True).text())
    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
