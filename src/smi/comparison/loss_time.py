"""Time the loss of a training step without the networks, for any method.

The networks run once; then their recorded outputs replace them, and the remaining work is timed.
"""

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

WARM_UP_STEPS = 2


def loss_seconds(
    method: Method,
    views: Sequence[Tensor],
    batch: Batch,
    *,
    precision: Precision = "float32",
    repeats: int = 7,
) -> float | None:
    """Return the median time, forward and backward, of a step without its networks.

    This is the work between the outputs of the networks and the loss: sums, softmaxes, matrices of
    samples, queues. None for a method that does more with its networks than call them.
    """
    device = views[0].device

    def step() -> Tensor:
        torch.manual_seed(0)
        with autocast(device, precision):
            output: Output = method(views, batch)
        return output.loss

    times = []
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), ExitStack() as stack:
            outputs, loss = _record_outputs(method, step)
            replay: Iterator[Tensor] = iter(())
            for network in networks(method):
                stack.enter_context(replaced(network, lambda *arguments: next(replay)))
            for number in range(WARM_UP_STEPS + repeats):
                replay = iter(outputs)
                for output in outputs:
                    output.grad = None
                synchronize(device)
                start = time.perf_counter()
                replayed_loss = step()
                torch.autograd.backward(replayed_loss)
                synchronize(device)
                if number >= WARM_UP_STEPS:
                    times.append(time.perf_counter() - start)
                is_complete = next(replay, None) is None
                if not is_complete or not torch.equal(replayed_loss.detach(), loss):
                    return None
    except (RuntimeError, TypeError, ValueError, AttributeError, StopIteration):
        return None
    return statistics.median(times)


def _record_outputs(method: Method, step: Callable[[], Tensor]) -> tuple[list[Tensor], Tensor]:
    """Run one step; return the outputs of all networks in order of their calls, and the loss."""
    outputs: list[Tensor] = []

    def recording(network: nn.Module) -> Callable[..., Tensor]:
        forward = network.forward

        def record(*arguments: Any) -> Tensor:
            output: Tensor = forward(*arguments)
            outputs.append(output.detach().requires_grad_(output.requires_grad))
            return output

        return record

    with ExitStack() as stack:
        for network in networks(method):
            stack.enter_context(replaced(network, recording(network)))
        loss = step().detach()
    return outputs, loss


def networks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a method that have parameters, looking into lists and dictionaries.

    A loss that is written as a module has no parameters, and a queue has buffers only.
    """
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from networks(child)
        elif next(child.parameters(), None) is not None:
            yield child


@contextmanager
def replaced(network: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Replace the forward function of a network inside the block."""
    vars(network)["forward"] = forward  # an attribute of the instance hides that of its class
    try:
        yield
    finally:
        del vars(network)["forward"]
