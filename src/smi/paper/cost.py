"""Count the cost of each loss per step: the paper's Table 2, for any batch, width and devices.

print(cost(batch=256, dim=8192, devices=8).text())

Counting does not need torch; `measure=True` does.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from smi.tables import Table, yes

BATCH = 256  # the paper's setting: samples on each device
DIM = 8192  # embedding coordinates
DEVICES = 8


@dataclass(frozen=True)
class LossCost:
    """Hold one row of the table. Multiply-accumulates (MACs) are those of the forward pass.

    paper_macs: as the paper counts them, for the joined batch. SMI's losses are local, so its
        number is the sum over all devices.
    device_macs: computed by this package on each device.
    pairs: off-diagonal entries of `copies` matrices with `side` rows and columns.
    bytes_sent: by each device to all others: its embeddings of both views, in float32.
    """

    loss: str
    paper_macs: int
    device_macs: int
    pairs: int
    copies: int
    side: int
    global_batch_norm: bool
    gather: bool
    bytes_sent: int

    @property
    def entries(self) -> str:
        """Return the number of off-diagonal entries as a product, as the paper prints it."""
        product = f"{self.side}×{self.side - 1}"
        return product if self.copies == 1 else f"{self.copies}({product})"


@dataclass(frozen=True)
class Measurement:
    """Hold the median times of one loss, and the memory its step holds beyond the embeddings."""

    forward_ms: float
    backward_ms: float
    peak_mb: float | None  # None if the device does not report it


@dataclass(frozen=True)
class CostTable:
    """Hold the cost of each loss for one batch size, width and number of devices.

    measurements: time and memory on this machine, by loss; empty unless they were measured.
    """

    batch: int
    dim: int
    devices: int
    losses: tuple[LossCost, ...]
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    machine: str = ""

    def text(self) -> str:
        """Return the table with its title and notes, for a terminal."""
        return self.table().text()

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return self.table().markdown()

    def latex(self) -> str:
        """Return the table in LaTeX."""
        return self.table().latex()

    def csv(self) -> str:
        """Return the cells as comma-separated values."""
        return self.table().csv()

    def table(self) -> Table:
        """Return the table with its title and notes."""
        headers = [*COUNTED_HEADERS, *(MEASURED_HEADERS if self.measurements else ())]
        notes = [*NOTES.splitlines(), *(self._measured_notes() if self.measurements else ())]
        title = (
            f"Cost of each loss per step: {self.batch} samples on each of {self.devices} devices, "
            f"{self.dim} coordinates, two views"
        )
        rows = [[*_counted_cells(row), *self._measured_cells(row)] for row in self.losses]
        return Table.of(headers, rows, title=title, notes=notes)

    def plain(self) -> dict[str, Any]:
        """Return the sizes and all numbers of each loss, ready for JSON."""
        losses = []
        for row in self.losses:
            measured = self.measurements.get(row.loss)
            losses.append(asdict(row) | (asdict(measured) if measured else {}))
        document = {
            "batch": self.batch,
            "dim": self.dim,
            "devices": self.devices,
            "losses": losses,
        }
        return document | ({"machine": self.machine} if self.measurements else {})

    def _measured_cells(self, row: LossCost) -> list[str]:
        measured = self.measurements.get(row.loss)
        if measured is None:
            return []
        peak = "?" if measured.peak_mb is None else f"{measured.peak_mb:.1f}"
        return [f"{measured.forward_ms:.1f}", f"{measured.backward_ms:.1f}", peak]

    def _measured_notes(self) -> list[str]:
        text = MEASURED_NOTE.format(batch=self.batch, dim=self.dim, machine=self.machine)
        return text.splitlines()


COUNTED_HEADERS = (
    "Loss",
    "GMACs",
    "Off-diagonal entries",
    "Global BN",
    "Gather",
    "MB sent",
    "GMACs here",
)
MEASURED_HEADERS = ("Forward ms", "Backward ms", "Peak MB")
NOTES = """\
GMACs       10^9 multiply-accumulates of the forward pass, counted as in the paper: for the batch of
            all devices together. SMI does not join batches; its number is the sum over devices.
MB sent     float32 embeddings that each device sends to all others. Averaging the gradients sends
            more, for every loss alike.
