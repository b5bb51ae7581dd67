"""Train and held-out accuracy over the epochs of the linear evaluation, a panel for each data set."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from smi.figures.scores import comparable
from smi.figures.style import INK, finish, frame, legend, looks, plain
from smi.runs.names import about_seeds, by_seed_on, firsts
from smi.runs.run import Run

ROW = 430  # pixels


def linear_curves(sets: Mapping[str, Mapping[str, Run]], *, data: str | None = None) -> go.Figure:
    """sets: of each data set that was pretrained on its runs. data: evaluated on this one instead."""
    groups = by_seed_on(sets, by_data=data is not None)
    every = {name: some for of_one in groups.values() for name, some in of_one.items()}
    look = looks(firsts(every))
    titles = [plain(name) for name in sets] if len(sets) > 1 else None
    figure = make_subplots(rows=len(sets), cols=1, vertical_spacing=0.1, subplot_titles=titles)
    seen: set[str] = set()
    sentence = ""
    for row, (on, runs) in enumerate(sets.items(), 1):
        results = {
            runs[name].folder: result
            for name, result in comparable(runs, ("linear",), data).items()
        }
        for name, some in groups[on].items():
            every_curve = [results[run.folder].details["curves"] for run in some]
            first = results[some[0].folder]
            sentence = sentence or f"{first.protocol['data']}: {first.sentence}"
            for part, width in (("train", 1.2), ("test", 2.6)):
                means = [_mean(epochs, part) for epochs in zip(*every_curve, strict=True)]
                figure.add_scatter(
                    x=[epoch["epoch"] for epoch in every_curve[0]],
                    y=[100 * top1 for top1, _ in means],
                    customdata=[loss for _, loss in means],
                    name=plain(name),
                    legendgroup=name,
                    showlegend=part == "test" and name not in seen,
                    mode="lines+markers" if part == "test" else "lines",
                    line=look[name].line(width),
                    marker=look[name].marker(),
                    hovertemplate=f"{plain(name)}, {'held out' if part == 'test' else 'training'}, epoch %{{x}}: %{{y:.2f}} %, "
                    "loss %{customdata:.3f}<extra></extra>",
                    row=row,
                    col=1,
                )
            seen.add(name)
        frame(figure, x="epoch of the linear classifier", y="top-1, %", row=row, col=1)
    for text, mode, width in (
        ("held out (thick)", "lines+markers", 2.6),
        ("training (thin)", "lines", 1.2),
    ):
        figure.add_scatter(
            x=[None],
            y=[None],
            name=text,
            mode=mode,
            line={"color": INK, "width": width},
            marker={"color": INK, "size": 7},
        )
    if len(sets) == 1:
        legend(figure)
    else:
        figure.update_layout(
            legend={"orientation": "h", "x": 0, "y": 1.0, "yref": "container", "yanchor": "top"}
        )
    return finish(
        figure,
        "Accuracy while a linear classifier is trained on the frozen encoder: thick on held-out images, thin on training batches as they "
        f"came, cropped and flipped.{about_seeds(every, 'Lines are means')} {sentence}.",
        height=ROW * len(sets) + (130 if len(sets) == 1 else 100),
        top=30 if len(sets) == 1 else 70,
    )


def _mean(epochs: Sequence[Mapping[str, Any]], part: str) -> tuple[float, float | None]:
    """Top-1 and loss of one epoch, over seeds; no loss where it was no number."""
    losses = [epoch[f"{part}_loss"] for epoch in epochs]
    return mean(epoch[f"{part}_top1"] for epoch in epochs), None if None in losses else mean(losses)
