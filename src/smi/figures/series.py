"""Draw logged values over training: one line per run, or thin lines per seed and their mean."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.style import Look, looks, plain
from smi.runs.names import first_runs, named_seed_groups
from smi.runs.run import Run

Series = tuple[Sequence[float], Sequence[float]]  # steps or epochs, and the values logged there

MAX_LINE_POINTS = 2000  # more can be neither seen nor printed


def lines_of(run: Run) -> list[dict[str, Any]]:
    """Return the logged lines of a run without `per_step`, or raise an error if there are none."""
    lines = run.metrics(per_step=False)
    if not lines:
        raise UserError(f"{run.folder} has logged nothing yet: metrics.jsonl has no lines")
    return lines


def series(run: Run, name: str) -> tuple[list[float], list[float]]:
    """Return epochs and the values logged under this name; lines without it are skipped."""
    lines = [line for line in lines_of(run) if line.get(name) is not None]
    return [line["epoch"] for line in lines], [line[name] for line in lines]


def add_series(figure: go.Figure, runs: Mapping[str, Run], name: str, **place: Any) -> list[str]:
    """Add lines of the values logged under this name; return the names of runs without any."""
    return add_lines(
        figure,
        named_seed_groups(runs),
        lambda run: series(run, name),
        hover="epoch %{x:.1f}: %{y:.4g}",
        **place,
    )


def add_lines(
    figure: go.Figure,
    groups: Mapping[str, Sequence[Run]],
    series_of: Callable[[Run], Series],
    *,
    hover: str,
    look: Mapping[str, Look] | None = None,
    in_legend: Callable[[str], bool] = lambda name: True,
    hover_series_of: Callable[[Run], Series] | None = None,
    **place: Any,
) -> list[str]:
    """Add one line and one legend entry for each group of seeds; return groups without values.

    look: the look of each group; None gives each the look of its method.
    in_legend: returns whether a group is listed in the legend.
    hover_series_of: values at the same places that `hover` calls customdata.
    """
    look = look or looks(first_runs(groups))
    without = []
    for name, runs in groups.items():
        by_run = [(run, values) for run in runs if len((values := series_of(run))[1])]
        if not by_run:
            without.append(name)
            continue
        hovers = [hover_series_of(run) for run, _ in by_run] if hover_series_of else []
        for i, (run, (x, y)) in enumerate(by_run if len(by_run) > 1 else ()):
            figure.add_scatter(
                x=thinned(x),
                y=thinned(y),
                customdata=thinned(hovers[i][1]) if hovers else None,
                name=plain(f"{name}, seed {run.config['seed']}"),
                legendgroup=name,
                hovertemplate=hover,
                **thin_line(look[name]),
                **place,
            )
        x, y = mean_of([values for _, values in by_run])
        figure.add_scatter(
            x=thinned(x),
            y=thinned(y),
            customdata=thinned(mean_of(hovers)[1]) if hovers else None,
            name=plain(name),
            legendgroup=name,
            showlegend=in_legend(name),
            mode="lines+markers",
            line=look[name].line(),
            marker=look[name].marker(),
            hovertemplate=hover,
            **place,
        )
    return without


def thinned(values: Sequence[float]) -> Sequence[float]:
    """Return every n-th value and the last one, if there are more than a line can show."""
    interval = math.ceil(len(values) / MAX_LINE_POINTS)
    if interval <= 1:
        return values
    last = values[-1:] if (len(values) - 1) % interval else []
    return [*values[::interval], *last]


def thin_line(look: Look) -> dict[str, Any]:
    """Return plotly's settings of the line of one seed."""
    return {
        "showlegend": False,
        "mode": "lines",
        "line": {"color": look.colour, "width": 0.9},
        "opacity": 0.45,
    }


def mean_of(all_series: Sequence[Series]) -> Series:
    """Return the mean over seeds at the places that all of them have."""
    if len(all_series) == 1:
        return all_series[0]
    tables = [dict(zip(x, y, strict=True)) for x, y in all_series]
    shared = [x for x in tables[0] if all(x in table for table in tables[1:])]
    return shared, [float(np.mean([table[x] for table in tables])) for x in shared]


def last_epoch(run: Run, name: str) -> float:
    """Return the mean of the values logged in the last epoch."""
    epochs, values = series(run, name)
    if not values:
        raise UserError(f"{run.folder} has not logged {name}")
    last = [value for epoch, value in zip(epochs, values, strict=True) if epoch > epochs[-1] - 1]
    return sum(last) / len(last)
