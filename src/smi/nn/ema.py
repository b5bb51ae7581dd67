"""Keep a slowly moving copy of networks: the teacher of BYOL, MoCo and DINO."""

import copy

import torch
from torch import Tensor, nn


class Ema(nn.Module):
    """Keep an exponential moving average of modules that are applied one after the other.

    `Ema(encoder, projector)(x)` has no gradient. It starts as a copy. Its batch norms keep their
    own statistics, of the inputs they see.
    """

    def __init__(self, *modules: nn.Module):
        super().__init__()
        self.network = nn.Sequential(*copy.deepcopy(modules)).requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Apply the averaged modules."""
        out: Tensor = self.network(x)
        return out

    @torch.no_grad()
    def follow(self, *modules: nn.Module, momentum: float) -> None:
        """Move 1 - momentum of the way towards the modules it was copied from."""
        ours: list[Tensor] = list(self.network.parameters())
        theirs: list[Tensor] = [
            parameter for module in modules for parameter in module.parameters()
        ]
        torch._foreach_lerp_(ours, theirs, 1 - momentum)
