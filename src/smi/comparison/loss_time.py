"""What the loss of a step takes, whatever the method: its networks give again what they gave once, and the rest is timed."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.device import Precision, autocast, synchronize
from smi.methods import Method, Output


def loss_seconds(
    method: Method,
    views: Sequence[Tensor],
    batch: Batch,
    *,
    precision: Precision = "float32",
    repeats: int = 7,
) -> float | None:
    """The median time, forward and backward, of all that is no network. None for a method that does more with its networks than call them.

    Between a network's outputs and the loss lie sums, softmaxes, matrices of samples, queues: what one objective does and another does not.
    """
    device = views[0].device
    given: list[Tensor] = []

    def step() -> Output:
        torch.manual_seed(0)
        with autocast(device, precision):
            out: Output = method(views, batch)
        return out

    def keeping(network: nn.Module) -> Callable[..., Tensor]:
        forward = network.forward

        def keep(*arguments: Any) -> Tensor:
            out: Tensor = forward(*arguments)
            given.append(out.detach().requires_grad_(out.requires_grad))
            return out

        return keep

    times = []
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), ExitStack() as stack:
            with ExitStack() as once:
                for network in networks(method):
                    once.enter_context(replaced(network, keeping(network)))
                loss = step().loss.detach()
            waiting: Iterator[Tensor] = iter(())
            for network in networks(method):
                stack.enter_context(replaced(network, lambda *arguments: next(waiting)))
            for repeat in range(2 + repeats):
                waiting = iter(given)
                for out in given:
                    out.grad = None
                synchronize(device)
                begun = time.perf_counter()
                again = step().loss
                torch.autograd.backward(again)
                synchronize(device)
                if repeat >= 2:  # the first two warm up
                    times.append(time.perf_counter() - begun)
                if next(waiting, None) is not None or not torch.equal(again.detach(), loss):
                    return None
    except (RuntimeError, TypeError, ValueError, AttributeError, StopIteration):
        return None
    return statistics.median(times)


def networks(part: nn.Module) -> Iterator[nn.Module]:
    """What has parameters to be called with; a loss written as a module has none, and queues have buffers only."""
    for child in part.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from networks(child)
        elif next(child.parameters(), None) is not None:
            yield child


@contextmanager
def replaced(network: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    vars(network)["forward"] = forward  # before that of its class, where a call looks first
    try:
        yield
    finally:
        del vars(network)["forward"]
