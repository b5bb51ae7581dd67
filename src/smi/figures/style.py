"""Style figures: colours, dashes and symbols of runs, axes, legends, captions and files.

Runs differ by dash and symbol as well as by colour, so a print without colour can be read. The
same runs in the same order look the same in every figure.
"""

import html
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plotly import graph_objects as go

from smi.methods import METHOD_NAMES
from smi.pages import Document, page
from smi.pages.escape import in_plotly
from smi.pages.palette import CAPTION_INK, GRID, LEGEND_FILL, SERIES, WHITE
from smi.pages.palette import INK as INK
from smi.pages.plots import CAPTION, CAPTION_LINE, single_plot
from smi.runs.run import Run

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
FONT = 14  # points
SMALL = 12  # points; no text is smaller
LEFT = 80  # pixels, margins
RIGHT = 20
TOP = 30
AXIS = 62  # pixels that an axis takes beneath its panel
MAX_MARKERS = 9  # on a line, enough to recognise it
SWATCH_WIDTH = 42  # pixels of a line in the legend: a long dash on either side of the marker
CHARACTER_WIDTH = 6  # pixels of a caption
TOP_LEGEND = {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"}


@dataclass(frozen=True)
class Look:
    """Describe how the lines and markers of one run look."""

    colour: str
    dash: str
    symbol: str

    def line(self, width: float = 2.2) -> dict[str, Any]:
        """Return plotly's settings of a line."""
        return {"color": self.colour, "dash": self.dash, "width": width}

    def marker(self, size: float = 8, *, max_shown: int = MAX_MARKERS) -> dict[str, Any]:
        """Return plotly's settings of markers; at most `max_shown` are shown, 0 shows all."""
        marker = {"color": self.colour, "symbol": self.symbol, "size": size}
        return marker | {"maxdisplayed": max_shown}


def look(number: int) -> Look:
    """Return the look with this number; numbers beyond the last start again."""
    return Look(
        SERIES[number % len(SERIES)], DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)]
    )


def looks(runs: Mapping[str, Run], encoders: Iterable[str] = ()) -> dict[str, Look]:
    """Return the look of each run, which is that of its method, and of encoders without a run."""
    methods = {name: run.config["method"]["name"] for name, run in runs.items()}
    return looks_by_method(methods | dict.fromkeys(encoders, ""))


def looks_by_method(methods: Mapping[str, str]) -> dict[str, Look]:
    """Return the look of each name, given its method.

    A method's look follows its position in the list of `smi.methods`. Where several names share
    a method, the later ones take the looks that are left.
    """
    positions = {method: number for number, method in enumerate(METHOD_NAMES)}
    own = {name: positions[method] for name, method in methods.items() if method in positions}
    free = iter(n for n in range(len(positions) + len(methods)) if n not in own.values())
    numbers: dict[str, int] = {}
    for name in methods:
        number = own.get(name)
        taken = number is None or number in numbers.values()
        numbers[name] = next(free) if number is None or taken else number
    return {name: look(number) for name, number in numbers.items()}


# ------------------------------------------------------------------------- captions and axes


