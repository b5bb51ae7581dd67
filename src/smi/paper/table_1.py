"""Table 1: linear classifiers on frozen features, by method. The paper's numbers are of ImageNet; ours of whatever runs are given."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from smi.comparison.comparison import step_of
from smi.errors import UserError
from smi.evaluation.results import Result
from smi.figures.scores import results_of, top1, top5
from smi.intervals import interval
from smi.methods import METHOD_NAMES, find_method
from smi.paper.numbers import TABLE_1, Accuracy
from smi.runs.names import as_key, data_of, identity, method_of, weight_of
from smi.runs.run import Run
from smi.tables import NONE, Group, Table, percent, yes


@dataclass(frozen=True)
class Here:
    """What was measured: one run, or several that differ by their seed alone."""

    method: str
    name: str
    data: str
    encoder: str
    epochs: int
    multicrop: bool
    protocol: str
    stamp: str
    top1: tuple[float, ...]
    top5: tuple[float, ...]
    sentence: str
    seeds: tuple[int, ...] = ()
    setting: dict[str, Any] = field(
        default_factory=dict
    )  # what another method must share to be compared with it
    weight: float | None = None
    folder: str = ""
    step: float = 0.0  # between two neighbouring accuracies, in per cent as they are
    label: str = ""  # what tells it from others with the same cells

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.data,
            self.encoder,
            str(self.epochs),
            yes(self.multicrop),
            mean(self.top1),
            mean(self.top5),
            self.protocol,
        )

    def plain(self) -> dict[str, Any]:
        return {
            name: value for name, value in asdict(self).items() if name not in ("setting", "step")
        }


def table_1(runs: Sequence[Run], *, data: str | None = None) -> Table:
    ours = measured(runs, data)
    left = list(ours)
    labelled = any(here.label for here in ours)
    rows: list[tuple[tuple[str, ...], ...]] = []
    plain: list[dict[str, Any]] = []
    for number, row in enumerate(TABLE_1):
        found = [
            here
            for here in left
            if here.method == row.method and number == _nearest(row.method, here.epochs)
        ]
        left = [here for here in left if here not in found]
        rows += _lines(row, found, labelled)
        plain.append(
            {"method": row.name, "paper": asdict(row), "here": [here.plain() for here in found]}
        )
    for here in left:
        rows.append(((here.name, yes(_shared(here.method))), (NONE,) * 4, _cells(here, labelled)))
        plain.append({"method": here.name, "paper": None, "here": [here.plain()]})
    protocols = {here.stamp: f"{here.protocol} on {here.data}: {here.sentence}." for here in ours}
    notes = [
        "SN: one network for both views. MC: small crops beside the large views. Accuracies in per cent; - : not there."
    ]
    if ours:
        notes.append(
            "Ours are of other images, encoders and epochs than the paper's: compare ours with ours, of one data set, encoder and protocol."
        )
    if any(len(here.top1) > 1 for here in ours):
        notes.append("±: 95 % interval of the mean over seeds, how many in brackets.")
    return Table(
        (
            Group("", ("Method", "SN")),
            Group("paper, ImageNet, ResNet-50", ("Epochs", "MC", "Top-1", "Top-5")),
            Group(
                "here",
                (
                    *["Run"] * labelled,
                    "Data",
                    "Encoder",
                    "Epochs",
                    "MC",
                    "Top-1",
                    "Top-5",
                    "Protocol",
                ),
            ),
        ),
        tuple(rows),
        "Table 1. Linear classifiers on frozen features",
        (*notes, *protocols.values()),
        tuple(plain),
    )


def measured(runs: Sequence[Run], data: str | None = None) -> list[Here]:
    """Runs that differ by their seed alone are one row. Of several protocols, the first that all runs on a data set share."""
    groups: dict[tuple[Any, ...], list[tuple[Run, Result]]] = {}
    every = {run.folder: results_of(run, data=data) for run in runs}
    for run in runs:
        results = every[run.folder]
        if not results:
            raise UserError(
                f"{run.folder} has no linear or linear-cached results{f' on {data}' if data else ''} yet: run "
                f"`smi evaluate {run.folder} --protocol linear` (or linear-cached, which takes seconds)"
            )
        others = [
            {r.stamp for r in every[other.folder]}
            for other in runs
            if data_of(other) == data_of(run)
        ]
        shared = next(
            (r for r in results if all(r.stamp in stamps for stamps in others)), results[0]
        )
        key: tuple[Any, ...] = (shared.stamp, as_key(identity(run)))
        if any(other.config["seed"] == run.config["seed"] for other, _ in groups.get(key, ())):
            key = (*key, run.folder)  # the same again is no other seed
        groups.setdefault(key, []).append((run, shared))
    found = []
    for some in groups.values():
        run, result = some[0]
        fives = [five for _, r in some if (five := top5(r)) is not None]
        found.append(
            Here(
                method=run.config["method"]["name"],
                name=method_of(run),
                data=str(result.protocol["data"]),
                encoder=str(run.config["encoder"]["name"]),
                epochs=int(run.config["epochs"]),
                multicrop="multicrop" in str(run.about.get("policy", "")),
                protocol=str(result.protocol["name"]),
                stamp=result.stamp,
                top1=tuple(100 * top1(r) for _, r in some),
                top5=tuple(100 * five for five in fives),
                sentence=result.sentence,
                seeds=tuple(int(run.config["seed"]) for run, _ in some),
                setting={name: value for name, value in identity(run).items() if name != "method"},
                weight=weight_of(run),
                folder=str(run.folder),
                step=100 * step_of(result),
            )
        )
    return _told_apart(found)


def _told_apart(rows: Sequence[Here]) -> list[Here]:
    """By λ where that is what differs, else by folders."""
    found = []
    for here in rows:
        same = [
            other
            for other in rows
            if (other.method, *other.cells[:4], other.stamp)
            == (here.method, *here.cells[:4], here.stamp)
        ]
        weights = [other.weight for other in same]
        label = (
            f"λ = {here.weight:g}"
            if here.weight is not None and len(set(weights)) == len(same)
            else here.folder
        )
        found.append(replace(here, label=label) if len(same) > 1 else here)
    return found


def mean(values: Sequence[float]) -> str:
    if not values:
        return NONE
    if len(values) == 1:
        return f"{values[0]:.1f}"
    middle, low, _ = interval(values)
    return f"{middle:.1f} ± {middle - low:.1f} ({len(values)})"


def _cells(here: Here, labelled: bool) -> tuple[str, ...]:
    return (*[here.label or NONE] * labelled, *here.cells)


def _lines(
    row: Accuracy, found: Sequence[Here], labelled: bool
) -> list[tuple[tuple[str, ...], ...]]:
    """The paper's row with the first of ours, then the others of that method."""
    paper = (str(row.epochs), yes(row.multicrop), percent(row.top1), percent(row.top5))
    blank = (NONE,) * (7 + labelled)
    first = (
        (row.name, yes(row.shared_network)),
        paper,
        _cells(found[0], labelled) if found else blank,
    )
    return [first, *((("", ""), ("",) * 4, _cells(here, labelled)) for here in found[1:])]


def _nearest(method: str, epochs: int) -> int:
    """Of several rows of a method, the one trained for about as long as ours; the last of equals."""
    rows = [(number, row.epochs) for number, row in enumerate(TABLE_1) if row.method == method]
    return min(reversed(rows), key=lambda row: abs(row[1] - epochs))[0]


def _shared(method: str) -> bool | None:
    return find_method(method).shared_network if method in METHOD_NAMES else None
