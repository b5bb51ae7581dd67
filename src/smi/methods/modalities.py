"""Inputs of different kinds: one encoder and projector each, and dependency between what they give."""

from functools import partial

from torch import Tensor, nn

from smi.losses import smi_loss
from smi.methods.base import Output
from smi.nn import Encoder, mlp


class Modalities(nn.Module):
    """Two or more inputs of one sample depend on each other, those of different samples do not: SMI between encoders.

        model = Modalities(Encoder(images, 512), Encoder(tables, 64))
        model(x_images, x_tables).loss.backward()

    The dependency is even in the correlation: to find what belongs together, compare projections by its size, not its sign.
    """

    def __init__(
        self,
        *encoders: Encoder,
        widths: tuple[int, ...] = (4096, 4096, 4096),
        redundancy_weight: float = 0.01,
    ):
        super().__init__()
        if len(encoders) < 2:
            raise ValueError(f"Modalities need two encoders or more; got {len(encoders)}.")
        self.encoders = nn.ModuleList(encoders)
        self.projectors = nn.ModuleList(mlp(encoder.dim, *widths) for encoder in encoders)
        self.loss = partial(smi_loss, redundancy_weight=redundancy_weight)

    def forward(self, *inputs: Tensor) -> Output:
        h = self.encode(*inputs)
        z = self.project(*h)
        return Output(self.loss(*z), h[0], z[0], z[1])

    def encode(self, *inputs: Tensor) -> list[Tensor]:
        """Features of each input, [N, F]."""
        if len(inputs) != len(self.encoders):
            raise ValueError(
                f"There are {len(self.encoders)} encoders and must be as many inputs; got {len(inputs)}."
            )
        return [encoder(x) for encoder, x in zip(self.encoders, inputs, strict=True)]

    def project(self, *h: Tensor) -> list[Tensor]:
        """Projections of these, [N, K]."""
        return [projector(features) for projector, features in zip(self.projectors, h, strict=True)]
