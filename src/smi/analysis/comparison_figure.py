"""A comparison as a figure: every score with its interval, its difference to the first row, and what a step takes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smi.analysis.comparison import Comparison, Estimate
from smi.analysis.style import COLOURS, DASHES, SYMBOLS, harmless
from smi.checkpoint import write_text


def write_figure(comparison: Comparison, path: Path) -> None:
    """A page that opens without a network."""
    write_text(path, harmless(figure(comparison)).to_html(include_plotlyjs=True, config={"displaylogo": False}))


def figure(comparison: Comparison) -> Any:
    """Left each score, right its difference to the first row; last what a step takes. Rows differ by symbol and place too."""
    from plotly.subplots import make_subplots  # type: ignore[import-untyped,unused-ignore]

    columns = comparison.columns
    titles = [title for _, name in columns for title in (name, f"{name}: difference to {comparison.rows[0].name}, points")]
    count = len(columns) + 1
    each = 280 if comparison.swept else 70 + 24 * len(comparison.rows)  # pixels
    height = 120 + count * each
    found = make_subplots(
        rows=count,
        cols=2,
        subplot_titles=[*titles, "time per step, and the loss in it", "peak memory"],
        vertical_spacing=min((95 if comparison.swept else 60) / height, 1 / count),
        horizontal_spacing=0.08,
        shared_yaxes=not comparison.swept,
    )
    found.update_layout(template="plotly_white", height=height, margin={"t": 90, "l": 60, "r": 20, "b": 50})
    found.update_layout(legend={"orientation": "h", "y": 1 + 40 / height, "yanchor": "bottom"}, showlegend=bool(comparison.swept))
    draw = _swept if comparison.swept else _listed
    for place, column in enumerate(columns, 1):
        scores = [comparison.score(row, column) for row in comparison.rows]
        differences = [_points(comparison.difference(row, column)) for row in comparison.rows]
        draw(found, comparison, scores, place, 1)
        draw(found, comparison, differences, place, 2)
        value, other = ("y", "x") if comparison.swept else ("x", "y")
        found.update_layout({f"{value}axis{_number(place, 1)}": {"tickformat": ".1%"}})
        found.update_layout({f"{value}axis{_number(place, 2)}": {"tickformat": "+.3~g"}})
        zero = {"type": "line", f"{other}0": 0, f"{other}1": 1, f"{value}0": 0, f"{value}1": 0, "line": {"color": "black", "width": 1}}
        domain = {f"{value}ref": f"{value}{_number(place, 2)}", f"{other}ref": f"{other}{_number(place, 2)} domain"}
        found.add_shape(**zero, **domain)
    _costs(found, comparison, count)
    return found


def _points(value: Estimate | None) -> Estimate | None:
    if value is None or value.low is None or value.high is None:
        return value and replace(value, mean=100 * value.mean)
    return replace(value, mean=100 * value.mean, low=100 * value.low, high=100 * value.high)


def _number(row: int, col: int) -> str:
    """How plotly calls the axes of a panel."""
    number = 2 * (row - 1) + col
    return "" if number == 1 else str(number)


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9}


def _listed(found: Any, comparison: Comparison, estimates: Sequence[Estimate | None], place: int, col: int) -> None:
    """Rows from above to below."""
    from plotly.graph_objects import Scatter  # type: ignore[import-untyped,unused-ignore]

    for number, (row, estimate) in enumerate(zip(comparison.rows, estimates, strict=True)):
        if estimate:
            bars = {"type": "data", "array": [estimate.half], "visible": estimate.high is not None}
            trace = Scatter(x=[estimate.mean], y=[row.name], error_x=bars, mode="markers", marker=_style(number), name=row.name)
            found.add_trace(trace, row=place, col=col)
    names = [row.name for row in comparison.rows]
    found.update_yaxes(categoryorder="array", categoryarray=names[::-1], row=place, col=col)


def _swept(found: Any, comparison: Comparison, estimates: Sequence[Estimate | None], place: int, col: int) -> None:
    """Against the value, a line for each method; one that has no such setting is a line across."""
    from plotly.graph_objects import Scatter  # type: ignore[import-untyped,unused-ignore]

    values = list(dict.fromkeys(row.value for row in comparison.rows if row.value is not None))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    shown = sorted(values) if numbers else [str(value) for value in values]
    for number, method in enumerate(dict.fromkeys(row.method for row in comparison.rows)):
        mine = [(row, e) for row, e in zip(comparison.rows, estimates, strict=True) if row.method == method and e]
        if len(mine) == 1 and mine[0][0].value is None:
            mine = [(mine[0][0], mine[0][1])] * len(shown)
            x = list(shown)
        else:
            mine.sort(key=lambda pair: values.index(pair[0].value) if not numbers else pair[0].value)
            x = [row.value if numbers else str(row.value) for row, _ in mine]
        bars = {"type": "data", "array": [e.half for _, e in mine], "visible": any(e.high is not None for _, e in mine)}
        line = {"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]}
        trace = Scatter(x=x, y=[e.mean for _, e in mine], error_y=bars, mode="lines+markers", line=line, marker=_style(number), name=method)
        trace.update(legendgroup=method, showlegend=(place, col) == (1, 1))
        found.add_trace(trace, row=place, col=col)
    scale = {"type": "log" if min(values) > 0 else "linear", "tickvals": shown} if numbers else {"type": "category"}
    found.update_xaxes(title_text=comparison.swept, **scale, row=place, col=col)


def _costs(found: Any, comparison: Comparison, place: int) -> None:
    from plotly.graph_objects import Bar  # type: ignore[import-untyped,unused-ignore]

    names, colour = [row.name for row in comparison.rows], {"color": "#999999", "line": {"color": "black", "width": 1}}
    whole = Bar(y=names, x=[row.step_ms for row in comparison.rows], orientation="h", marker=colour, name="step")
    loss = Bar(y=names, x=[row.loss_ms for row in comparison.rows], orientation="h", name="loss", width=0.4)
    loss.update(marker={"color": "black"})
    memory = Bar(y=names, x=[row.peak_mb for row in comparison.rows], orientation="h", marker=colour, name="memory")
    for trace, col in ((whole, 1), (loss, 1), (memory, 2)):
        trace.update(showlegend=False)
        found.add_trace(trace, row=place, col=col)
    found.update_layout(barmode="overlay")
    for col, unit in ((1, "ms"), (2, "MB")):
        found.update_xaxes(title_text=unit, row=place, col=col)
        found.update_yaxes(categoryorder="array", categoryarray=names[::-1], showticklabels=col == 1, row=place, col=col)
