"""Keep the centre of DINO's teacher outputs (Caron et al. 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smi.distributed import all_mean
from smi.losses.numerics import check_lists, check_share

CENTER_MOMENTUM = 0.9


class Center(nn.Module):
    """Keep a moving average [dim] of the teacher's outputs over all views, samples and devices.

        center = Center(65536)
        loss = dino_loss(teacher, student, center.mean)
        center.update(teacher)

    It starts at zero.
    """

    mean: Tensor

    def __init__(self, dim: int, *, momentum: float = CENTER_MOMENTUM):
        super().__init__()
        check_share(momentum=momentum)
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(dim))

    @torch.no_grad()
    def update(self, outputs: Sequence[Tensor]) -> None:
        """Move towards the mean of these outputs, [N, dim] for each view."""
        check_lists(outputs)
        view_means = [output.detach().to(self.mean).mean(dim=0) for output in outputs]
        batch_mean = all_mean(torch.stack(view_means).mean(dim=0))
        self.mean = torch.lerp(batch_mean, self.mean, self.momentum)
