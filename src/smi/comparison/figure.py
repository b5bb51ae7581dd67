"""A comparison as a figure: every score with its interval, its difference to the first row, and what a step takes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smi.comparison.comparison import Comparison, Estimate, Row
from smi.figures.style import (
    AXIS,
    FONT,
    INK,
    LEFT,
    RIGHT,
    SMALL,
    Look,
    finish,
    frame,
    looks_by_method,
    plain,
)
from smi.files import write_text
from smi.runs.names import spelt
from smi.terminal import printable

WIDE, NARROW = 900, 380  # pixels: a page, and a telephone
LINE, PANEL = 30, 250  # pixels: of a row in a list, of a panel with curves
GREY = "#bbbbbb"


def write_figure(comparison: Comparison, path: Path) -> None:
    """A page that opens without a network: two panels side by side, or one beneath the other where there is no room."""
    from plotly.offline import get_plotlyjs

    wide, narrow = figure(comparison).to_json(), figure(comparison, narrow=True).to_json()
    write_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>smi: comparison</title><script>{get_plotlyjs()}</script></head>\n"
        '<body style="margin:4px">\n<div id="figure"></div>\n<script>\n'
        f"const wide = {wide};\nconst narrow = {narrow};\n"
        'const room = matchMedia("(min-width: 720px)");\n'
        'const config = {displaylogo: false, toImageButtonOptions: {format: "svg", filename: "comparison"}};\n'
        'const draw = () => Plotly.react("figure", (room.matches ? wide : narrow).data, (room.matches ? wide : narrow).layout, config);\n'
        'room.addEventListener("change", draw);\ndraw();\n</script>\n</body>\n</html>\n',
    )


def figure(comparison: Comparison, *, narrow: bool = False, costs: bool = True) -> Any:
    """Left each score, right its difference to the first row; last what a step takes. Methods differ by symbol and dash too.

    narrow: one beneath the other. costs: with time and memory.
    """
    from plotly.subplots import make_subplots

    several = len(comparison.rows) > 1
    cells: list[tuple[str, Any]] = []
    for column in comparison.columns:
        cells.append(("score", column))
        cells += [("difference", column)] if several else []
    cells += [("time", None), ("memory", None)] if costs else []
    across = 1 if narrow or not several else 2
    rows = -(-len(cells) // across)
    names = [_label(row) for row in comparison.rows]
    listed = 16 + sum(LINE + 12 * name.count("<br>") for name in names)
    heights = [
        PANEL if comparison.swept and cells[across * i][0] in ("score", "difference") else listed
        for i in range(rows)
    ]
    methods = len({row.method for row in comparison.rows})
    gap, top = (
        AXIS + (20 if comparison.swept else 6),
        24 + 20 * (methods if narrow else 1) if comparison.swept else 16,
    )
    inner = sum(heights) + gap * (rows - 1)
    found = make_subplots(
        rows=rows, cols=across, row_heights=heights, vertical_spacing=gap / inner if rows > 1 else 0
    )
    look = looks_by_method({row.method: row.method for row in comparison.rows})
    width = NARROW if narrow else WIDE
    left = max(
        LEFT, 14 + round(7.2 * max(len(part) for name in names for part in name.split("<br>")))
    )
    _lay_out(found, across, width - left - RIGHT, LEFT if comparison.swept else 36)
    for number, (kind, column) in enumerate(cells):
        place = {"row": number // across + 1, "col": number % across + 1}
        hidden = place["col"] > 1
        if kind == "time":
            _costs(found, comparison, names, "ms per step; black: the loss", hidden, **place)
        elif kind == "memory":
            _costs(found, comparison, names, "peak memory, MB", hidden, **place)
        else:
            of = comparison.score if kind == "score" else comparison.difference
            estimates = [_hundredfold(of(row, column)) for row in comparison.rows]
            title = f"{column[1]}, %" if kind == "score" else f"{column[1]}: difference, points"
            if comparison.swept:
                _swept(found, comparison, estimates, look, title, number == 0, **place)
            else:
                _listed(found, comparison, estimates, look, names, title, hidden, **place)
            if kind == "difference":
                _zero(found, upright=not comparison.swept, **place)
    found.update_layout(
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": FONT},
        }
    )
    finish(found, _caption(comparison), width=width, height=top + inner + AXIS + 18, top=top)
    found.update_layout(margin_l=left, barmode="overlay", showlegend=bool(comparison.swept))
    found.layout.annotations[-1].xshift = 20 - left
    return found


def _caption(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    interval = (
        f"Means over {seeds} seeds with 95 % intervals. "
        if seeds > 1
        else "One seed: differences may be chance. "
    )
    first = (
        comparison.rows[0].name.replace(
            comparison.rows[0].method, spelt(comparison.rows[0].method), 1
        )
        if comparison.rows
        else ""
    )
    differences = (
        f"Differences are to {first}, paired by seed. " if len(comparison.rows) > 1 else ""
    )
    protocols = "; ".join(
        dict.fromkeys(
            f"{r.protocol['name']} on {printable(r.protocol['data'])}"
            for r in comparison.protocols.values()
        )
    )
    failed = (
        f" Failed: {', '.join(f'{name}, seed {run.seed}' for name, run in comparison.failed)}."
        if comparison.failed
        else ""
    )
    swept = f" Numbers behind names: {comparison.swept}." if comparison.swept else ""
    device = f" {comparison.about['device']}." if "device" in comparison.about else ""
    return (
        f"{interval}{differences}{protocols or 'No run is evaluated yet'}.{device}{swept}{failed}"
    )


def _label(row: Row) -> str:
    """A method, and the value that it has of what is swept."""
    return plain(spelt(row.method) + ("" if row.value is None else f", {_value(row.value)}"))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lay_out(found: Any, across: int, inner: int, between: int) -> None:
    """Side by side, with room for what stands beside the right one."""
    if across == 2:
        half = (inner - between) / 2 / inner
        found.update_xaxes(domain=[0, half], col=1)
        found.update_xaxes(domain=[1 - half, 1], col=2)


def _hundredfold(value: Estimate | None) -> Estimate | None:
    if value is None:
        return None
    low, high = (None if end is None else 100 * end for end in (value.low, value.high))
    return Estimate(100 * value.mean, low, high, value.seeds)


def _bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [estimate.half for estimate in estimates],
        "visible": any(estimate.high is not None for estimate in estimates),
        "thickness": 1.4,
        "width": 4,
    }


def _said(name: str, estimate: Estimate) -> str:
    ends = (
        ""
        if estimate.low is None or estimate.high is None
        else f", {estimate.low:.2f} to {estimate.high:.2f}"
    )
    seeds = f", seed{'s' * (len(estimate.seeds) > 1)} {', '.join(map(str, estimate.seeds))}"
    return f"{plain(name)}: {estimate.mean:.2f}{ends}{seeds}"


def _listed(
    found: Any,
    comparison: Comparison,
    estimates: Sequence[Estimate | None],
    look: dict[str, Look],
    names: Sequence[str],
    title: str,
    hidden: bool,
    **place: int,
) -> None:
    """Rows from above to below."""
    for row, name, estimate in zip(comparison.rows, names, estimates, strict=True):
        if estimate:
            found.add_scatter(
                x=[estimate.mean],
                y=[name],
                error_x=_bars([estimate]),
                mode="markers",
                marker=look[row.method].marker(9, most=0),
                text=[_said(row.name, estimate)],
                hovertemplate="%{text}<extra></extra>",
                name=plain(row.name),
                showlegend=False,
                cliponaxis=False,
                **place,
            )
    frame(found, x=title, y="", row=place["row"], col=place["col"])
    _categories(found, names, hidden, **place)


def _categories(found: Any, names: Sequence[str], hidden: bool, **place: int) -> None:
    order = list(names)[::-1]
    found.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=order,
        range=[-0.6, len(order) - 0.4],
        **place,
    )
    found.update_yaxes(showticklabels=not hidden, ticks="", tickfont={"size": SMALL + 1}, **place)
    found.update_xaxes(nticks=6, **place)


def _swept(
    found: Any,
    comparison: Comparison,
    estimates: Sequence[Estimate | None],
    look: dict[str, Look],
    title: str,
    listed: bool,
    **place: int,
) -> None:
    """Against the value, a line for each method; one that has no such setting is a line across, its interval to the right of all values."""
    values = list(
        {str(row.value): row.value for row in comparison.rows if row.value is not None}.values()
    )
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    values = sorted(values) if numbers else values
    log = numbers and values[0] > 0
    places = [
        math.log10(value) if log else float(value) if numbers else float(i)
        for i, value in enumerate(values)
    ]
    step = (places[-1] - places[0]) / 12 or 0.1
    outside = places[-1]
    for method in dict.fromkeys(row.method for row in comparison.rows):
        mine = [
            (row, e)
            for row, e in zip(comparison.rows, estimates, strict=True)
            if row.method == method and e
        ]
        mine.sort(key=lambda pair: -1 if pair[0].value is None else values.index(pair[0].value))
        x = [places[values.index(row.value)] for row, _ in mine if row.value is not None]
        bars = _bars([e for _, e in mine])
        if len(mine) == 1 and mine[0][0].value is None:
            outside += step
            mine, x = mine * 2, [places[0], outside]
            bars |= {"array": [0, mine[0][1].half]}
        found.add_scatter(
            x=x,
            y=[e.mean for _, e in mine],
            error_y=bars,
            mode="lines+markers",
            line=look[method].line(1.8),
            marker=look[method].marker(9, most=0),
            text=[_said(row.name, e) for row, e in mine],
            hovertemplate="%{text}<extra></extra>",
            name=plain(spelt(method)),
            legendgroup=method,
            showlegend=listed,
            cliponaxis=False,
            **place,
        )
    frame(found, x=plain(comparison.swept or ""), y=title, row=place["row"], col=place["col"])
    found.update_xaxes(
        tickvals=places, ticktext=[plain(_value(value)) for value in values], **place
    )
    found.update_xaxes(range=[places[0] - step, max(outside, places[-1]) + step], **place)


def _zero(found: Any, *, upright: bool, **place: int) -> None:
    line = {"color": INK, "width": 1, "dash": "dot"}
    if upright:
        found.add_vline(x=0, line=line, **place)
    else:
        found.add_hline(y=0, line=line, **place)


def _costs(
    found: Any, comparison: Comparison, names: Sequence[str], title: str, hidden: bool, **place: int
) -> None:
    def bar(values: Sequence[float | None], colour: str, what: str, width: float) -> None:
        found.add_bar(
            y=list(names),
            x=list(values),
            orientation="h",
            name=what,
            width=width,
            marker={"color": colour, "line": {"color": INK, "width": 1}},
            hovertemplate=f"{what}: %{{x:,.4~r}}<extra></extra>",
            showlegend=False,
            **place,
        )

    def of(row: Row) -> float | None:
        return row.step_ms if "step" in title else row.peak_mb

    bar(
        [of(row) for row in comparison.rows],
        GREY,
        "step, ms" if "step" in title else "peak memory, MB",
        0.62,
    )
    if "step" in title:
        bar([row.loss_ms for row in comparison.rows], "black", "the loss in it, ms", 0.24)
    frame(found, x=title, y="", row=place["row"], col=place["col"])
    _categories(found, names, hidden, **place)
    found.update_xaxes(rangemode="tozero", **place)
