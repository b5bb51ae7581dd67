"""Train encoders of different inputs together: one encoder and one projector per modality."""

from functools import partial

from torch import Tensor, nn

from smi.losses import smi_loss
from smi.losses.smi import REDUNDANCY_WEIGHT, Weight
from smi.methods.base import Output
from smi.methods.smi import WIDTHS
from smi.nn import Encoder, mlp


class Modalities(nn.Module):
    """Make two or more inputs of a sample dependent and different samples independent.

        model = Modalities(Encoder(images, 512), Encoder(tables, 64))
        model(x_images, x_tables).loss.backward()

    The dependency is even in the correlation. To match inputs, compare their projections by the
    magnitude of the correlation, not by its sign.
    """

    def __init__(
        self,
        *encoders: Encoder,
        widths: tuple[int, ...] = WIDTHS,
        redundancy_weight: Weight = REDUNDANCY_WEIGHT,
    ):
        super().__init__()
        if len(encoders) < 2:
            raise ValueError(f"Modalities needs two encoders or more; got {len(encoders)}.")
        self.encoders = nn.ModuleList(encoders)
        self.projectors = nn.ModuleList(mlp(encoder.dim, *widths) for encoder in encoders)
        self.loss = partial(smi_loss, redundancy_weight=redundancy_weight)

    def forward(self, *inputs: Tensor) -> Output:
        """Return the SMI loss between all inputs of the samples."""
        h = self.encode(*inputs)
        z = self.project(*h)
        return Output(self.loss(*z), h[0], z[0], z[1])

    def encode(self, *inputs: Tensor) -> list[Tensor]:
        """Return the features of each input, [N, F]."""
        if len(inputs) != len(self.encoders):
            raise ValueError(
                f"One input is needed for each of {len(self.encoders)} encoders; got {len(inputs)}."
            )
        return [encoder(x) for encoder, x in zip(self.encoders, inputs, strict=True)]

    def project(self, *h: Tensor) -> list[Tensor]:
        """Return the projections of the features, [N, K]."""
        return [projector(features) for projector, features in zip(self.projectors, h, strict=True)]
