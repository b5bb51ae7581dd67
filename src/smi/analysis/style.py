"""How figures look, and what runs are called in them.

On paper without colour runs are told apart by dash and marker. The same runs in the same order look the same in every figure.
"""

import html
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plotly import graph_objects as go

from smi.config import flat
from smi.errors import UserError
from smi.methods import HOMES
from smi.report.escape import in_html, in_plotly
from smi.run import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagram", "hourglass")
FONT, SMALL = 14, 12  # points; nothing is smaller
INK, GRID = "#222222", "#e6e6e6"
LEFT, RIGHT, TOP, AXIS, LINE = 80, 20, 30, 62, 17  # pixels: margins, what an axis takes beneath, a line of the caption
CAPTION = "caption"  # the name of the annotation that is one
MARKERS = 9  # at most so many on a line, to tell it by
SWATCH = 42  # pixels of a line in the legend: enough for a long dash on either side of the marker

SPELT = {"BarlowTwins": "Barlow Twins", "MoCoV2": "MoCo v2"}


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
    return Look(COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)])


def looks(runs: Mapping[str, Run]) -> dict[str, Look]:
    """A method has one of its own; where several runs share a method, the later ones take what is free."""
    return looks_by_method({name: run.config["method"]["name"] for name, run in runs.items()})


def looks_by_method(methods: Mapping[str, str]) -> dict[str, Look]:
    wanted = {name: list(HOMES).index(method) for name, method in methods.items() if method in HOMES}
    free = iter(number for number in range(len(HOMES) + len(methods)) if number not in wanted.values())
    found: dict[str, int] = {}
    for name in methods:
        number = wanted.get(name)
        found[name] = next(free) if number is None or number in found.values() else number
    return {name: look(number) for name, number in found.items()}


# --------------------------------------------------------------------------------------------------------------- what runs are called


def data_of(run: Run) -> str:
    """A set's name, or that of the folder."""
    source = str(run.config["data"]["source"])
    return Path(source).name or source


def method_of(run: Run) -> str:
    name = str(run.config["method"]["name"])
    return SPELT.get(name, name.rsplit(".", 1)[-1])


def spelt(name: str) -> str:
    """The name of a row of a comparison."""
    method, comma, rest = name.partition(",")
    return SPELT.get(method, method.rsplit(".", 1)[-1]) + comma + rest.replace("redundancy_weight=", "λ = ")


def called(runs: Sequence[Run], *, by_data: bool = True) -> dict[str, Run]:
    """By method, and by whatever else tells those of one method apart: λ, encoder, epochs, another setting, seed; at last their folders.

    by_data: runs on different images say which.
    """
    folders = [run.folder.resolve() for run in runs]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise UserError(f"{runs[i].folder} is given twice")
    return dict(zip(names_of(runs, by_data=by_data), runs, strict=True))


def names_of(runs: Sequence[Run], *, by_data: bool = True) -> list[str]:
    """Without by_data, runs on different images may be called the same: what tells some apart on one set is said on all of them."""
    names = [method_of(run) for run in runs]
    sets = [data_of(run) for run in runs]
    facts: list[list[str]] = []
    if by_data and len(set(sets)) > 1:
        names = [f"{name}, {data}" for name, data in zip(names, sets, strict=True)]
    facts.append([f"λ = {weight:g}" if (weight := weight_of(run)) is not None else "" for run in runs])
    facts.append([str(run.config["encoder"]["name"]) for run in runs])
    facts.append([f"{run.config['epochs']} epochs" for run in runs])
    facts.append(_other_settings(runs))
    facts.append([f"seed {run.config['seed']}" for run in runs])
    facts.append([run.folder.name for run in runs])
    facts.append([run.folder.resolve().parent.name for run in runs])
    facts.append([str(run.folder) for run in runs])
    for fact in facts:
        several: dict[tuple[str, str], set[str]] = {}
        for name, data, told in zip(names, sets, fact, strict=True):
            several.setdefault((name, data), set()).add(told)
        apart = {name for (name, _), values in several.items() if len(values) > 1}
        names = [f"{name}, {told}" if name in apart and told else name for name, told in zip(names, fact, strict=True)]
    return names


