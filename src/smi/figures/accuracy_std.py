"""Draw linear accuracy against feature std at the end of training.

There is one point for each run, or for the mean over seeds. λ is written beside the points.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.linear_scores import comparable, top1
from smi.figures.series import last_epoch
from smi.figures.style import FONT, Look, accuracy_range, finish, frame, legend, looks, plain
from smi.runs.names import (
    first_runs,
    method_name,
    named_seed_groups,
    redundancy_weight_of,
    seed_caption,
    shared_settings,
)
from smi.runs.run import Run

HOVER = (
    "%{customdata[0]}<br>feature std %{x:.4g}, top-1 %{y:.2f} %<br>%{customdata[1]}<extra></extra>"
)


@dataclass(frozen=True)
class Point:
    """Hold one point: its name, the feature std, the accuracy in percent, λ and the folders."""

    name: str
    std: float
    accuracy: float
    weight: float | None
    folders: str


def accuracy_std(runs: Mapping[str, Run], *, data: str | None = None) -> go.Figure:
    """Draw the figure; `data` names the dataset of the accuracies, None is that of each run."""
    if len(runs) < 2:
        raise UserError(
            "accuracy against feature std needs two runs or more, for example SMI with several "
            "values of --method.redundancy_weight"
        )
    results = comparable(runs, data=data)
    points = {
        run.folder: Point(
            f"seed {run.config['seed']}",
            last_epoch(run, "feature_std"),
            100 * top1(results[name]),
            redundancy_weight_of(run),
            str(run.folder),
        )
        for name, run in runs.items()
    }
    groups = named_seed_groups(runs)
    look = looks(first_runs(groups))
    methods: dict[str, list[str]] = {}
    for name, seeds in groups.items():
        methods.setdefault(method_name(seeds[0]), []).append(name)
    figure = go.Figure()
    for method, names in methods.items():
        style = look[names[0]]
        by_name = {name: [points[run.folder] for run in groups[name]] for name in names}
        _add_seeds(figure, method, by_name, style)
        _add_means(figure, method, by_name, style)
    frame(figure, x="feature std, mean of the last epoch", y="top-1, %")
    _widen_axes(figure)
    legend(figure)
    first = next(iter(results.values()))
    seeds_note = seed_caption(groups, "Small: each seed; large: their mean")
    return finish(
        figure,
        f"Accuracy against feature std ({shared_settings(runs.values())}). "
        f"λ is the redundancy weight. {first.protocol['name']} on {first.protocol['data']}: "
        f"{first.sentence}.{seeds_note}",
    )


def _add_seeds(
    figure: go.Figure, method: str, by_name: Mapping[str, Sequence[Point]], style: Look
) -> None:
    """Add a small point for each seed of the rows that have several."""
    points = [(name, point) for name, seeds in by_name.items() if len(seeds) > 1 for point in seeds]
    if not points:
        return
    figure.add_scatter(
        x=[point.std for _, point in points],
        y=[point.accuracy for _, point in points],
        customdata=[
            [plain(f"{name}, {point.name}"), plain(point.folders)] for name, point in points
        ],
        name=plain(f"{method}, seeds"),
        legendgroup=method,
        showlegend=False,
        mode="markers",
        marker=style.marker(5, max_shown=0) | {"opacity": 0.55},
        cliponaxis=False,
        hovertemplate=HOVER,
    )


def _add_means(
    figure: go.Figure, method: str, by_name: Mapping[str, Sequence[Point]], style: Look
) -> None:
    """Add a large point for each row of a method; several values of λ are joined by a line."""
    rows = [
        Point(
            name,
            mean(point.std for point in seeds),
            mean(point.accuracy for point in seeds),
            seeds[0].weight,
            " ".join(point.folders for point in seeds),
        )
        for name, seeds in by_name.items()
    ]
    rows.sort(key=lambda row: (row.weight or 0, row.name))
    labelled = len({row.weight for row in rows}) > 1
    figure.add_scatter(
        x=[row.std for row in rows],
        y=[row.accuracy for row in rows],
        text=[f"λ = {row.weight:g}" if labelled and row.weight is not None else "" for row in rows],
        customdata=[[plain(row.name), plain(row.folders)] for row in rows],
        name=plain(method),
        legendgroup=method,
        showlegend=True,
        mode="lines+markers+text" if labelled else "markers",
        textposition=_label_sides([row.std for row in rows], [row.accuracy for row in rows]),
        textfont={"size": FONT - 1},
        line=style.line(1.5),
        marker=style.marker(12, max_shown=0),
        cliponaxis=False,
        hovertemplate=HOVER,
    )


def _label_sides(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """Return the side of each point where its label is away from the lines to its neighbours."""
    width = (max(xs) - min(xs)) or 1
    height = (max(ys) - min(ys)) or 1
    sides = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        directions = [
            ((xs[j] - x) / width, (ys[j] - y) / height) for j in (i - 1, i + 1) if 0 <= j < len(xs)
        ]
        lengths = [math.hypot(*direction) or 1 for direction in directions]
        across, up = (
            -sum(d[k] / length for d, length in zip(directions, lengths, strict=True))
            for k in (0, 1)
        )
        side = "left" if across < -0.4 else "right" if across > 0.4 else "center"
        sides.append(f"{'bottom' if up < 0 else 'top'} {side}")
    return sides


def _widen_axes(figure: go.Figure) -> None:
    """Let the std begin at 0, and leave space for the labels beside the outermost points."""
    xs = [float(x) for trace in figure.data for x in trace.x]
    ys = [float(y) for trace in figure.data for y in trace.y]
    figure.update_xaxes(range=[0, 1.12 * max(xs) or 1])
    room = 0.15 * (max(ys) - min(ys))
    figure.update_yaxes(range=accuracy_range([min(ys) - room, max(ys) + room]))