GMACs here  computed by this package on each device. Symmetric matrices take little more than half.
            Barlow Twins and VICReg use matrices between samples where these are smaller."""
MEASURED_NOTE = """\
Measured    medians on one device, {batch}×{dim}: {machine}.
            Peak MB is the peak memory beyond the embeddings, gradients included."""


def cost(
    batch: int = BATCH, dim: int = DIM, devices: int = DEVICES, measure: bool = False
) -> CostTable:
    """Count the cost of each loss of the paper's Table 2, and optionally measure it.

        print(cost(batch=128, dim=2048, devices=4).text())

    batch: samples on each device. dim: embedding coordinates. measure: also take the time and
    memory of one device's step at batch × dim.
    """
    losses = tuple(count_costs(batch, dim, devices))
    if not measure:
        return CostTable(batch, dim, devices, losses)
    from smi.device import describe_device
    from smi.paper.timing import measure_losses

    measurements = measure_losses(batch, dim)
    return CostTable(batch, dim, devices, losses, measurements, describe_device())


def count_costs(batch: int = BATCH, dim: int = DIM, devices: int = DEVICES) -> list[LossCost]:
    """Count the cost of each loss of the paper's Table 2."""
    n, k, w = batch, dim, devices
    joined = w * n

    def row(
        loss: str, paper_macs: int, device_macs: int, copies: int, side: int, local: bool = False
    ) -> LossCost:
        return LossCost(
            loss=loss,
            paper_macs=paper_macs,
            device_macs=device_macs,
            pairs=copies * side * (side - 1),
            copies=copies,
            side=side,
            global_batch_norm=not local,
            gather=not local,
            bytes_sent=0 if local else 2 * (w - 1) * n * k * 4,
        )

    # Two matrices of side WN instead of those of side K, where that takes fewer operations.
    # VICReg also forms a few rows of the K × K matrices.
    few = 2 * joined <= k
    between_samples = 2 * symmetric_macs(joined, k)
    vicreg_rows = 2 * min(16, k) * k * joined
    barlow_twins = k * k * joined
    vicreg = 2 * k * k * joined
    return [
        row("Barlow Twins", barlow_twins, between_samples if few else barlow_twins, 1, k),
        row("VICReg", vicreg, between_samples + vicreg_rows if few else vicreg, 2, k),
        row("NT-Xent", 3 * joined**2 * k, symmetric_macs(2 * joined, k), 3, 2 * joined),
        row("SMI", 3 * w * n**2 * k, smi_macs(n, k), 3 * w, n, local=True),
    ]


@functools.cache
def symmetric_macs(rows: int, dim: int) -> int:
    """Count the MACs of `smi.losses.numerics.symmetric_product`, which uses the symmetry."""
    if rows <= 128:
        return rows**2 * dim
    half = (rows + 1) // 2
    return half * (rows - half) * dim + symmetric_macs(half, dim) + symmetric_macs(rows - half, dim)


def smi_macs(rows: int, dim: int, tile: int = 1024) -> int:
    """Count the MACs of the SMI loss: one symmetric product, or tiles of three matrices.

    Few samples: both views are stacked in one symmetric product. Many samples: the matrix between
    views, and the upper half of each view's own matrix, are computed tile by tile.
    """
    if 4 * rows <= dim:
        return symmetric_macs(2 * rows, dim)
    tiles, last = divmod(rows, tile)
    on_diagonal = tiles * tile**2 + last**2
    own_views = rows**2 + on_diagonal  # half of two matrices, and half of their diagonal tiles
    return (rows**2 + own_views) * dim


def giga(macs: int) -> str:
    """Format MACs in 10^9, truncated to two decimals as in the paper; few MACs with 3 digits."""
    return f"{macs // 10**9}.{macs % 10**9 // 10**7:02}" if macs >= 10**9 else f"{macs / 1e9:.3g}"


def _counted_cells(row: LossCost) -> list[str]:
    return [
        row.loss,
        giga(row.paper_macs),
        row.entries,
        yes(row.global_batch_norm),
        yes(row.gather),
        f"{row.bytes_sent / 1e6:.1f}" if row.bytes_sent else "0",
        giga(row.device_macs),
    ]