def _other_settings(runs: Sequence[Run]) -> list[str]:
    """One or two that differ among runs of a method on the same images, as a sweep makes them; nothing where more do."""
    told_before = ("method.redundancy_weight", "epochs", "encoder.name", "data.source")
    every = [{key: value for key, value in flat(identity(run)) if key not in told_before} for run in runs]
    kinds = [(method_of(run), data_of(run)) for run in runs]
    told = []
    for kind, mine in zip(kinds, every, strict=True):
        alike = [other for other, its in zip(every, kinds, strict=True) if its == kind]
        differ = [key for key in mine if any(other.get(key) != mine[key] for other in alike)]
        told.append(", ".join(f"{key.removeprefix('method.')}={mine[key]}" for key in differ) if len(differ) <= 2 else "")
    return told


def families(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Runs that differ by their seed alone are together; of two with one seed too, each is for itself."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(as_key(identity(run)), []).append(run)
    kept: list[tuple[Run, ...]] = []
    for some in found.values():
        distinct = len({run.config["seed"] for run in some}) == len(some)
        kept += [tuple(some)] if distinct else [(run,) for run in some]
    return kept


def identity(run: Run) -> dict[str, Any]:
    """What a run learns from, but for its seed: its configuration without what other methods would have had, or what is logged."""
    return {name: value for name, value in run.config.items() if name not in ("seed", "methods", "log", "precision")}


def as_key(setting: Mapping[str, Any]) -> str:
    """The same for the same settings, in whatever order they were written."""
    return json.dumps(setting, sort_keys=True, default=str)


def by_seed(runs: Mapping[str, Run]) -> dict[str, tuple[Run, ...]]:
    """By what they are called without their seeds, runs that differ by nothing else."""
    return by_seed_on({"": runs}, by_data=True)[""]


def by_seed_on(sets: Mapping[str, Mapping[str, Run]], *, by_data: bool = False) -> dict[str, dict[str, tuple[Run, ...]]]:
    """The same of runs on several data sets, called the same on all of them."""
    found = {data: families(runs.values()) for data, runs in sets.items()}
    every = [family for some in found.values() for family in some]
    if all(len(family) == 1 for family in every):  # they keep their names
        return {data: {name: (run,) for name, run in runs.items()} for data, runs in sets.items()}
    names = iter(names_of([family[0] for family in every], by_data=by_data))
    return {data: {next(names): family for family in some} for data, some in found.items()}


def firsts(groups: Mapping[str, Sequence[Run]]) -> dict[str, Run]:
    return {name: runs[0] for name, runs in groups.items()}


def about_seeds(groups: Mapping[str, Sequence[Run]], what: str = "Thin: each seed; thick: their mean") -> str:
    """For a caption, where there are any."""
    counts = sorted({len(runs) for runs in groups.values() if len(runs) > 1})
    return f" {what} ({' or '.join(map(str, counts))} seeds)." if counts else ""


def weight_of(run: Run) -> float | None:
    """The paper's λ."""
    weight = run.config["method"].get("redundancy_weight")
    return None if weight is None else float(weight)


def setting(runs: Iterable[Run]) -> str:
    """What these runs share, for a caption: data, encoder, epochs."""
    runs = list(runs)
    facts = (
        {data_of(run) for run in runs},
        {str(run.config["encoder"]["name"]) for run in runs},
        {f"{run.config['epochs']} epochs" for run in runs},
        {f"batches of {run.config['batch_size']}" for run in runs},
    )
    return ", ".join(next(iter(fact)) for fact in facts if len(fact) == 1)


# ------------------------------------------------------------------------------------------------------------------------- the frame


def plain(text: str) -> str:
    """A name of someone's own, as it is: plotly takes <b> and &amp; in a text for HTML."""
    return html.escape(text, quote=False)


def finish(figure: go.Figure, caption: str, *, width: int = 900, height: int = 560, axes: bool = True, top: int = TOP) -> go.Figure:
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


def frame(figure: go.Figure, *, x: str, y: str, log_x: bool = False, log_y: bool = False, **where: int) -> None:
    """Axes with titles; where: row and col of a figure with several panels."""
    common = {"showline": True, "linecolor": INK, "linewidth": 1, "ticks": "outside", "gridcolor": GRID, "zeroline": False, "mirror": True}
    common |= {"title_standoff": 8, "title_font": {"size": FONT}, "tickfont": {"size": SMALL + 1}, "automargin": False}
    figure.update_xaxes(title_text=x, **common, **_scale(log_x), **where)
    figure.update_yaxes(title_text=y, **common, **_scale(log_y), **where)


def _scale(log: bool) -> dict[str, Any]:
    return {"type": "log", "dtick": 1, "minor": {"ticks": "outside", "ticklen": 3, "dtick": "D1"}, "exponentformat": "power"} if log else {}


def from_zero(figure: go.Figure) -> None:
    """Steps or epochs, from the beginning to a little beyond the last."""
    figure.update_xaxes(range=[0, 1.02 * max((float(trace.x[-1]) for trace in figure.data if len(trace.x)), default=1)])


def legend(figure: go.Figure, *, log_y: bool = False, log_x: bool = False) -> None:
    """In a corner without points, of a figure with one panel; above it if there is none."""
    shown = [trace for trace in figure.data if trace.showlegend is not False]
    entries = len(shown)
    wide = min(0.75, 0.125 + 0.0105 * max((len(trace.name or "") for trace in shown), default=0))
    high = 0.07 + 0.06 * entries
    points = _points(figure, log_x, log_y)
    corners = {
        (right, above): sum((x > 1 - wide if right else x < wide) and (y > 1 - high if above else y < high) for x, y in points)
        for right in (True, False)
        for above in (True, False)
    }
    best = min(corners, key=lambda corner: corners[corner])
    if corners[best] or high > 0.6:
        figure.update_layout(legend={"orientation": "h", "x": 0, "y": 1.01, "xanchor": "left", "yanchor": "bottom", "itemwidth": SWATCH})
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

    points = [(scaled(x, log_x), scaled(y, log_y)) for t in figure.data if t.x is not None for x, y in zip(t.x, t.y, strict=False)]
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return []
    xs, ys = zip(*points, strict=True)
    (x0, x1), (y0, y1) = (_range(figure.layout.xaxis.range, xs), _range(figure.layout.yaxis.range, ys))
    return [((x - x0) / (x1 - x0), (y - y0) / (y1 - y0)) for x, y in points]


def _range(asked: Any, values: Sequence[float]) -> tuple[float, float]:
    low, high = asked or (min(values), max(values))
    return (low, high) if high > low else (low, low + 1)


def harmless(figure: go.Figure) -> go.Figure:
    """Names in it, of files, classes and folders, are shown letter by letter."""
    return go.Figure(in_plotly(figure.to_plotly_json()), skip_invalid=True)


def write_html(figure: go.Figure, path: Path, title: str) -> None:
    """A page that opens without a network: hover for values, drag to zoom or rotate, click a name to hide it."""
    config = {"displaylogo": False, "toImageButtonOptions": {"format": "svg", "filename": path.name.removesuffix(".partial").split(".")[0]}}
    body = harmless(figure).to_html(include_plotlyjs=True, full_html=False, config=config)
    head = f'<meta charset="utf-8"><title>{in_html(title)}</title>'
    path.write_text(
        f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body style="margin:24px">\n{body}\n</body>\n</html>\n',
        encoding="utf-8",
    )
