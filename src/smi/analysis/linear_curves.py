"""Train and held-out accuracy over the epochs of the linear evaluation, a panel for each data set."""

from collections.abc import Mapping

from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]
from plotly.subplots import make_subplots  # type: ignore[import-untyped,unused-ignore]

from smi.analysis.scores import comparable
from smi.analysis.style import INK, finish, frame, legend, looks
from smi.run import Run

ROW = 430  # pixels


def linear_curves(sets: Mapping[str, Mapping[str, Run]], *, data: str | None = None) -> go.Figure:
    """sets: of each data set that was pretrained on its runs. data: evaluated on this one instead."""
    every = {name: run for runs in sets.values() for name, run in runs.items()}
    look = looks(every)
    figure = make_subplots(rows=len(sets), cols=1, vertical_spacing=0.1, subplot_titles=list(sets) if len(sets) > 1 else None)
    seen: set[str] = set()
    sentence = ""
    for row, (_, runs) in enumerate(sets.items(), 1):
        for name, result in comparable(runs, ("linear",), data).items():
            curves = result.details["curves"]
            sentence = sentence or f"{result.protocol['data']}: {result.sentence}"
            for part, width in (("train", 1.2), ("test", 2.6)):
                figure.add_scatter(
                    x=[epoch["epoch"] for epoch in curves],
                    y=[100 * epoch[f"{part}_top1"] for epoch in curves],
                    customdata=[epoch[f"{part}_loss"] for epoch in curves],
                    name=name,
                    legendgroup=name,
                    showlegend=part == "test" and name not in seen,
                    mode="lines+markers" if part == "test" else "lines",
                    line=look[name].line(width),
                    marker=look[name].marker(),
                    hovertemplate=f"{name}, {'held out' if part == 'test' else 'training'}, epoch %{{x}}: %{{y:.2f}} %, "
                    "loss %{customdata:.3f}<extra></extra>",
                    row=row,
                    col=1,
                )
            seen.add(name)
        frame(figure, x="epoch of the linear classifier", y="top-1, %", row=row, col=1)
    for text, mode, width in (("held out (thick)", "lines+markers", 2.6), ("training (thin)", "lines", 1.2)):
        figure.add_scatter(x=[None], y=[None], name=text, mode=mode, line={"color": INK, "width": width}, marker={"color": INK, "size": 7})
    if len(sets) == 1:
        legend(figure)
    else:
        figure.update_layout(legend={"orientation": "h", "x": 0, "y": 1.0, "yref": "container", "yanchor": "top"})
    return finish(
        figure,
        "Accuracy while a linear classifier is trained on the frozen encoder: thick on held-out images, thin on training batches as they "
        f"came, cropped and flipped. {sentence}.",
        height=ROW * len(sets) + (130 if len(sets) == 1 else 100),
        top=30 if len(sets) == 1 else 70,
    )
