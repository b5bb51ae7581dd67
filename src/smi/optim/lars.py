"""LARS (You et al. 2017, arXiv:1708.03888) as the authors of Barlow Twins define it."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class LARS(Optimizer):
    """SGD with momentum whose step is, for each matrix, a fixed share of the matrix's own length.

        g = gradient + weight_decay * p
        g = g * eta * |p| / |g|             (not where either length is 0)
        mu = momentum * mu + g
        p = p - lr * mu

    Biases and norms (one dimension or none) have neither weight decay nor that factor: for them it is plain SGD. A parameter without a
    gradient is left as it is, its momentum too. Lengths stay on the device: a step waits for nothing.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _batches(group["params"]):
                grads = [p.grad for p in params if p.grad is not None]
                if params[0].ndim > 1:
                    grads = _adapt(
                        params, grads, weight_decay=group["weight_decay"], eta=group["eta"]
                    )
                mus = [self._mu(p) for p in params]
                torch._foreach_mul_(mus, group["momentum"])
                torch._foreach_add_(mus, grads)
                torch._foreach_add_(params, mus, alpha=-group["lr"])
        return loss

    def _mu(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "mu" not in state:
            state["mu"] = torch.zeros_like(p)
        mu: Tensor = state["mu"]
        return mu


def _batches(params: list[Tensor]) -> Iterable[list[Tensor]]:
    """Parameters with a gradient, as they are stepped together.

    On a GPU all of one kind, for far fewer kernels to launch. On a CPU one by one: what a sweep over all would read from memory again and
    again stays in the cache.
    """
    kinds = defaultdict(list)
    for p in params:
        if p.grad is not None:
            kinds[id(p) if p.device.type == "cpu" else (p.device, p.dtype, p.ndim > 1)].append(p)
    return kinds.values()


def _adapt(
    params: list[Tensor], grads: list[Tensor], *, weight_decay: float, eta: float
) -> list[Tensor]:
    """Gradients with weight decay, as long as eta times their parameter."""
    updates = list(torch._foreach_add(grads, params, alpha=weight_decay))
    param_norm = torch.stack(torch._foreach_norm(params))
    update_norm = torch.stack(torch._foreach_norm(updates))
    ratio = torch.where((param_norm > 0) & (update_norm > 0), eta * param_norm / update_norm, 1)
    torch._foreach_mul_(updates, list(ratio.unbind()))
    return updates
