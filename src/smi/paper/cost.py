"""Table 2: what each loss costs per step. N samples on each of W devices, K embedding coordinates.

Counting needs no torch; measuring does.
"""

import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from smi.device import default_device, describe_device, synchronize
from smi.errors import UserError
from smi.tables import Table

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cost:
    """One row of the table. Multiply-accumulates (MACs) are of the forward pass."""

    loss: str
    paper_macs: int  # as the paper counts: the joined batch once; for SMI, whose losses are local, all devices together
    device_macs: int  # what this package computes on each device
    pairs: int  # off-diagonal entries: `copies` matrices of side `side`
    copies: int
    side: int
    global_batch_norm: bool
    gather: bool
    bytes_sent: int  # by each device: its embeddings of both views, in float32, to all others

    @property
    def entries(self) -> str:
        product = f"{self.side}×{self.side - 1}"
        return product if self.copies == 1 else f"{self.copies}({product})"


def costs(batch: int = 256, dim: int = 8192, devices: int = 8) -> list[Cost]:
    """The cost of each loss of the paper's Table 2."""
    n, k, w = batch, dim, devices
    joined = w * n

    def cost(
        loss: str, paper_macs: int, device_macs: int, copies: int, side: int, local: bool = False
    ) -> Cost:
        sent = 0 if local else 2 * (w - 1) * n * k * 4
        return Cost(
            loss,
            paper_macs,
            device_macs,
            copies * side * (side - 1),
            copies,
            side,
            not local,
            not local,
            sent,
        )

    # Two matrices of side WN instead of those of side K, where that is less; VICReg forms a few rows of the latter besides.
    few = 2 * joined <= k
    samples, rows = 2 * symmetric_macs(joined, k), 2 * min(16, k) * k * joined
    return [
        cost("Barlow Twins", k * k * joined, samples if few else k * k * joined, 1, k),
        cost("VICReg", 2 * k * k * joined, samples + rows if few else 2 * k * k * joined, 2, k),
        cost("NT-Xent", 3 * joined**2 * k, symmetric_macs(2 * joined, k), 3, 2 * joined),
        cost("SMI", 3 * w * n**2 * k, smi_macs(n, k), 3 * w, n, local=True),
    ]


@functools.cache
def symmetric_macs(rows: int, dim: int) -> int:
    """A product u @ u.T whose lower triangle is mostly copied: smi.losses.embeddings.symmetric_product."""
    if rows <= 128:
        return rows**2 * dim
    half = (rows + 1) // 2
    return half * (rows - half) * dim + symmetric_macs(half, dim) + symmetric_macs(rows - half, dim)


def smi_macs(rows: int, dim: int, tile: int = 1024) -> int:
    """Two stacked views in one symmetric product or, for many samples, three matrices, tile by tile, without what symmetry gives."""
    if 4 * rows <= dim:
        return symmetric_macs(2 * rows, dim)
    tiles, last = divmod(rows, tile)
    on_diagonal = tiles * tile**2 + last**2
    return (
        rows**2 + rows**2 + on_diagonal
    ) * dim  # of each same-view matrix half, and half of what lies on its diagonal


@dataclass(frozen=True)
class Measurement:
    """Medians at [N, K] on one device of this machine; memory is what the step holds at most beyond the embeddings it is given."""

    forward_ms: float
    backward_ms: float
    peak_mb: float | None  # None where the device does not tell


def measure(batch: int, dim: int, repeats: int = 7) -> dict[str, Measurement]:
    """Time and memory of this package's losses of Table 2, by the names `costs` gives them."""
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # the profiler that counts memory speaks on the terminal otherwise
    import torch

    from smi.losses import BarlowTwinsLoss, NTXentLoss, SMILoss, VICRegLoss

    device = default_device()
    generator = torch.Generator().manual_seed(0)
    views = [
        torch.randn(batch, dim, generator=generator).to(device).requires_grad_() for _ in range(2)
    ]
    criteria = {
        "Barlow Twins": BarlowTwinsLoss(),
        "VICReg": VICRegLoss(),
        "NT-Xent": NTXentLoss(),
        "SMI": SMILoss(),
    }
    return {name: measure_loss(criterion, views, repeats) for name, criterion in criteria.items()}


def measure_loss(
    criterion: Callable[..., "Tensor"], views: Sequence["Tensor"], repeats: int
) -> Measurement:
    import torch

    device = views[0].device
    forward, backward = [], []
    for repeat in range(2 + repeats):
        for z in views:
            z.grad = None
        synchronize(device)
        start = time.perf_counter()
        loss = criterion(*views)
        synchronize(device)
        middle = time.perf_counter()
        torch.autograd.backward(loss)
        synchronize(device)
        if repeat >= 2:  # the first two warm up
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


