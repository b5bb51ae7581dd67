"""How figures look, and what runs are called in them.

On paper without colour runs are told apart by dash and marker. The same runs in the same order look the same in every figure.
"""

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plotly import graph_objects as go

from smi.methods import METHOD_NAMES
from smi.pages.escape import in_html, in_plotly
from smi.runs.run import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "x",
    "star",
    "triangle-down",
    "pentagon",
    "hexagram",
    "hourglass",
)
FONT, SMALL = 14, 12  # points; nothing is smaller
INK, GRID = "#222222", "#e6e6e6"
LEFT, RIGHT, TOP, AXIS, LINE = (
    80,
    20,
    30,
    62,
    17,
)  # pixels: margins, what an axis takes beneath, a line of the caption
CAPTION = "caption"  # the name of the annotation that is one
MARKERS = 9  # at most so many on a line, to tell it by
SWATCH = 42  # pixels of a line in the legend: enough for a long dash on either side of the marker


@dataclass(frozen=True)
class Look:
    colour: str
    dash: str
    symbol: str

    def line(self, width: float = 2.2) -> dict[str, Any]:
        return {"color": self.colour, "dash": self.dash, "width": width}

    def marker(self, size: float = 8, *, most: int = MARKERS) -> dict[str, Any]:
        return {"color": self.colour, "symbol": self.symbol, "size": size, "maxdisplayed": most}


def look(number: int) -> Look:
    return Look(
        COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)]
    )


def looks(runs: Mapping[str, Run]) -> dict[str, Look]:
    """A method has one of its own; where several runs share a method, the later ones take what is free."""
    return looks_by_method({name: run.config["method"]["name"] for name, run in runs.items()})


def looks_by_method(methods: Mapping[str, str]) -> dict[str, Look]:
    wanted = {
        name: METHOD_NAMES.index(method)
        for name, method in methods.items()
        if method in METHOD_NAMES
    }
    free = iter(
        number
        for number in range(len(METHOD_NAMES) + len(methods))
        if number not in wanted.values()
    )
    found: dict[str, int] = {}
    for name in methods:
        number = wanted.get(name)
        found[name] = next(free) if number is None or number in found.values() else number
    return {name: look(number) for name, number in found.items()}


# ------------------------------------------------------------------------------------------------------------------------- the frame


def plain(text: str) -> str:
    """A name of someone's own, as it is: plotly takes <b> and &amp; in a text for HTML."""
    return html.escape(text, quote=False)


def finish(
    figure: go.Figure,
    caption: str,
    *,
    width: int = 900,
    height: int = 560,
    axes: bool = True,
    top: int = TOP,
) -> go.Figure:
    """White, with a caption beneath; `height` is without it."""
    top = max(top, figure.layout.margin.t or 0)
    lines = textwrap.wrap(caption, (width - 40) // 6)
    bottom = (AXIS if axes else 12) + LINE * len(lines) + 18
    figure.update_layout(
        template="none",
        width=width,
        height=height + LINE * len(lines),
        margin={"l": LEFT if axes else 24, "r": RIGHT, "t": top, "b": bottom},
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"family": "Helvetica, Arial, sans-serif", "size": FONT, "color": INK},
        hoverlabel={"font": {"size": SMALL}},
        meta={"caption": caption},
    )
    figure.add_annotation(
        name=CAPTION,
        text="<br>".join(map(plain, lines)),
        xref="paper",
        yref="paper",
        x=0,
        y=0,
        xanchor="left",
        yanchor="top",
        xshift=20 - (LEFT if axes else 24),
        yshift=-(AXIS if axes else 12),
        align="left",
        showarrow=False,
        font={"size": SMALL, "color": "#444444"},
    )
    return figure


def frame(
    figure: go.Figure, *, x: str, y: str, log_x: bool = False, log_y: bool = False, **where: int
) -> None:
    """Axes with titles; where: row and col of a figure with several panels."""
    common = {
        "showline": True,
        "linecolor": INK,
        "linewidth": 1,
        "ticks": "outside",
        "gridcolor": GRID,
        "zeroline": False,
        "mirror": True,
    }
    common |= {
        "title_standoff": 8,
        "title_font": {"size": FONT},
        "tickfont": {"size": SMALL + 1},
        "automargin": False,
    }
    figure.update_xaxes(title_text=x, **common, **_scale(log_x), **where)
    figure.update_yaxes(title_text=y, **common, **_scale(log_y), **where)


