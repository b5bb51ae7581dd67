"""Read the accuracies of runs as rows of the paper's tables: one row for all seeds of a setting."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from smi.comparison.comparison import step_of
from smi.errors import UserError
from smi.evaluation.results import Result
from smi.figures.linear_scores import results_of, top1, top5
from smi.intervals import interval
from smi.runs.names import (
    dataset_name,
    is_published,
    method_name,
    redundancy_weight_of,
    settings_key,
    settings_without_seed,
)
from smi.runs.run import Run
from smi.tables import NONE, yes

SEEDS_NOTE = (
    "±: 95 % interval of the mean over seeds; the number of seeds is in brackets. Of two seeds, "
    "both values are shown."
)


@dataclass(frozen=True)
class MeasuredRow:
    """Hold the accuracies of one run, or of several that differ only by their seed.

    setting: all settings but the method's; methods are compared only if these are equal.
    step: difference between two neighbouring accuracies, in per cent like the accuracies.
    label: distinguishes this row from others with the same cells; empty if there are none.
    """

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
    setting: dict[str, Any] = field(default_factory=dict)
    weight: float | None = None
    folder: str = ""
    step: float = 0.0
    label: str = ""
    published: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as a table prints it."""
        return (
            self.data,
            self.encoder,
            str(self.epochs),
            yes(self.multicrop),
            format_mean(self.top1),
            format_mean(self.top5),
            self.protocol,
        )

    @property
    def protocol_note(self) -> str:
        """Return a sentence that describes the protocol."""
        return f"{self.protocol} on {self.data}: {self.sentence}."

    def plain(self) -> dict[str, Any]:
        """Return the row for JSON, without the fields that only serve comparisons."""
        return {
            name: value for name, value in asdict(self).items() if name not in ("setting", "step")
        }


def measured_rows(runs: Sequence[Run], data: str | None = None) -> list[MeasuredRow]:
    """Group runs that differ only by their seed, and read the accuracies of each group.

    data: the evaluation dataset as results spell it; None is the dataset of pretraining. If runs
    were evaluated under several protocols, the first that all runs on a dataset share is used.
    """
    results = {run.folder: _results(run, data) for run in runs}
    groups: dict[tuple[Any, ...], list[tuple[Run, Result]]] = {}
    for run in runs:
        result = _shared_result(run, runs, results)
        key: tuple[Any, ...] = (result.stamp, settings_key(settings_without_seed(run)))
        if any(other.config["seed"] == run.config["seed"] for other, _ in groups.get(key, ())):
            key = (*key, run.folder)  # a second run of one seed is not another seed
        groups.setdefault(key, []).append((run, result))
    return _with_labels([_measured_row(group) for group in groups.values()])


def protocol_notes(rows: Sequence[MeasuredRow]) -> list[str]:
    """Return one sentence for each protocol of the rows."""
    return list({row.stamp: row.protocol_note for row in rows}.values())


def format_mean(values: Sequence[float]) -> str:
    """Format the mean over seeds, with its interval and their number if there are several."""
    if not values:
        return NONE
    if len(values) == 1:
        return f"{values[0]:.1f}"
    if len(values) == 2:
        return f"{values[0]:.1f} and {values[1]:.1f}"
    mean, low, _ = interval(values)
    return f"{mean:.1f} ± {mean - low:.1f} ({len(values)})"


def _results(run: Run, data: str | None) -> list[Result]:
    results = results_of(run, data=data)
    if not results:
        on_data = f" on {data}" if data else ""
        raise UserError(
            f"{run.folder} has no linear or linear-cached results{on_data} yet: run "
            f"`smi evaluate {run.folder} --protocol linear` (or linear-cached, which takes seconds)"
        )
    return results


def _shared_result(
    run: Run, runs: Sequence[Run], results: Mapping[Path, Sequence[Result]]
) -> Result:
    """Return the run's first result under a protocol of all runs on its dataset, or its first."""
    stamps = [
        {result.stamp for result in results[other.folder]}
        for other in runs
        if dataset_name(other) == dataset_name(run)
    ]
    shared = (r for r in results[run.folder] if all(r.stamp in others for others in stamps))
    return next(shared, results[run.folder][0])


def _measured_row(group: Sequence[tuple[Run, Result]]) -> MeasuredRow:
    run, result = group[0]
    top5_values = [value for _, r in group if (value := top5(r)) is not None]
    return MeasuredRow(
        method=run.config["method"]["name"],
        name=method_name(run),
        data=str(result.protocol["data"]),
        encoder=str(run.config["encoder"]["name"]),
        epochs=int(run.config["epochs"]),
        multicrop="multicrop" in (run.facts.policy or ""),
        protocol=str(result.protocol["name"]),
        stamp=result.stamp,
        top1=tuple(100 * top1(r) for _, r in group),
        top5=tuple(100 * value for value in top5_values),
        sentence=result.sentence,
        seeds=tuple(int(run.config["seed"]) for run, _ in group),
        setting={
            name: value for name, value in settings_without_seed(run).items() if name != "method"
        },
        weight=redundancy_weight_of(run),
        folder=str(run.folder),
        step=100 * step_of(result),
        published=is_published(run),
    )


def _with_labels(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Label rows with equal cells: by λ if it differs between all of them, else by folder."""

    def kind(row: MeasuredRow) -> tuple[str, ...]:
        return (row.method, *row.cells[:4], row.stamp)

    labelled = []
    for row in rows:
        alike = [other for other in rows if kind(other) == kind(row)]
        distinct = len({other.weight for other in alike}) == len(alike)
        by_weight = row.weight is not None and distinct
        label = f"λ = {row.weight:g}" if by_weight else row.folder
        labelled.append(replace(row, label=label) if len(alike) > 1 else row)
    return labelled
