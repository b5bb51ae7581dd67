"""Draw one row for each dataset: feature std over training, and linear accuracy beside it."""

import textwrap
from collections.abc import Mapping, Sequence

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from smi.figures.linear_scores import comparable, top1
from smi.figures.series import add_lines, series
from smi.figures.style import (
    FONT,
    SMALL,
    TOP_LEGEND,
    Look,
    finish,
    frame,
    looks,
    plain,
    within_percent,
)
from smi.intervals import interval
from smi.pages.palette import INK, WHITE
from smi.runs.names import first_runs, named_seed_groups_by_dataset, seed_caption
from smi.runs.run import Run

PATTERNS = ("", "/", "x", ".", "\\", "-", "+", "|")
ROW_HEIGHT = 300  # pixels
LABEL_LENGTH = 10  # letters of a line beneath a bar
SEEDS_NOTE = "Thin: each seed; thick, and bars: their mean, with its 95 % interval"

Groups = Mapping[str, Sequence[Run]]


def std_summary(sets: Mapping[str, Mapping[str, Run]]) -> go.Figure:
    """Draw the figure; `sets` holds the runs of each dataset, with the same names in all."""
    groups = named_seed_groups_by_dataset(sets)
    rows = {name: runs for by_name in groups.values() for name, runs in by_name.items()}
    look = looks(first_runs(rows))
    patterns = {name: PATTERNS[i % len(PATTERNS)] for i, name in enumerate(rows)}
    figure = _panels(list(sets), len(rows))
    protocols: dict[str, list[str]] = {}
    in_legend: set[str] = set()
    for row, (data, runs) in enumerate(sets.items(), 1):
        results = comparable(runs)
        protocols.setdefault(next(iter(results.values())).protocol["name"], []).append(data)
        _add_std(figure, data, groups[data], look, in_legend, row)
        in_legend.update(groups[data])
        accuracy = {run.folder: 100 * top1(results[name]) for name, run in runs.items()}
        scores = {
            name: _estimate([accuracy[run.folder] for run in seeds])
            for name, seeds in groups[data].items()
        }
        _add_bars(figure, data, scores, look, patterns, row)
        _add_scores(figure, scores, groups[data], row)
        frame(figure, x="epoch" if row == len(sets) else "", y="feature std", row=row, col=1)
        frame(figure, x="", y="top-1, %", row=row, col=2)
    figure.update_xaxes(showgrid=False, ticks="", tickangle=0, col=2)
    figure.update_yaxes(rangemode="tozero", col=1)
    figure.update_yaxes(range=[0, 100], tickvals=[0, 25, 50, 75, 100], col=2)
    figure.update_layout(legend=TOP_LEGEND | {"font": {"size": FONT}}, bargap=0.3)
    figure.update_xaxes(tickfont={"size": SMALL + 1})
    how = "; ".join(f"{name} on {', '.join(datasets)}" for name, datasets in protocols.items())
    return finish(
        figure,
        "Left: std over the batch of each coordinate of features of length 1, averaged over "
        "coordinates, during pretraining. Right: top-1 on held-out images of a linear classifier "
        f"on the frozen encoder ({how}).{seed_caption(rows, SEEDS_NOTE)}",
        height=ROW_HEIGHT * len(sets) + 110,
        top=64,
    )


def _panels(datasets: Sequence[str], num_bars: int) -> go.Figure:
    """Make two panels for each dataset; the right ones are wider if they have many bars."""
    return make_subplots(
        rows=len(datasets),
        cols=2,
        column_widths=[0.62, 0.38] if num_bars <= 4 else [0.48, 0.52],
        horizontal_spacing=0.11,
        vertical_spacing=min(0.1, 110 / (ROW_HEIGHT * len(datasets))),
        subplot_titles=[text for data in datasets for text in (f"<b>{plain(data)}</b>", "")],
    )


def _add_std(
    figure: go.Figure,
    data: str,
    groups: Groups,
    look: Mapping[str, Look],
    in_legend: set[str],
    row: int,
) -> None:
    """Add the lines of feature std to the left panel of a row."""
    add_lines(
        figure,
        groups,
        lambda run: series(run, "feature_std"),
        hover=f"{plain(data)}, epoch %{{x:.1f}}: %{{y:.4g}}",
        look=look,
        in_legend=lambda name: name not in in_legend,
        row=row,
        col=1,
    )
    last = max(series(run, "epoch")[1][-1] for runs in groups.values() for run in runs)
    figure.update_xaxes(range=[0, 1.02 * last], row=row, col=1)


def _add_bars(
    figure: go.Figure,
    data: str,
    scores: Mapping[str, tuple[float, float]],
    look: Mapping[str, Look],
    patterns: Mapping[str, str],
    row: int,
) -> None:
    """Add bars of accuracy with their intervals to the right panel of a row."""
    colours = [look[name].colour for name in scores]
    halves = [half for _, half in scores.values()]
    above, below = zip(*(within_percent(*score) for score in scores.values()), strict=True)
    figure.add_bar(
        x=[_label(name) for name in scores],
        y=[middle for middle, _ in scores.values()],
        error_y={
            "type": "data",
            "array": above,
            "arrayminus": below,
            "visible": any(halves),
            "color": INK,
        },
        cliponaxis=False,
        showlegend=False,
        width=0.6,
        marker={
            "color": colours,
            "line": {"color": colours, "width": 1.5},
            "pattern": {
                "shape": [patterns[name] for name in scores],
                "fillmode": "replace",
                "bgcolor": WHITE,
                "size": 7,
            },
        },
        hovertemplate=f"{plain(data)}, %{{x}}: %{{y:.2f}} %<extra></extra>",
        row=row,
        col=2,
    )


def _add_scores(
    figure: go.Figure, scores: Mapping[str, tuple[float, float]], groups: Groups, row: int
) -> None:
    """Write the accuracy above each bar, with half of its interval for several seeds."""
    for name, (middle, half) in scores.items():
        top = middle + within_percent(middle, half)[0]
        more = f"<br>± {half:.1f}" if len(groups[name]) > 1 else ""
        figure.add_annotation(
            x=_label(name),
            y=top if top < 90 else 100,  # above the frame, not across it
            text=f"{middle:.1f}{more}",
            yanchor="bottom",
            showarrow=False,
            font={"size": SMALL + 1},
            row=row,
            col=2,
        )


def _label(name: str) -> str:
    """Break a name into short lines, so that labels of bars fit side by side."""
    lines = [
        line
        for part in name.split(", ")
        for line in textwrap.wrap(
            part, LABEL_LENGTH, break_long_words=False, break_on_hyphens=False
        )
    ]
    return "<br>".join(map(plain, lines))


def _estimate(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its interval, which is 0 for one value."""
    if len(values) == 1:
        return values[0], 0.0
    middle, low, _ = interval(values)
    return middle, middle - low
