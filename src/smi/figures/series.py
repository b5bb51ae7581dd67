"""What runs logged over training: a line for each run; of several seeds a thin one each, and their mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.style import Look, looks, plain
from smi.runs.names import by_seed, firsts
from smi.runs.run import Run

Series = tuple[Sequence[float], Sequence[float]]  # where, and what was logged there


def lines_of(run: Run) -> list[dict[str, Any]]:
    lines = run.metrics()
    if not lines:
        raise UserError(f"{run.folder} has logged nothing yet: it has no lines in metrics.jsonl")
    return lines


def series(run: Run, name: str) -> tuple[list[float], list[float]]:
    """Epochs, and what was logged under this name; lines that have none are left out."""
    found = [(line["epoch"], line[name]) for line in lines_of(run) if line.get(name) is not None]
    return [epoch for epoch, _ in found], [value for _, value in found]


def add_series(figure: go.Figure, runs: Mapping[str, Run], name: str, **where: Any) -> list[str]:
    """What was logged under this name, against epochs; the names of those that never logged it, which are left out."""
    return add_lines(
        figure,
        by_seed(runs),
        lambda run: series(run, name),
        hover="epoch %{x:.1f}: %{y:.4g}",
        **where,
    )


def add_lines(
    figure: go.Figure,
    groups: Mapping[str, Sequence[Run]],
    of: Callable[[Run], Series],
    *,
    hover: str,
    look: Mapping[str, Look] | None = None,
    listed: Callable[[str], bool] = lambda name: True,
    said: Callable[[Run], Series] | None = None,
    **where: Any,
) -> list[str]:
    """One legend entry for each name. listed: whether it is in the legend. said: what `hover` calls customdata, at the same places."""
    look, without = look or looks(firsts(groups)), []
    for name, runs in groups.items():
        every = {int(run.config["seed"]): found for run in runs if len((found := of(run))[1])}
        if not every:
            without.append(name)
            continue
        told = (
            {int(run.config["seed"]): said(run) for run in runs if int(run.config["seed"]) in every}
            if said
            else {}
        )
        if len(every) > 1:
            for seed, (x, y) in every.items():
                figure.add_scatter(
                    x=x,
                    y=y,
                    customdata=told[seed][1] if told else None,
                    name=plain(f"{name}, seed {seed}"),
                    legendgroup=name,
                    showlegend=False,
                    mode="lines",
                    line={"color": look[name].colour, "width": 0.9},
                    opacity=0.45,
                    hovertemplate=hover,
                    **where,
                )
        x, y = mean_of(list(every.values()))
        figure.add_scatter(
            x=x,
            y=y,
            customdata=mean_of(list(told.values()))[1] if told else None,
            name=plain(name),
            legendgroup=name,
            showlegend=listed(name),
            mode="lines+markers",
            line=look[name].line(),
            marker=look[name].marker(),
            hovertemplate=hover,
            **where,
        )
    return without


def mean_of(every: Sequence[Series]) -> Series:
    """Where all have something."""
    if len(every) == 1:
        return every[0]
    tables = [dict(zip(x, y, strict=True)) for x, y in every]
    shared = [x for x in tables[0] if all(x in table for table in tables[1:])]
    return shared, [float(np.mean([table[x] for table in tables])) for x in shared]


def last_epoch(run: Run, name: str) -> float:
    """The mean of what was logged in the last epoch."""
    epochs, values = series(run, name)
    if not values:
        raise UserError(f"{run.folder} has logged no {name}")
    kept = [value for epoch, value in zip(epochs, values, strict=True) if epoch > epochs[-1] - 1]
    return sum(kept) / len(kept)