def peak_bytes(step: Callable[[], None], device: Any) -> int | None:
    """The most memory that tensors made by `step` hold at any one time; None where the device does not tell."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return int(torch.cuda.max_memory_allocated(device) - before)
    if device.type != "cpu":
        return None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def race(
    batch: int = 256, dim: int = 8192, rounds: int = 5, device: Any = None
) -> dict[str, tuple[float, ...]]:
    """Milliseconds, forward and backward, of SMI and Barlow Twins: in each round one after the other, with embeddings of that round."""
    import torch

    from smi.losses import BarlowTwinsLoss, SMILoss

    device = device or default_device()
    criteria: dict[str, Callable[..., Tensor]] = {
        "SMI": SMILoss(),
        "Barlow Twins, K × K": barlow_twins_as_published,
        "Barlow Twins, N × N": BarlowTwinsLoss(),
    }
    found: dict[str, list[float]] = {name: [] for name in criteria}
    for number in range(-1, rounds):  # the first warms up
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
                found[name].append(1e3 * (time.perf_counter() - start))
    return {name: tuple(times) for name, times in found.items()}


def barlow_twins_as_published(
    z1: "Tensor", z2: "Tensor", redundancy_weight: float = 5.1e-3
) -> "Tensor":
    """By way of the K x K matrix, which the paper counts; `smi.losses.barlow_twins_loss` gives the same number without it."""
    from torch.nn.functional import batch_norm

    def normalised(z: "Tensor") -> "Tensor":
        return batch_norm(z, None, None, training=True)

    c = normalised(z1).T @ normalised(z2) / len(z1)
    diagonal = c.diagonal()
    squares = c.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + redundancy_weight * squares


def most_coordinates(dim: int = 8192, free_bytes: int | None = None) -> int:
    """So many that a race fits into half of the memory there is: the K x K matrix and what its gradient needs are six of them."""
    if free_bytes is None:
        try:
            free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):  # this system does not tell
            return dim
    while dim > 256 and 6 * 4 * dim**2 > free_bytes / 2:
        dim //= 2
    return dim


# ------------------------------------------------------------------------------------------------------------------- what is printed


def print_cost(*, batch: int, dim: int, devices: int, measured: bool, as_json: bool) -> None:
    rows = costs(batch, dim, devices)
    measurements = _measure_or_say_why_not(batch, dim) if measured else {}
    if as_json:
        losses = [
            asdict(row) | (asdict(measurements[row.loss]) if measured else {}) for row in rows
        ]
        document = {"batch": batch, "dim": dim, "devices": devices, "losses": losses}
        print(json.dumps(document | ({"machine": describe_device()} if measured else {}), indent=2))
        return

    headers = [
        "Loss",
        "GMACs",
        "Off-diagonal entries",
        "Global BN",
        "Gather",
        "MB sent",
        "GMACs here",
    ]
    table = [
        [
            row.loss,
            giga(row.paper_macs),
            row.entries,
            "yes" if row.global_batch_norm else "no",
            "yes" if row.gather else "no",
            f"{row.bytes_sent / 1e6:.1f}" if row.bytes_sent else "0",
            giga(row.device_macs),
        ]
        for row in rows
    ]
    if measured:
        headers += ["Forward ms", "Backward ms", "Peak MB"]
        for cells, row in zip(table, rows, strict=True):
            m = measurements[row.loss]
            cells += [
                f"{m.forward_ms:.1f}",
                f"{m.backward_ms:.1f}",
                "?" if m.peak_mb is None else f"{m.peak_mb:.1f}",
            ]
    print(
        f"What each loss costs per step: {batch} samples on each of {devices} devices, {dim} coordinates, two views\n"
    )
    print(Table.of(headers, table).text())
    print(f"\n{NOTES}")
    if measured:
        print(MEASURED_NOTE.format(batch=batch, dim=dim, machine=describe_device()))


def _measure_or_say_why_not(batch: int, dim: int) -> dict[str, Measurement]:
    try:
        return measure(batch, dim)
    except (
        RuntimeError,
        MemoryError,
    ) as error:  # torch raises RuntimeError where memory is short, on every device
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise UserError(
                f"the memory here does not suffice to measure {batch} x {dim}: choose a smaller --batch or --dim"
            ) from error
        raise


NOTES = """\
GMACs       10^9 multiply-accumulates of the forward pass, as the paper counts them: one joined batch;
            for SMI, which needs none, all devices together.
MB sent     by each device, its float32 embeddings to all others; averaging the gradients comes on top.
GMACs here  what this package computes on each device: of symmetric matrices little more than half, and
            for Barlow Twins and VICReg matrices between samples, not coordinates, where those are smaller."""
MEASURED_NOTE = """\
Measured    medians for one device alone, {batch}×{dim}: {machine}.
            Peak MB is held at most beyond the embeddings, gradients included."""


def giga(macs: int) -> str:
    """In 10^9, truncated to two decimals as the paper does; three digits where that would hide a small number."""
    return f"{macs // 10**9}.{macs % 10**9 // 10**7:02}" if macs >= 10**9 else f"{macs / 1e9:.3g}"