def _scale(log: bool) -> dict[str, Any]:
    return (
        {
            "type": "log",
            "dtick": 1,
            "minor": {"ticks": "outside", "ticklen": 3, "dtick": "D1"},
            "exponentformat": "power",
        }
        if log
        else {}
    )


def from_zero(figure: go.Figure) -> None:
    """Steps or epochs, from the beginning to a little beyond the last."""
    figure.update_xaxes(
        range=[
            0,
            1.02 * max((float(trace.x[-1]) for trace in figure.data if len(trace.x)), default=1),
        ]
    )


def legend(figure: go.Figure, *, log_y: bool = False, log_x: bool = False) -> None:
    """In a corner without points, of a figure with one panel; above it if there is none."""
    shown = [trace for trace in figure.data if trace.showlegend is not False]
    entries = len(shown)
    wide = min(0.75, 0.125 + 0.0105 * max((len(trace.name or "") for trace in shown), default=0))
    high = 0.07 + 0.06 * entries
    points = _points(figure, log_x, log_y)
    corners = {
        (right, above): sum(
            (x > 1 - wide if right else x < wide) and (y > 1 - high if above else y < high)
            for x, y in points
        )
        for right in (True, False)
        for above in (True, False)
    }
    best = min(corners, key=lambda corner: corners[corner])
    if corners[best] or high > 0.6:
        figure.update_layout(
            legend={
                "orientation": "h",
                "x": 0,
                "y": 1.01,
                "xanchor": "left",
                "yanchor": "bottom",
                "itemwidth": SWATCH,
            }
        )
        wide_as = sum(70 + 8 * len(trace.name or "") for trace in shown)
        figure.update_layout(margin_t=8 + 22 * -(-wide_as // 780))
        return
    right, above = best
    figure.update_layout(
        legend={
            "x": 0.985 if right else 0.015,
            "xanchor": "right" if right else "left",
            "y": 0.98 if above else 0.02,
            "yanchor": "top" if above else "bottom",
            "bgcolor": "rgba(255,255,255,0.85)",
            "bordercolor": GRID,
            "borderwidth": 1,
            "itemwidth": SWATCH,
        }
    )


def _points(figure: go.Figure, log_x: bool, log_y: bool) -> list[tuple[float, float]]:
    """Between 0 and 1, as they lie in the panel."""

    def scaled(value: Any, log: bool) -> float:
        if value is None or (log and value <= 0):
            return math.nan
        return math.log10(value) if log else float(value)

    points = [
        (scaled(x, log_x), scaled(y, log_y))
        for t in figure.data
        if t.x is not None
        for x, y in zip(t.x, t.y, strict=False)
    ]
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return []
    xs, ys = zip(*points, strict=True)
    (x0, x1), (y0, y1) = (
        _range(figure.layout.xaxis.range, xs),
        _range(figure.layout.yaxis.range, ys),
    )
    return [((x - x0) / (x1 - x0), (y - y0) / (y1 - y0)) for x, y in points]


def _range(asked: Any, values: Sequence[float]) -> tuple[float, float]:
    low, high = asked or (min(values), max(values))
    return (low, high) if high > low else (low, low + 1)


def harmless(figure: go.Figure) -> go.Figure:
    """Names in it, of files, classes and folders, are shown letter by letter."""
    return go.Figure(in_plotly(figure.to_plotly_json()), skip_invalid=True)


def write_html(figure: go.Figure, path: Path, title: str) -> None:
    """A page that opens without a network: hover for values, drag to zoom or rotate, click a name to hide it."""
    config = {
        "displaylogo": False,
        "toImageButtonOptions": {
            "format": "svg",
            "filename": path.name.removesuffix(".partial").split(".")[0],
        },
    }
    body = harmless(figure).to_html(include_plotlyjs=True, full_html=False, config=config)
    head = f'<meta charset="utf-8"><title>{in_html(title)}</title>'
    path.write_text(
        f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body style="margin:24px">\n{body}\n</body>\n</html>\n',
        encoding="utf-8",
    )
