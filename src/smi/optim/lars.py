"""Optimize with LARS (You et al. 2017, arXiv:1708.03888), as Barlow Twins' authors define it."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

MOMENTUM = 0.9


class LARS(Optimizer):
    """Update each matrix by a fixed share of its norm: SGD with momentum and scaled gradients.

        g = gradient + weight_decay * p
        g = g * eta * |p| / |g|             (unless either length is 0)
        mu = momentum * mu + g
        p = p - lr * mu

    Biases and norms (one dimension or none) have neither weight decay nor that factor: for them
    this is plain SGD. In a group with "adapt_vectors" they have both. A parameter without a
    gradient is skipped, and so is its momentum. Lengths stay on the device, so a step does not
    synchronise with the host.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        weight_decay: float = 0.0,
        momentum: float = MOMENTUM,
        eta: float = 1e-3,
    ):
        for name, value in {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "eta": eta,
        }.items():
            if not value >= 0:
                raise ValueError(f"{name} must be 0 or more; got {value}.")
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "eta": eta}
        )

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _batches(group["params"]):
                grads = [p.grad for p in params if p.grad is not None]
                # Checkpoints of earlier versions do not have the key.
                if params[0].ndim > 1 or group.get("adapt_vectors", False):
                    grads = self._adapt(
                        params, grads, weight_decay=group["weight_decay"], eta=group["eta"]
                    )
                mus = [self._mu(p) for p in params]
                torch._foreach_mul_(mus, group["momentum"])
                torch._foreach_add_(mus, grads)
                torch._foreach_add_(params, mus, alpha=-group["lr"])
        return loss

    @staticmethod
    def _adapt(
        params: list[Tensor], grads: list[Tensor], *, weight_decay: float, eta: float
    ) -> list[Tensor]:
        """Return gradients with weight decay, scaled to eta times the length of their parameter."""
        updates = list(torch._foreach_add(grads, params, alpha=weight_decay))
        param_norm = torch.stack(torch._foreach_norm(params))
        update_norm = torch.stack(torch._foreach_norm(updates))
        ratio = torch.where((param_norm > 0) & (update_norm > 0), eta * param_norm / update_norm, 1)
        torch._foreach_mul_(updates, list(ratio.unbind()))
        return updates

    def _mu(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "mu" not in state:
            state["mu"] = torch.zeros_like(p)
        mu: Tensor = state["mu"]
        return mu


def _batches(params: list[Tensor]) -> Iterable[list[Tensor]]:
    """Return parameters with a gradient in batches that are stepped together.

    On a GPU a batch holds all parameters of one kind, which launches far fewer kernels. On a CPU it
    holds one parameter, which stays in the cache between the operations of a step.
    """
    kinds = defaultdict(list)
    for p in params:
        if p.grad is not None:
            kinds[id(p) if p.device.type == "cpu" else (p.device, p.dtype, p.ndim > 1)].append(p)
    return kinds.values()
