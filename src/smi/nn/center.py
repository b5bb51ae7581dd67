"""DINO's centre (Caron et al. 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smi.distributed import all_mean
from smi.losses.embeddings import check_lists, check_share


class Center(nn.Module):
    """A moving average [dim] of the teacher's outputs over all views, samples and devices; zeros at the start.

    center = Center(65536)
    loss = dino_loss(teacher, student, center.mean)
    center.update(teacher)
    """

    mean: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.9):
        super().__init__()
        check_share(momentum=momentum)
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(dim))

    @torch.no_grad()
    def update(self, outputs: Sequence[Tensor]) -> None:
        check_lists(outputs)
        batch_mean = all_mean(
            torch.stack([output.detach().to(self.mean).mean(dim=0) for output in outputs]).mean(
                dim=0
            )
        )
        self.mean = torch.lerp(batch_mean, self.mean, self.momentum)
