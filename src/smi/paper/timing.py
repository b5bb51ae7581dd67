"""Time the losses of Table 2 on this machine, and measure the memory that their steps hold."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm

from smi.device import default_device, free_memory_bytes, synchronize
from smi.errors import UserError
from smi.losses import BarlowTwinsLoss, NTXentLoss, SMILoss, VICRegLoss
from smi.paper.cost import BATCH, DIM, Measurement

Criterion = Callable[..., Tensor]
WARM_UP_STEPS = 2


def measure_losses(batch: int, dim: int, repeats: int = 7) -> dict[str, Measurement]:
    """Measure time and memory of the losses of Table 2, by the names that `count_costs` uses."""
    # Without this, the profiler that counts memory prints on the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    criteria = {
        "Barlow Twins": BarlowTwinsLoss(),
        "VICReg": VICRegLoss(),
        "NT-Xent": NTXentLoss(),
        "SMI": SMILoss(),
    }
    try:
        views = _random_views(batch, dim)
        return {
            name: measure_loss(criterion, views, repeats) for name, criterion in criteria.items()
        }
    except (RuntimeError, MemoryError) as error:
        # On every device torch raises RuntimeError if memory is short.
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise UserError(
                f"there is not enough memory to measure {batch} x {dim}: "
                "choose a smaller --batch or --dim"
            ) from error
        raise


def _random_views(batch: int, dim: int) -> list[Tensor]:
    device = default_device()
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, dim, generator=generator).to(device).requires_grad_() for _ in range(2)
    ]


def measure_loss(criterion: Criterion, views: Sequence[Tensor], repeats: int) -> Measurement:
    """Measure one loss on the device of its views."""
    device = views[0].device
    forward, backward = [], []
    for repeat in range(WARM_UP_STEPS + repeats):
        for z in views:
            z.grad = None
        synchronize(device)
        start = time.perf_counter()
        loss = criterion(*views)
        synchronize(device)
        middle = time.perf_counter()
        torch.autograd.backward(loss)
        synchronize(device)
        if repeat >= WARM_UP_STEPS:
            forward.append(middle - start)
            backward.append(time.perf_counter() - middle)
    for z in views:
        z.grad = None

    def step() -> None:
        torch.autograd.backward(criterion(*views))

    peak = peak_bytes(step, device)
    return Measurement(
        statistics.median(forward) * 1e3,
        statistics.median(backward) * 1e3,
        None if peak is None else peak / 1e6,
    )


def peak_bytes(step: Callable[[], None], device: torch.device) -> int | None:
    """Return the peak bytes of tensors that `step` creates; None if not reported."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return int(torch.cuda.max_memory_allocated(device) - before)
    if device.type != "cpu":
        return None
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def time_losses_in_turn(
    batch: int = BATCH, dim: int = DIM, rounds: int = 5, device: torch.device | None = None
) -> dict[str, tuple[float, ...]]:
    """Time SMI and Barlow Twins, forward and backward, in milliseconds per round.

    In each round the losses take turns with the same embeddings, so that a change of the
    machine's speed meets all of them.
    """
    device = device or default_device()
    ours = BarlowTwinsLoss()
    published = partial(barlow_twins_as_published, redundancy_weight=ours.redundancy_weight)
    criteria: dict[str, Criterion] = {
        "SMI": SMILoss(),
        "Barlow Twins, K × K": published,
        "Barlow Twins, N × N": ours,
    }
    times: dict[str, list[float]] = {name: [] for name in criteria}
    for number in range(-1, rounds):  # round -1 warms up
        generator = torch.Generator().manual_seed(max(number, 0))
        shared = torch.randn(batch, dim, generator=generator)
        views = [shared + 0.5 * torch.randn(batch, dim, generator=generator) for _ in range(2)]
        for name, criterion in criteria.items():
            z = [view.to(device).requires_grad_() for view in views]
            synchronize(device)
            start = time.perf_counter()
            torch.autograd.backward(criterion(*z))
            synchronize(device)
            if number >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: tuple(values) for name, values in times.items()}


def barlow_twins_as_published(z1: Tensor, z2: Tensor, *, redundancy_weight: float) -> Tensor:
    """Compute the Barlow Twins loss from its K × K matrix, which the paper counts.

    `smi.losses.barlow_twins_loss` computes the same number faster.
    """
    z1 = batch_norm(z1, None, None, training=True)
    z2 = batch_norm(z2, None, None, training=True)
    c = z1.T @ z2 / len(z1)  # [K, K]
    diagonal = c.diagonal()
    squares = c.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + redundancy_weight * squares


def largest_dim(dim: int = DIM, free_bytes: int | None = None) -> int:
    """Return the largest width up to `dim` that can be timed in half of the free memory.

    The K × K matrix and its gradient need about six matrices of that size.
    """
    if free_bytes is None:
        free_bytes = free_memory_bytes()
        if free_bytes is None:
            return dim
    while dim > 256 and 6 * 4 * dim**2 > free_bytes / 2:
        dim //= 2
    return dim