def plain(text: str) -> str:
    """Escape a name, because plotly interprets <b> and &amp; in a text as HTML."""
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
    """Set size, margins and font, and add a caption beneath; `height` is without the caption."""
    left = LEFT if axes else 24
    axis = AXIS if axes else 12
    top = max(top, figure.layout.margin.t or 0)
    lines = textwrap.wrap(caption, (width - 40) // CHARACTER_WIDTH)
    figure.update_layout(
        template="none",
        width=width,
        height=height + CAPTION_LINE * len(lines),
        margin={"l": left, "r": RIGHT, "t": top, "b": axis + CAPTION_LINE * len(lines) + 18},
        paper_bgcolor=WHITE,
        plot_bgcolor=WHITE,
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
        xshift=20 - left,
        yshift=-axis,
        align="left",
        showarrow=False,
        font={"size": SMALL, "color": CAPTION_INK},
    )
    return figure


def frame(
    figure: go.Figure, *, x: str, y: str, log_x: bool = False, log_y: bool = False, **place: int
) -> None:
    """Draw axes with titles; `place` is the row and col of a panel."""
    common = {
        "showline": True,
        "linecolor": INK,
        "linewidth": 1,
        "ticks": "outside",
        "gridcolor": GRID,
        "zeroline": False,
        "mirror": True,
        "title_standoff": 8,
        "title_font": {"size": FONT},
        "tickfont": {"size": SMALL + 1},
        "automargin": False,
    }
    figure.update_xaxes(title_text=x, **common, **_scale(log_x), **place)
    figure.update_yaxes(title_text=y, **common, **_scale(log_y), **place)


def _scale(log: bool) -> dict[str, Any]:
    """Return plotly's settings of a linear or a logarithmic axis."""
    if not log:
        return {}
    return {
        "type": "log",
        "dtick": 1,
        "minor": {"ticks": "outside", "ticklen": 3, "dtick": "D1"},
        "exponentformat": "power",
    }


def from_zero(figure: go.Figure) -> None:
    """Let the x axis begin at 0 and end a little after the last step or epoch."""
    last = max((float(trace.x[-1]) for trace in figure.data if len(trace.x)), default=1)
    figure.update_xaxes(range=[0, 1.02 * last])


def y_from_zero(figure: go.Figure) -> None:
    """Let the y axis begin at 0 and end above all values, so that it exaggerates no difference."""
    values = [float(y) for trace in figure.data for y in trace.y if y is not None]
    highest = max(filter(math.isfinite, values), default=0.0)
    figure.update_yaxes(range=[0, 1.1 * highest or 1])


def accuracy_range(values: Iterable[float | None]) -> list[float]:
    """Return the limits of an axis in percent: a margin around the values, within 0 and 100.

    Values that are None or not finite are skipped; without any other the axis is 0 to 100.
    """
    percentages = [y for y in values if y is not None and math.isfinite(y)] or [0.0, 100.0]
    low, high = min(percentages), max(percentages)
    margin = max(1.0, 0.06 * (high - low))
    return [max(0.0, low - margin), min(100.0, high + margin)]


def within_percent(middle: float, half: float) -> tuple[float, float]:
    """Return how far an error bar reaches above and below a percentage, within 0 and 100."""
    return max(0.0, min(half, 100 - middle)), max(0.0, min(half, middle))


# -------------------------------------------------------------------------------- the legend


def legend(figure: go.Figure, *, log_y: bool = False, log_x: bool = False) -> None:
    """Put the legend of a figure with one panel into a free corner, or above the panel."""
    entries = [trace for trace in figure.data if trace.showlegend is not False]
    longest = max((len(trace.name or "") for trace in entries), default=0)
    width = min(0.75, 0.125 + 0.0105 * longest)
    height = 0.07 + 0.06 * len(entries)
    corner = _free_corner(_points(figure, log_x, log_y), width, height)
    if corner is None or height > 0.6:
        return _legend_above(figure, entries)
    right, above = corner
    figure.update_layout(
        legend={
            "x": 0.985 if right else 0.015,
            "xanchor": "right" if right else "left",
            "y": 0.98 if above else 0.02,
            "yanchor": "top" if above else "bottom",
            "bgcolor": LEGEND_FILL,
            "bordercolor": GRID,
            "borderwidth": 1,
            "itemwidth": SWATCH_WIDTH,
        }
    )
    return None


def _legend_above(figure: go.Figure, entries: Sequence[Any]) -> None:
    """Put the legend above the panel, in as many lines as its entries need."""
    place = {"orientation": "h", "x": 0, "y": 1.01, "xanchor": "left", "yanchor": "bottom"}
    figure.update_layout(legend=place | {"itemwidth": SWATCH_WIDTH})
    pixels = sum(70 + 8 * len(trace.name or "") for trace in entries)
    figure.update_layout(margin_t=8 + 22 * math.ceil(pixels / 780))


def _free_corner(
    points: Sequence[tuple[float, float]], width: float, height: float
) -> tuple[bool, bool] | None:
    """Return (right, above) of a corner without points, or None if every corner has some."""

    def inside(x: float, y: float, right: bool, above: bool) -> bool:
        return (x > 1 - width if right else x < width) and (y > 1 - height if above else y < height)

    for right in (True, False):
        for above in (True, False):
            if not any(inside(x, y, right, above) for x, y in points):
                return right, above
    return None


def _points(figure: go.Figure, log_x: bool, log_y: bool) -> list[tuple[float, float]]:
    """Return all points, scaled so that the panel reaches from 0 to 1."""
    points = [(x, y) for x, y in _values(figure, log_x, log_y) if math.isfinite(x + y)]
    if not points:
        return []
    xs, ys = zip(*points, strict=True)
    x0, x1 = _range(figure.layout.xaxis.range, xs)
    y0, y1 = _range(figure.layout.yaxis.range, ys)
    return [((x - x0) / (x1 - x0), (y - y0) / (y1 - y0)) for x, y in points]


def _values(figure: go.Figure, log_x: bool, log_y: bool) -> Iterator[tuple[float, float]]:
    """Yield x and y of every point, or their logarithms; NaN stands for no value."""

    def scaled(value: Any, log: bool) -> float:
        if value is None or (log and value <= 0):
            return math.nan
        return math.log10(value) if log else float(value)

    for trace in figure.data:
        if trace.x is not None:
            for x, y in zip(trace.x, trace.y, strict=False):
                yield scaled(x, log_x), scaled(y, log_y)


def _range(limits: Any, values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis, or those of its values."""
    low, high = limits or (min(values), max(values))
    return (low, high) if high > low else (low, low + 1)


# -------------------------------------------------------------------------------------- files


def harmless(figure: go.Figure) -> go.Figure:
    """Return the figure with the names of files, classes and folders escaped."""
    return go.Figure(in_plotly(figure.to_plotly_json()), skip_invalid=True)


def write_html(figure: go.Figure, path: Path, title: str, description: str = "") -> None:
    """Write a page that shows one figure and opens without a network.

    Readers hover for values, drag to zoom or rotate, click a name to hide it, and save as SVG.
    """
    file_name = path.name.removesuffix(".partial").split(".")[0]
    block = single_plot(figure.to_plotly_json(), file_name)
    document = Document(title, description, {"Figure": [block]}, brand="smi figure")
    path.write_text(page(document), encoding="utf-8")
