"""Optimize with LARC, as SwAV's authors do: NVIDIA apex's, which scales and does not clip."""

import torch
from torch import Tensor

from smi.optim.lars import LARS

EPS = 1e-8  # apex's


class LARC(LARS):
    """Update each matrix by about a fixed share of its norm, by another factor than LARS.

        g = (gradient + weight_decay * p) * eta * |p| / (|gradient| + weight_decay * |p| + eps)
        mu = momentum * mu + g
        p = p - lr * mu

    If |p| or |gradient| is 0, g is the gradient, without weight decay. All else is as in LARS.
    SwAV adapts biases and norms too: set "adapt_vectors" in their group.
    """

    @staticmethod
    def _adapt(
        params: list[Tensor], grads: list[Tensor], *, weight_decay: float, eta: float
    ) -> list[Tensor]:
        """Return scaled gradients with scaled weight decay."""
        param_norm = torch.stack(torch._foreach_norm(params))
        grad_norm = torch.stack(torch._foreach_norm(grads))
        ratio = eta * param_norm / (grad_norm + weight_decay * param_norm + EPS)
        adapted = (param_norm > 0) & (grad_norm > 0)
        updates = list(torch._foreach_mul(grads, list(torch.where(adapted, ratio, 1).unbind())))
        if weight_decay:
            decay = torch.where(adapted, weight_decay * ratio, 0)
            torch._foreach_add_(updates, torch._foreach_mul(params, list(decay.unbind())))
        return updates
