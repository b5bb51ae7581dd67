"""Make Table 3: Barlow Twins against SMI under identical settings, by dataset."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from smi.comparison.comparison import Estimate
from smi.config.schema import changed_settings
from smi.paper.measured_rows import (
    SEEDS_NOTE,
    MeasuredRow,
    format_mean,
    measured_rows,
    protocol_notes,
)
from smi.paper.numbers import BARLOW_TWINS, SMI, TABLE_3, Table3Row
from smi.runs.names import settings_key
from smi.runs.run import Run
from smi.tables import NONE, Group, Table

PAPER_COLUMNS = ("Barlow Twins", "SMI", "Difference")
OUR_COLUMNS = (*PAPER_COLUMNS, "Encoder", "Epochs", "Protocol")
ACCURACY_NOTE = (
    "Top-1 of a linear classifier on the frozen encoder, in per cent. "
    "The paper's: ResNet-50, 300 epochs. - : not available."
)
Pair = tuple[MeasuredRow | None, MeasuredRow | None]  # Barlow Twins, SMI
Rows = Sequence[MeasuredRow]


def table_3(runs: Sequence[Run], *, data: str | None = None) -> Table:
    """Return Table 3 with the results of runs of the two methods beside the paper's.

    data: the evaluation dataset as results spell it; None is the dataset of pretraining.
    """
    both = [run for run in runs if run.config["method"]["name"] in (BARLOW_TWINS, SMI)]
    measured = measured_rows(both, data)
    labelled = any(row.label for row in measured)
    printed = {row.data: row for row in TABLE_3}
    rows: list[tuple[tuple[str, ...], ...]] = []
    records: list[dict[str, Any]] = []
    for name in dict.fromkeys([*printed, *(row.data for row in measured)]):
        paper = printed.get(name)
        pairs = _pairs(*_by_method(measured, name))
        rows += _lines(paper.name if paper else name, paper, pairs, labelled)
        record: dict[str, Any] = {"data": name, "paper": asdict(paper) if paper else None}
        record["here"] = [_record(pair) for pair in pairs]
        records.append(record)
    groups = (
        Group("", ("Data",)),
        Group("paper", PAPER_COLUMNS),
        Group("here", ("Run", *OUR_COLUMNS) if labelled else OUR_COLUMNS),
    )
    title = "Table 3. Barlow Twins against SMI"
    return Table(groups, tuple(rows), title, tuple(_notes(measured)), tuple(records))


# ------------------------------------------------------------------------------------ pairs


def _by_method(measured: Rows, data: str) -> tuple[Rows, Rows]:
    """Return the rows of Barlow Twins and those of SMI on one dataset."""
    on_data = [row for row in measured if row.data == data]
    return (
        [row for row in on_data if row.method == BARLOW_TWINS],
        [row for row in on_data if row.method == SMI],
    )


def _pairs(barlow_twins: Rows, smi: Rows) -> list[Pair]:
    """Pair rows of one setting and protocol; a row without a partner is paired with None.

    One row of a method is paired with each of several rows of the other.
    """
    pairs: list[Pair] = []
    for key in dict.fromkeys(_key(row) for row in (*barlow_twins, *smi)):
        left = [row for row in barlow_twins if _key(row) == key]
        right = [row for row in smi if _key(row) == key]
        if len(left) == 1 or len(right) == 1:
            left, right = left * max(1, len(right)), right * max(1, len(left))
        pairs += zip_longest(left, right)
    return pairs or [(None, None)]


def _key(row: MeasuredRow) -> tuple[str, str]:
    return row.stamp, settings_key(row.setting)


def _difference(pair: Pair) -> Estimate | None:
    """Estimate SMI − Barlow Twins over the seeds of both; one seed gives no interval."""
    barlow_twins, smi = pair
    if barlow_twins is None or smi is None:
        return None
    return Estimate.of_differences(_by_seed(smi), _by_seed(barlow_twins), smi.step)


def _by_seed(row: MeasuredRow) -> dict[int, float]:
    return dict(zip(row.seeds, row.top1, strict=True))


# ------------------------------------------------------------------------------------ cells


def _lines(
    title: str, paper: Table3Row | None, pairs: Sequence[Pair], labelled: bool
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield the lines of one dataset; the paper's numbers stand in the first."""
    printed = (NONE,) * 3
    if paper:
        gain = paper.smi - paper.barlow_twins
        printed = (f"{paper.barlow_twins:.2f}", f"{paper.smi:.2f}", f"{gain:+.2f}")
    for number, pair in enumerate(pairs):
        cells = (_label(pair), *_cells(pair)) if labelled else _cells(pair)
        yield (title if number == 0 else "",), printed if number == 0 else ("",) * 3, cells


def _label(pair: Pair) -> str:
    """Return the labels that distinguish a pair from others on the same dataset."""
    named = zip(("Barlow Twins", "SMI"), pair, strict=True)
    return "; ".join(f"{name} {row.label}" for name, row in named if row and row.label) or NONE


def _cells(pair: Pair) -> tuple[str, ...]:
    barlow_twins, smi = pair
    row = barlow_twins or smi
    if row is None:
        return (NONE,) * len(OUR_COLUMNS)
    return (
        format_mean(barlow_twins.top1) if barlow_twins else NONE,
        format_mean(smi.top1) if smi else NONE,
        _format_difference(_difference(pair)),
        row.encoder,
        str(row.epochs),
        row.protocol,
    )


def _format_difference(difference: Estimate | None) -> str:
    if difference is None:
        return NONE
    if len(difference.values) == 2:
        return " and ".join(f"{value:+.1f}" for value in difference.values)
    half = f" ± {difference.half:.1f}" if difference.high is not None else ""
    return f"{difference.mean:+.1f}{half}"


def _record(pair: Pair) -> dict[str, Any]:
    barlow_twins, smi = pair
    difference = _difference(pair)
    return {
        BARLOW_TWINS: barlow_twins.plain() if barlow_twins else None,
        SMI: smi.plain() if smi else None,
        "difference": asdict(difference) if difference else None,
    }


# ------------------------------------------------------------------------------------ notes


def _notes(measured: Rows) -> Iterator[str]:
    yield ACCURACY_NOTE
    for data in dict.fromkeys(row.data for row in measured):
        barlow_twins, smi = _by_method(measured, data)
        if not barlow_twins or not smi:
            continue
        if not {_key(row) for row in barlow_twins} & {_key(row) for row in smi}:
            different = _different_settings(barlow_twins[0].setting, smi[0].setting)
            yield f"Not identical on {data}: {'; '.join(different) or 'protocols'}."
    if any(len(row.top1) > 1 for row in measured):
        yield f"{SEEDS_NOTE} Differences are paired by seed."
    yield from protocol_notes(measured)


def _different_settings(barlow_twins: Mapping[str, Any], smi: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} is {theirs} for Barlow Twins, {ours} for SMI"
        for key, theirs, ours in changed_settings(barlow_twins, smi)
    ]
