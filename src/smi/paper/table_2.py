"""Table 2: what each loss costs per step, as the paper prints it and as this package counts it."""

from dataclasses import asdict

from smi.paper.cost import costs, giga
from smi.paper.numbers import TABLE_2
from smi.tables import Group, Table, yes


def table_2() -> Table:
    here = {row.loss: row for row in costs()}
    rows = tuple(
        (
            (row.loss,),
            (
                f"{row.gflops:.2f}",
                row.entries,
                yes(row.global_batch_norm),
                yes(row.gather),
                str(row.epochs),
            ),
            (
                giga(here[row.loss].paper_macs),
                here[row.loss].entries,
                giga(here[row.loss].device_macs),
                f"{here[row.loss].bytes_sent / 1e6:.0f}",
            ),
        )
        for row in TABLE_2
    )
    return Table(
        (
            Group("", ("Loss",)),
            Group("paper", ("GFLOPs", "Off-diagonal entries", "Global BN", "Gather", "Epochs")),
            Group(
                "here, counted",
                ("GMACs", "Off-diagonal entries", "GMACs per device", "MB sent per device"),
            ),
        ),
        rows,
        "Table 2. What each loss costs per step: 256 samples on each of 8 devices, 8192 coordinates, two views",
        (
            "GFLOPs, GMACs: 10^9 multiply-accumulates of the forward pass, of the joined batch; for SMI, which joins none, of all devices.",
            "GMACs per device: what this package computes, of symmetric matrices little more than half. MB sent: float32 embeddings.",
            "`smi cost` counts other sizes, and with --measure takes the time.",
        ),
        tuple(
            {"loss": row.loss, "paper": asdict(row), "here": asdict(here[row.loss])}
            for row in TABLE_2
        ),
    )
