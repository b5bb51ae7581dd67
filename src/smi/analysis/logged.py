"""What runs logged over training, a line for each."""

from collections.abc import Mapping
from typing import Any

from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]

from smi.analysis.style import looks
from smi.errors import UserError
from smi.run import Run


def lines_of(run: Run) -> list[dict[str, Any]]:
    lines = run.metrics()
    if not lines:
        raise UserError(f"{run.folder} has logged nothing yet: it has no lines in metrics.jsonl")
    return lines


def series(run: Run, name: str) -> tuple[list[float], list[float]]:
    """Epochs, and what was logged under this name; lines that have none are left out."""
    found = [(line["epoch"], line[name]) for line in lines_of(run) if line.get(name) is not None]
    return [epoch for epoch, _ in found], [value for _, value in found]


def add_series(figure: go.Figure, runs: Mapping[str, Run], name: str, **where: Any) -> None:
    """One line for each run; those that never logged it are left out."""
    for label, look in looks(runs).items():
        epochs, values = series(runs[label], name)
        if values:
            figure.add_scatter(
                x=epochs,
                y=values,
                name=label,
                mode="lines+markers",
                line=look.line(),
                marker=look.marker(),
                hovertemplate="epoch %{x:.1f}: %{y:.4g}",
                **where,
            )


def last_epoch(run: Run, name: str) -> float:
    """The mean of what was logged in the last epoch."""
    epochs, values = series(run, name)
    if not values:
        raise UserError(f"{run.folder} has logged no {name}")
    kept = [value for epoch, value in zip(epochs, values, strict=True) if epoch > epochs[-1] - 1]
    return sum(kept) / len(kept)
