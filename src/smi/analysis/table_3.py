"""Table 3: Barlow Twins against SMI under identical settings, by data set."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from smi.analysis.grouped import NONE, Group, Table
from smi.analysis.paper import TABLE_3
from smi.analysis.table_1 import Here, mean, measured
from smi.config import differences
from smi.run import Run

METHODS = ("BarlowTwins", "SMI")


def table_3(runs: Sequence[Run], *, data: str | None = None) -> Table:
    both = [run for run in runs if run.config["method"]["name"] in METHODS]
    ours = measured(both, data)
    sets = {row.data: row for row in TABLE_3}
    rows, plain = [], []
    notes = ["Top-1 of a linear classifier on the frozen encoder, in per cent. The paper's: ResNet-50, 300 epochs. - : not there."]
    for name in [*sets, *dict.fromkeys(here.data for here in ours if here.data not in sets)]:
        paper = sets.get(name)
        printed = (NONE,) * 3
        if paper:
            printed = (f"{paper.barlow_twins:.2f}", f"{paper.smi:.2f}", f"{paper.smi - paper.barlow_twins:+.2f}")
        found = {method: [here for here in ours if here.data == name and here.method == method] for method in METHODS}
        pairs = _pairs(found["BarlowTwins"], found["SMI"])
        for number, (one, other) in enumerate(pairs):
            title = (paper.name if paper else name) if number == 0 else ""
            rows.append(((title,), printed if number == 0 else ("",) * 3, _cells(one, other)))
        plain.append(
            {
                "data": name,
                "paper": asdict(paper) if paper else None,
                "here": [{"BarlowTwins": one.plain() if one else None, "SMI": other.plain() if other else None} for one, other in pairs],
            }
        )
    notes += _unequal(both)
    if any(len(here.top1) > 1 for here in ours):
        notes.append("±: 95 % interval of the mean over seeds, how many in brackets.")
    notes += {here.stamp: f"{here.protocol} on {here.data}: {here.sentence}." for here in ours}.values()
    return Table(
        "Table 3. Barlow Twins against SMI",
        (
            Group("", ("Data",)),
            Group("paper", ("Barlow Twins", "SMI", "Difference")),
            Group("here", ("Barlow Twins", "SMI", "Difference", "Encoder", "Epochs", "Protocol")),
        ),
        tuple(rows),
        tuple(notes),
        plain,
    )


def _pairs(ones: Sequence[Here], others: Sequence[Here]) -> list[tuple[Here | None, Here | None]]:
    """Of one encoder, number of epochs and protocol; what has no partner stands alone."""
    left = list(others)
    found: list[tuple[Here | None, Here | None]] = []
    for one in ones:
        partner = next((other for other in left if _key(other) == _key(one)), None)
        left = [other for other in left if other is not partner]
        found.append((one, partner))
    return [*found, *((None, other) for other in left)] or [(None, None)]


def _key(here: Here) -> tuple[Any, ...]:
    return here.stamp, here.encoder, here.epochs


def _cells(one: Here | None, other: Here | None) -> tuple[str, ...]:
    known = one or other
    if known is None:
        return (NONE,) * 6
    difference = NONE
    if one and other:
        difference = f"{sum(other.top1) / len(other.top1) - sum(one.top1) / len(one.top1):+.1f}"
    scores = (mean(one.top1) if one else NONE, mean(other.top1) if other else NONE)
    return (*scores, difference, known.encoder, str(known.epochs), known.protocol)


def _unequal(runs: Sequence[Run]) -> list[str]:
    """Settings are identical, or it is said which are not."""
    ignored = ("method", "methods", "seed", "log", "precision")
    notes = []
    for source in dict.fromkeys(str(run.config["data"]["source"]) for run in runs):
        here = [run for run in runs if str(run.config["data"]["source"]) == source]
        for method in METHODS[1:]:
            first = next((run for run in here if run.config["method"]["name"] == METHODS[0]), None)
            other = next((run for run in here if run.config["method"]["name"] == method), None)
            if first and other:
                a, b = ({k: v for k, v in run.config.items() if k not in ignored} for run in (first, other))
                if found := differences(a, b):
                    told = "; ".join(text.replace(" there,", " of Barlow Twins,").replace(" asked", " of SMI") for text in found)
                    notes.append(f"Not identical on {source}: {told}.")
    return notes
