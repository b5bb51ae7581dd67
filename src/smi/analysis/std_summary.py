"""One row for each data set: feature std over training, and beside it the accuracy of a linear classifier."""

from collections.abc import Mapping

from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]
from plotly.subplots import make_subplots  # type: ignore[import-untyped,unused-ignore]

from smi.analysis.logged import series
from smi.analysis.scores import comparable, top1
from smi.analysis.style import FONT, SMALL, finish, frame, looks
from smi.run import Run

PATTERNS = ("", "/", "x", ".", "\\", "-", "+", "|")
ROW = 300  # pixels


def std_summary(sets: Mapping[str, Mapping[str, Run]]) -> go.Figure:
    """sets: of each data set its runs, called the same on all of them."""
    every = {name: run for runs in sets.values() for name, run in runs.items()}
    look = looks(every)
    order = list(every)
    figure = make_subplots(
        rows=len(sets),
        cols=2,
        column_widths=[0.62, 0.38],
        horizontal_spacing=0.11,
        vertical_spacing=min(0.1, 110 / (ROW * len(sets))),
        subplot_titles=[text for data in sets for text in (f"<b>{data}</b>", "")],
    )
    sentences: dict[str, list[str]] = {}
    seen: set[str] = set()
    for row, (data, runs) in enumerate(sets.items(), 1):
        results = comparable(runs)
        sentences.setdefault(next(iter(results.values())).protocol["name"], []).append(data)
        for name, run in runs.items():
            epochs, values = series(run, "feature_std")
            figure.add_scatter(
                x=epochs,
                y=values,
                name=name,
                legendgroup=name,
                showlegend=name not in seen,
                mode="lines+markers",
                line=look[name].line(),
                marker=look[name].marker(),
                hovertemplate=f"{data}, epoch %{{x:.1f}}: %{{y:.4g}}",
                row=row,
                col=1,
            )
            seen.add(name)
        accuracies = [100 * top1(results[name]) for name in runs]
        figure.add_bar(
            x=list(runs),
            y=accuracies,
            text=[f"{accuracy:.1f}" for accuracy in accuracies],
            textposition="outside",
            textfont={"size": FONT},
            cliponaxis=False,
            showlegend=False,
            width=0.6,
            marker={
                "color": [look[name].colour for name in runs],
                "line": {"color": [look[name].colour for name in runs], "width": 1.5},
                "pattern": {
                    "shape": [PATTERNS[order.index(name) % len(PATTERNS)] for name in runs],
                    "fillmode": "replace",
                    "bgcolor": "white",
                    "size": 7,
                },
            },
            hovertemplate=f"{data}, %{{x}}: %{{y:.2f}} %<extra></extra>",
            row=row,
            col=2,
        )
        figure.update_xaxes(range=[0, 1.02 * max(series(run, "epoch")[1][-1] for run in runs.values())], row=row, col=1)
        last = row == len(sets)
        frame(figure, x="epoch" if last else "", y="feature std", row=row, col=1)
        frame(figure, x="", y="top-1, %", row=row, col=2)
        figure.update_xaxes(showgrid=False, ticks="", row=row, col=2)
        figure.update_yaxes(range=[0, 112], tickvals=[0, 25, 50, 75, 100], row=row, col=2)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top", "font": {"size": FONT}},
        bargap=0.3,
    )
    figure.update_xaxes(tickfont={"size": SMALL + 1})
    how = "; ".join(f"{name} on {', '.join(on)}" for name, on in sentences.items())
    return finish(
        figure,
        "Left: std over the batch of each coordinate of features of length 1, averaged over coordinates, while pretraining. Right: top-1 "
        f"on held-out images of a linear classifier on the frozen encoder ({how}).",
        height=ROW * len(sets) + 110,
        top=64,
    )
