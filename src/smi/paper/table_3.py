"""Table 3: Barlow Twins against SMI under identical settings, by data set."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from smi.comparison.comparison import Estimate
from smi.config.schema import changed_settings
from smi.paper.numbers import TABLE_3
from smi.paper.table_1 import Here, mean, measured
from smi.runs.names import as_key
from smi.runs.run import Run
from smi.tables import NONE, Group, Table

METHODS = ("BarlowTwins", "SMI")


def table_3(runs: Sequence[Run], *, data: str | None = None) -> Table:
    both = [run for run in runs if run.config["method"]["name"] in METHODS]
    ours = measured(both, data)
    labelled = any(here.label for here in ours)
    sets = {row.data: row for row in TABLE_3}
    rows, plain = [], []
    notes = [
        "Top-1 of a linear classifier on the frozen encoder, in per cent. The paper's: ResNet-50, 300 epochs. - : not there."
    ]
    for name in [*sets, *dict.fromkeys(here.data for here in ours if here.data not in sets)]:
        paper = sets.get(name)
        printed = (NONE,) * 3
        if paper:
            printed = (
                f"{paper.barlow_twins:.2f}",
                f"{paper.smi:.2f}",
                f"{paper.smi - paper.barlow_twins:+.2f}",
            )
        found = {
            method: [here for here in ours if here.data == name and here.method == method]
            for method in METHODS
        }
        pairs = _pairs(found["BarlowTwins"], found["SMI"])
        for number, (one, other) in enumerate(pairs):
            title = (paper.name if paper else name) if number == 0 else ""
            labels = [_label(one, other)] if labelled else []
            rows.append(
                ((title,), printed if number == 0 else ("",) * 3, (*labels, *_cells(one, other)))
            )
        plain.append(
            {
                "data": name,
                "paper": asdict(paper) if paper else None,
                "here": [_plain(one, other) for one, other in pairs],
            }
        )
    notes += _unequal(ours)
    if any(len(here.top1) > 1 for here in ours):
        notes.append(
            "±: 95 % interval of the mean over seeds, how many in brackets; differences are paired by seed."
        )
    notes += {
        here.stamp: f"{here.protocol} on {here.data}: {here.sentence}." for here in ours
    }.values()
    return Table(
        (
            Group("", ("Data",)),
            Group("paper", ("Barlow Twins", "SMI", "Difference")),
            Group(
                "here",
                (
                    *["Run"] * labelled,
                    "Barlow Twins",
                    "SMI",
                    "Difference",
                    "Encoder",
                    "Epochs",
                    "Protocol",
                ),
            ),
        ),
        tuple(rows),
        "Table 3. Barlow Twins against SMI",
        tuple(notes),
        tuple(plain),
    )


def _pairs(ones: Sequence[Here], others: Sequence[Here]) -> list[tuple[Here | None, Here | None]]:
    """Of one setting and protocol; one run against each of several; what has no partner stands alone."""
    found: list[tuple[Here | None, Here | None]] = []
    for key in dict.fromkeys(_key(here) for here in (*ones, *others)):
        left = [here for here in ones if _key(here) == key]
        right = [here for here in others if _key(here) == key]
        if len(left) == 1 or len(right) == 1:
            left, right = left * max(1, len(right)), right * max(1, len(left))
        found += zip_longest(left, right)
    return found or [(None, None)]


def _key(here: Here) -> tuple[Any, ...]:
    return here.stamp, as_key(here.setting)


def _label(one: Here | None, other: Here | None) -> str:
    """What tells the two from others of their methods."""
    told = [
        (here.label, name)
        for here, name in ((one, "Barlow Twins"), (other, "SMI"))
        if here and here.label
    ]
    return "; ".join(f"{name} {label}" for label, name in told) or NONE


def _difference(one: Here | None, other: Here | None) -> Estimate | None:
    """SMI's less Barlow Twins', over the seeds that both have; without an interval where these are fewer than two."""
    if one is None or other is None:
        return None
    first, second = (dict(zip(here.seeds, here.top1, strict=True)) for here in (one, other))
    return Estimate.of_differences(second, first, other.step)


def _plain(one: Here | None, other: Here | None) -> dict[str, Any]:
    difference = _difference(one, other)
    return {
        "BarlowTwins": one.plain() if one else None,
        "SMI": other.plain() if other else None,
        "difference": asdict(difference) if difference else None,
    }


def _cells(one: Here | None, other: Here | None) -> tuple[str, ...]:
    known = one or other
    if known is None:
        return (NONE,) * 6
    found = _difference(one, other)
    difference = (
        NONE
        if found is None
        else f"{found.mean:+.1f}" + (f" ± {found.half:.1f}" if found.high is not None else "")
    )
    scores = (mean(one.top1) if one else NONE, mean(other.top1) if other else NONE)
    return (*scores, difference, known.encoder, str(known.epochs), known.protocol)


def _unequal(ours: Sequence[Here]) -> list[str]:
    """Settings are identical, or it is said which are not."""
    notes = []
    for data in dict.fromkeys(here.data for here in ours):
        ones, others = (
            [here for here in ours if here.data == data and here.method == method]
            for method in METHODS
        )
        if ones and others and not {_key(here) for here in ones} & {_key(here) for here in others}:
            told = "; ".join(
                f"{key}: {one} of Barlow Twins, {other} of SMI"
                for key, one, other in changed_settings(ones[0].setting, others[0].setting)
            )
            notes.append(f"Not identical on {data}: {told or 'protocols'}.")
    return notes
