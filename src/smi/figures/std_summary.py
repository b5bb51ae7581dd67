"""One row for each data set: feature std over training, and beside it the accuracy of a linear classifier."""

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from smi.figures.scores import comparable, top1
from smi.figures.series import add_lines, series
from smi.figures.style import FONT, INK, SMALL, finish, frame, looks, plain
from smi.intervals import interval
from smi.runs.names import about_seeds, by_seed_on, firsts
from smi.runs.run import Run

PATTERNS = ("", "/", "x", ".", "\\", "-", "+", "|")
ROW = 300  # pixels
SEEDS = "Thin: each seed; thick, and bars: their mean, with its 95 % interval"


def std_summary(sets: Mapping[str, Mapping[str, Run]]) -> go.Figure:
    """sets: of each data set its runs, called the same on all of them."""
    groups = by_seed_on(sets)
    every = {name: some for of_one in groups.values() for name, some in of_one.items()}
    look = looks(firsts(every))
    order = list(every)
    figure = make_subplots(
        rows=len(sets),
        cols=2,
        column_widths=[0.62, 0.38] if len(every) <= 4 else [0.48, 0.52],
        horizontal_spacing=0.11,
        vertical_spacing=min(0.1, 110 / (ROW * len(sets))),
        subplot_titles=[text for data in sets for text in (f"<b>{plain(data)}</b>", "")],
    )
    sentences: dict[str, list[str]] = {}
    seen: set[str] = set()
    for row, (data, runs) in enumerate(sets.items(), 1):
        results = comparable(runs)
        sentences.setdefault(next(iter(results.values())).protocol["name"], []).append(data)
        add_lines(
            figure,
            groups[data],
            lambda run: series(run, "feature_std"),
            hover=f"{plain(data)}, epoch %{{x:.1f}}: %{{y:.4g}}",
            look=look,
            listed=lambda name: name not in seen,
            row=row,
            col=1,
        )
        names = list(groups[data])
        seen.update(names)
        top = {run.folder: 100 * top1(results[name]) for name, run in runs.items()}
        scores = [_estimate([top[run.folder] for run in groups[data][name]]) for name in names]
        figure.add_bar(
            x=[_broken(name) for name in names],
            y=[middle for middle, _ in scores],
            error_y={
                "type": "data",
                "array": [half for _, half in scores],
                "visible": any(half for _, half in scores),
                "color": INK,
            },
            showlegend=False,
            width=0.6,
            marker={
                "color": [look[name].colour for name in names],
                "line": {"color": [look[name].colour for name in names], "width": 1.5},
                "pattern": {
                    "shape": [PATTERNS[order.index(name) % len(PATTERNS)] for name in names],
                    "fillmode": "replace",
                    "bgcolor": "white",
                    "size": 7,
                },
            },
            hovertemplate=f"{plain(data)}, %{{x}}: %{{y:.2f}} %<extra></extra>",
            row=row,
            col=2,
        )
        for name, (middle, half) in zip(names, scores, strict=True):
            figure.add_annotation(
                x=_broken(name),
                y=middle + half,
                text=f"{middle:.1f}" + (f"<br>± {half:.1f}" if len(groups[data][name]) > 1 else ""),
                yanchor="bottom",
                showarrow=False,
                font={"size": SMALL + 1},
                row=row,
                col=2,
            )
        figure.update_xaxes(
            range=[0, 1.02 * max(series(run, "epoch")[1][-1] for run in runs.values())],
            row=row,
            col=1,
        )
        last = row == len(sets)
        frame(figure, x="epoch" if last else "", y="feature std", row=row, col=1)
        frame(figure, x="", y="top-1, %", row=row, col=2)
        figure.update_xaxes(showgrid=False, ticks="", tickangle=0, row=row, col=2)
        figure.update_yaxes(range=[0, 112], tickvals=[0, 25, 50, 75, 100], row=row, col=2)
    figure.update_layout(
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": FONT},
        },
        bargap=0.3,
    )
    figure.update_xaxes(tickfont={"size": SMALL + 1})
    how = "; ".join(f"{name} on {', '.join(on)}" for name, on in sentences.items())
    return finish(
        figure,
        "Left: std over the batch of each coordinate of features of length 1, averaged over coordinates, while pretraining. Right: top-1 "
        f"on held-out images of a linear classifier on the frozen encoder ({how}).{about_seeds(every, SEEDS)}",
        height=ROW * len(sets) + 110,
        top=64,
    )


def _broken(name: str) -> str:
    """Into lines, so that names stand upright side by side."""
    return plain(name).replace(", ", "<br>").replace("Barlow Twins", "Barlow<br>Twins")


def _estimate(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its interval; 0 where there is one value."""
    if len(values) == 1:
        return values[0], 0.0
    middle, low, _ = interval(values)
    return middle, middle - low
