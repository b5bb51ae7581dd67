"""Accuracy of a linear classifier against feature std at the end of training: a point for each run, λ beside it."""

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]

from smi.analysis.logged import last_epoch
from smi.analysis.scores import comparable, top1
from smi.analysis.style import FONT, finish, frame, legend, looks, method_of, setting, weight_of
from smi.errors import UserError
from smi.run import Run


def accuracy_std(runs: Mapping[str, Run], *, data: str | None = None) -> go.Figure:
    if len(runs) < 2:
        raise UserError("accuracy against feature std takes two runs or more, for instance of SMI with several --method.redundancy_weight")
    results = comparable(runs, data=data)
    methods: dict[str, list[str]] = {}
    for name, run in runs.items():
        methods.setdefault(method_of(run), []).append(name)
    figure, look = go.Figure(), looks(runs)
    for method, names in methods.items():
        names = sorted(names, key=lambda name: (weight_of(runs[name]) or 0, name))
        style = look[min(names, key=list(runs).index)]
        weights = [weight_of(runs[name]) for name in names]
        labelled = len(names) > 1 and len(set(weights)) > 1
        figure.add_scatter(
            x=[last_epoch(runs[name], "feature_std") for name in names],
            y=[100 * top1(results[name]) for name in names],
            text=[f"λ = {weight:g}" if labelled and weight is not None else "" for weight in weights],
            customdata=[[name, str(runs[name].folder)] for name in names],
            name=method,
            mode="lines+markers+text" if labelled else "markers",
            textposition=_beside([top1(results[name]) for name in names]),
            textfont={"size": FONT - 1},
            line=style.line(1.5),
            marker=style.marker(12, most=0),
            cliponaxis=False,
            hovertemplate="%{customdata[0]}<br>feature std %{x:.4g}, top-1 %{y:.2f} %<br>%{customdata[1]}<extra></extra>",
        )
    frame(figure, x="feature std, mean of the last epoch", y="top-1, %")
    _room(figure)
    legend(figure)
    first = next(iter(results.values()))
    return finish(
        figure,
        f"Accuracy against the spread of features ({setting(runs.values())}). λ is the weight of the redundancy. "
        f"{first.protocol['name']} on {first.protocol['data']}: {first.sentence}.",
    )


def _beside(values: Sequence[float]) -> list[str]:
    """Where labels go, off the line that joins the points: to the left where it rises, to the right where it falls."""
    found = []
    for i, value in enumerate(values):
        rises, falls = i + 1 < len(values) and values[i + 1] > value, i > 0 and values[i - 1] > value
        found.append("bottom center" if rises and falls else "top left" if rises else "top right" if falls else "top center")
    return found


def _room(figure: go.Figure) -> None:
    """For labels beside the outermost points."""
    xs = [float(x) for trace in figure.data for x in trace.x]
    ys = [float(y) for trace in figure.data for y in trace.y]
    wide, high = (max(xs) - min(xs)) or max(xs) / 10 or 1, (max(ys) - min(ys)) or 1
    figure.update_xaxes(range=[min(xs) - 0.12 * wide, max(xs) + 0.12 * wide])
    figure.update_yaxes(range=[min(ys) - 0.12 * high, max(ys) + 0.18 * high])
