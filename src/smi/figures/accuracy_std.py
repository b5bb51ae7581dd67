"""Accuracy of a linear classifier against feature std at the end of training: a point for each run, or for its seeds; λ beside it."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.scores import comparable, top1
from smi.figures.series import last_epoch
from smi.figures.style import FONT, finish, frame, legend, looks, plain
from smi.runs.names import about_seeds, by_seed, firsts, method_of, setting, weight_of
from smi.runs.run import Run

HOVER = (
    "%{customdata[0]}<br>feature std %{x:.4g}, top-1 %{y:.2f} %<br>%{customdata[1]}<extra></extra>"
)


def accuracy_std(runs: Mapping[str, Run], *, data: str | None = None) -> go.Figure:
    if len(runs) < 2:
        raise UserError(
            "accuracy against feature std takes two runs or more, for instance of SMI with several --method.redundancy_weight"
        )
    results = comparable(runs, data=data)
    top = {run.folder: 100 * top1(results[name]) for name, run in runs.items()}
    groups = by_seed(runs)
    methods: dict[str, list[str]] = {}
    for name, some in groups.items():
        methods.setdefault(method_of(some[0]), []).append(name)
    figure, look = go.Figure(), looks(firsts(groups))
    for method, names in methods.items():
        names = sorted(names, key=lambda name: (weight_of(groups[name][0]) or 0, name))
        style = look[min(names, key=list(groups).index)]
        weights = [weight_of(groups[name][0]) for name in names]
        labelled = len(names) > 1 and len(set(weights)) > 1
        each = [(name, run) for name in names if len(groups[name]) > 1 for run in groups[name]]
        if each:
            figure.add_scatter(
                x=[last_epoch(run, "feature_std") for _, run in each],
                y=[top[run.folder] for _, run in each],
                customdata=[
                    [plain(f"{name}, seed {run.config['seed']}"), plain(str(run.folder))]
                    for name, run in each
                ],
                name=plain(f"{method}, seeds"),
                legendgroup=method,
                showlegend=False,
                mode="markers",
                marker=style.marker(5, most=0) | {"opacity": 0.55},
                cliponaxis=False,
                hovertemplate=HOVER,
            )
        spreads = [mean(last_epoch(run, "feature_std") for run in groups[name]) for name in names]
        accuracies = [mean(top[run.folder] for run in groups[name]) for name in names]
        figure.add_scatter(
            x=spreads,
            y=accuracies,
            text=[
                f"λ = {weight:g}" if labelled and weight is not None else "" for weight in weights
            ],
            customdata=[
                [plain(name), plain(" ".join(str(run.folder) for run in groups[name]))]
                for name in names
            ],
            name=plain(method),
            legendgroup=method,
            showlegend=True,
            mode="lines+markers+text" if labelled else "markers",
            textposition=_beside(spreads, accuracies),
            textfont={"size": FONT - 1},
            line=style.line(1.5),
            marker=style.marker(12, most=0),
            cliponaxis=False,
            hovertemplate=HOVER,
        )
    frame(figure, x="feature std, mean of the last epoch", y="top-1, %")
    _room(figure)
    legend(figure)
    first = next(iter(results.values()))
    seeds = about_seeds(groups, "Small: each seed; large: their mean")
    return finish(
        figure,
        f"Accuracy against the spread of features ({setting(runs.values())}). λ is the weight of the redundancy. "
        f"{first.protocol['name']} on {first.protocol['data']}: {first.sentence}.{seeds}",
    )


def _beside(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """Where labels go, off the line that joins the points: away from both neighbours."""
    wide, high = (max(xs) - min(xs)) or 1, (max(ys) - min(ys)) or 1
    found = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        pulls = [
            ((xs[j] - x) / wide, (ys[j] - y) / high) for j in (i - 1, i + 1) if 0 <= j < len(xs)
        ]
        lengths = [math.hypot(*pull) or 1 for pull in pulls]
        across, up = (
            -sum(pull[k] / length for pull, length in zip(pulls, lengths, strict=True))
            for k in (0, 1)
        )
        side = "left" if across < -0.4 else "right" if across > 0.4 else "center"
        found.append(f"{'bottom' if up < 0 else 'top'} {side}")
    return found


def _room(figure: go.Figure) -> None:
    """For labels beside the outermost points."""
    xs = [float(x) for trace in figure.data for x in trace.x]
    ys = [float(y) for trace in figure.data for y in trace.y]
    wide, high = (max(xs) - min(xs)) or max(xs) / 10 or 1, (max(ys) - min(ys)) or 1
    figure.update_xaxes(range=[min(xs) - 0.12 * wide, max(xs) + 0.12 * wide])
    figure.update_yaxes(range=[min(ys) - 0.12 * high, max(ys) + 0.18 * high])
