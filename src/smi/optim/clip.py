"""Clip gradients before a step."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

EPS = 1e-6  # DINO's


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], longest: float) -> None:
    """Shorten the gradient of each parameter on its own to a norm of at most `longest`.

    This is how DINO's authors clip; PyTorch's clip_grad_norm_ clips all gradients by their total
    norm. Norms stay on the device. Gradients must be unscaled.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for p in parameters:
        if p.grad is not None:
            groups[p.grad.device, p.grad.dtype].append(p.grad)
    for grads in groups.values():
        norms = torch.stack(torch._foreach_norm(grads))
        factors = (longest / (norms + EPS)).clamp(max=1.0)
        torch._foreach_mul_(grads, list(factors.unbind()))
