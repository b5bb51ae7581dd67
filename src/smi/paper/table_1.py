"""Make Table 1: linear classifiers on frozen features, by method.

The paper's numbers are of ImageNet; ours are of the runs that are given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from smi.methods import METHOD_NAMES, find_method
from smi.paper.measured_rows import SEEDS_NOTE, MeasuredRow, measured_rows, protocol_notes
from smi.paper.numbers import TABLE_1, Table1Row
from smi.runs.names import settings_key
from smi.runs.run import Run
from smi.tables import NONE, Group, Table, percent, yes

PAPER_COLUMNS = ("Epochs", "MC", "Top-1", "Top-5")
OUR_COLUMNS = ("Data", "Encoder", "Epochs", "MC", "Top-1", "Top-5", "Protocol")
ABBREVIATIONS_NOTE = (
    "SN: one network for both views. MC: small crops beside the large views. "
    "Accuracies in per cent; - : not available."
)
COMPARE_NOTE = (
    "Our datasets, encoders and epochs differ from the paper's. Compare our rows only with our "
    "rows of the same dataset, encoder and protocol."
)

PUBLISHED_NOTE = (
    "As published: each method as its authors train it. Optimizers, views, batch sizes and epochs "
    "differ."
)
IDENTICAL_NOTE = "Identical settings: on each dataset, the rows differ by the method only."
DIFFERENT_NOTE = "Neither published nor identical settings: rows differ by more than the method."

Cells = tuple[tuple[str, ...], ...]  # a row: the cells of each group of columns


def table_1(runs: Sequence[Run], *, data: str | None = None) -> Table:
    """Return Table 1 with the results of runs beside the paper's rows of the same methods.

    data: the evaluation dataset as results spell it; None is the dataset of pretraining.
    """
    measured = measured_rows(runs, data)
    labelled = any(row.label for row in measured)
    rows: list[Cells] = []
    records: list[dict[str, Any]] = []
    for printed, ours in _matched(measured):
        rows += _lines(printed, ours, labelled)
        record: dict[str, Any] = {"method": printed.name if printed else ours[0].name}
        record["paper"] = asdict(printed) if printed else None
        record["here"] = [row.plain() for row in ours]
        records.append(record)
    groups = (
        Group("", ("Method", "SN")),
        Group("paper, ImageNet, ResNet-50", PAPER_COLUMNS),
        Group("here", ("Run", *OUR_COLUMNS) if labelled else OUR_COLUMNS),
    )
    title = f"Table 1. Linear classifiers on frozen features{_kind(measured)[0]}"
    return Table(groups, tuple(rows), title, tuple(_notes(measured)), tuple(records))


def _matched(
    measured: Sequence[MeasuredRow],
) -> Iterator[tuple[Table1Row | None, list[MeasuredRow]]]:
    """Yield each row of the paper with ours, then our rows of methods that it does not have."""
    for number, printed in enumerate(TABLE_1):
        yield (
            printed,
            [
                row
                for row in measured
                if row.method == printed.method and number == _nearest(row.method, row.epochs)
            ],
        )
    printed_methods = {printed.method for printed in TABLE_1}
    for row in measured:
        if row.method not in printed_methods:
            yield None, [row]


def _nearest(method: str, epochs: int) -> int:
    """Return the paper's row of a method with the nearest number of epochs; the last in a tie."""
    rows = [(number, row.epochs) for number, row in enumerate(TABLE_1) if row.method == method]
    return min(reversed(rows), key=lambda row: abs(row[1] - epochs))[0]


def _lines(
    printed: Table1Row | None, ours: Sequence[MeasuredRow], labelled: bool
) -> Iterator[Cells]:
    """Yield the paper's row with the first of ours, then the others of that method."""
    if printed is None:
        (row,) = ours
        yield (row.name, yes(_shared_network(row.method))), (NONE,) * 4, _cells(row, labelled)
        return
    name = (printed.name, yes(printed.shared_network))
    paper = (
        str(printed.epochs),
        yes(printed.multicrop),
        percent(printed.top1),
        percent(printed.top5),
    )
    blank = (NONE,) * (len(OUR_COLUMNS) + labelled)
    yield name, paper, _cells(ours[0], labelled) if ours else blank
    for row in ours[1:]:
        yield ("", ""), ("",) * 4, _cells(row, labelled)


def _cells(row: MeasuredRow, labelled: bool) -> tuple[str, ...]:
    return (row.label or NONE, *row.cells) if labelled else row.cells


def _shared_network(method: str) -> bool | None:
    return find_method(method).shared_network if method in METHOD_NAMES else None


def _kind(measured: Sequence[MeasuredRow]) -> tuple[str, str]:
    """Return how the settings of the rows are related, for the title and as a sentence."""
    if any(row.published for row in measured):
        return ", as published", PUBLISHED_NOTE
    datasets = {row.data for row in measured}
    settings = {(row.data, settings_key(row.setting)) for row in measured}
    if len(settings) == len(datasets):
        return (", identical settings", IDENTICAL_NOTE) if len(measured) > 1 else ("", "")
    return "", DIFFERENT_NOTE


def _notes(measured: Sequence[MeasuredRow]) -> Iterator[str]:
    yield ABBREVIATIONS_NOTE
    if measured:
        if kind := _kind(measured)[1]:
            yield kind
        yield COMPARE_NOTE
    if any(len(row.top1) > 1 for row in measured):
        yield SEEDS_NOTE
    yield from protocol_notes(measured)
