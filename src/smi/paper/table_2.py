"""Make Table 2: the cost of each loss per step, as the paper prints it and as counted here."""

from dataclasses import asdict

from smi.paper.cost import LossCost, count_costs, giga
from smi.paper.numbers import TABLE_2, Table2Row
from smi.tables import Group, Table, yes

GROUPS = (
    Group("", ("Loss",)),
    Group("paper", ("GFLOPs", "Off-diagonal entries", "Global BN", "Gather", "Epochs")),
    Group(
        "here, counted", ("GMACs", "Off-diagonal entries", "GMACs per device", "MB sent per device")
    ),
)
TITLE = (
    "Table 2. Cost of each loss per step: 256 samples on each of 8 devices, 8192 coordinates, "
    "two views"
)
NOTES = (
    "GFLOPs, GMACs: 10^9 multiply-accumulates of the forward pass for the batch of all devices. "
    "SMI does not join batches; its number is the sum over devices.",
    "GMACs per device: computed by this package. Symmetric matrices take little more than half. "
    "MB sent: float32 embeddings.",
    "--batch, --dim and --devices count other sizes. --measure also measures time and memory.",
)


def table_2() -> Table:
    """Return Table 2 beside the counts of this package."""
    counted = {row.loss: row for row in count_costs()}
    rows = tuple(_row(row, counted[row.loss]) for row in TABLE_2)
    records = tuple(
        {"loss": row.loss, "paper": asdict(row), "here": asdict(counted[row.loss])}
        for row in TABLE_2
    )
    return Table(GROUPS, rows, TITLE, NOTES, records)


def _row(printed: Table2Row, counted: LossCost) -> tuple[tuple[str, ...], ...]:
    paper = (
        f"{printed.gflops:.2f}",
        printed.entries,
        yes(printed.global_batch_norm),
        yes(printed.gather),
        str(printed.epochs),
    )
    here = (
        giga(counted.paper_macs),
        counted.entries,
        giga(counted.device_macs),
        f"{counted.bytes_sent / 1e6:.0f}",
    )
    return (printed.loss,), paper, here
