"""Draw training and held-out accuracy over the epochs of the linear evaluation.

There is one panel for each dataset.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from smi.evaluation.results import Result
from smi.figures.linear_scores import comparable
from smi.figures.style import TOP_LEGEND, Look, accuracy_range, finish, frame, legend, looks, plain
from smi.pages.palette import INK
from smi.runs.names import first_runs, named_seed_groups_by_dataset, seed_caption
from smi.runs.run import Run

PANEL_HEIGHT = 430  # pixels
HELD_OUT_WIDTH = 2.6  # of lines
TRAINING_WIDTH = 1.2


def linear_curves(sets: Mapping[str, Mapping[str, Run]], *, data: str | None = None) -> go.Figure:
    """Draw the figure.

    sets: the runs by the dataset they were pretrained on.
    data: the dataset they were evaluated on, if it is another one.
    """
    groups = named_seed_groups_by_dataset(sets, by_data=data is not None)
    rows = {name: runs for by_name in groups.values() for name, runs in by_name.items()}
    look = looks(first_runs(rows))
    titles = [plain(name) for name in sets] if len(sets) > 1 else None
    figure = make_subplots(rows=len(sets), cols=1, vertical_spacing=0.1, subplot_titles=titles)
    in_legend: set[str] = set()
    sentence = ""
    for panel, (dataset, runs) in enumerate(sets.items(), 1):
        by_name = comparable(runs, ("linear",), data)
        results = {runs[name].folder: result for name, result in by_name.items()}
        for name, seeds in groups[dataset].items():
            seed_results = [results[run.folder] for run in seeds]
            first = seed_results[0]
            sentence = sentence or f"{first.protocol['data']}: {first.sentence}"
            _add_curves(figure, name, seed_results, look[name], panel, name not in in_legend)
            in_legend.add(name)
        frame(figure, x="epoch of the linear classifier", y="top-1, %", row=panel, col=1)
        values = [y for t in figure.select_traces(row=panel, col=1) for y in t.y]
        figure.update_yaxes(range=accuracy_range(values), row=panel, col=1)
    _add_line_keys(figure)
    if len(sets) == 1:
        legend(figure)
    else:
        figure.update_layout(legend=TOP_LEGEND)
    return finish(
        figure,
        "Accuracy while a linear classifier is trained on the frozen encoder: thick on held-out "
        "images, thin on cropped and flipped training batches."
        f"{seed_caption(rows, 'Lines are means')} {sentence}.",
        height=PANEL_HEIGHT * len(sets) + (130 if len(sets) == 1 else 100),
        top=30 if len(sets) == 1 else 70,
    )


def _add_curves(
    figure: go.Figure,
    name: str,
    results: Sequence[Result],
    look: Look,
    panel: int,
    in_legend: bool,
) -> None:
    """Add the training and the held-out curve of one row, as means over its seeds."""
    curves = [result.details["curves"] for result in results]
    for part, width, words in (
        ("train", TRAINING_WIDTH, "training"),
        ("test", HELD_OUT_WIDTH, "held out"),
    ):
        means = [_mean(epochs, part) for epochs in zip(*curves, strict=True)]
        figure.add_scatter(
            x=[epoch["epoch"] for epoch in curves[0]],
            y=[100 * top1 for top1, _ in means],
            customdata=[loss for _, loss in means],
            name=plain(name),
            legendgroup=name,
            showlegend=part == "test" and in_legend,
            mode="lines+markers" if part == "test" else "lines",
            line=look.line(width),
            marker=look.marker(),
            hovertemplate=f"{plain(name)}, {words}, epoch %{{x}}: %{{y:.2f}} %, "
            "loss %{customdata:.3f}<extra></extra>",
            row=panel,
            col=1,
        )


def _add_line_keys(figure: go.Figure) -> None:
    """Explain thick and thin lines in the legend."""
    for text, mode, width in (
        ("held out (thick)", "lines+markers", HELD_OUT_WIDTH),
        ("training (thin)", "lines", TRAINING_WIDTH),
    ):
        figure.add_scatter(
            x=[None],
            y=[None],
            name=text,
            mode=mode,
            line={"color": INK, "width": width},
            marker={"color": INK, "size": 7},
        )


def _mean(epochs: Sequence[Mapping[str, Any]], part: str) -> tuple[float, float | None]:
    """Return top-1 and loss of one epoch, averaged over seeds; a NaN loss gives None."""
    losses = [epoch[f"{part}_loss"] for epoch in epochs]
    return mean(epoch[f"{part}_top1"] for epoch in epochs), None if None in losses else mean(losses)
