"""Draw a comparison: scores with intervals, differences to the first row, time and memory.

Runs that start from weights that exist also have panels of their gains over these weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smi.comparison.comparison import Column, Comparison, Estimate, Row
from smi.evaluation.results import OFF_THE_SHELF
from smi.figures.style import (
    AXIS,
    FONT,
    INK,
    LEFT,
    RIGHT,
    SMALL,
    Look,
    accuracy_range,
    finish,
    frame,
    looks_by_method,
    plain,
    write_html,
)
from smi.files import write_whole
from smi.pages.palette import BAR
from smi.runs.names import display_row_name
from smi.terminal import printable

WIDE_WIDTH = 900  # pixels of a page
ROW_HEIGHT = 30  # pixels of a row in a list
PANEL_HEIGHT = 250  # pixels of a panel with curves
REFERENCE_LINE = {"color": INK, "width": 1, "dash": "dot"}


def write_comparison_figure(comparison: Comparison, path: Path) -> None:
    """Write a page that shows the comparison and opens without a network."""
    figure = draw_comparison(comparison)
    title = "Comparison of " + ", ".join(display_row_name(row.name) for row in comparison.rows)
    write_whole(path, lambda partial: write_html(figure, partial, title))


def draw_comparison(comparison: Comparison, *, costs: bool = True) -> Any:
    """Return a plotly figure: scores on the left, differences on the right, costs at the bottom.

    Gains over the weights off the shelf, if there are any, stand right of the differences. Methods
    differ by symbol and dash as well as by colour.
    costs: add panels of time and memory.
    """
    return ComparisonFigure(comparison, costs=costs).draw()


PanelKind = Literal["score", "difference", "gain", "time", "memory"]


@dataclass(frozen=True)
class Panel:
    """Describe one panel and its place in the figure, counted from 1."""

    kind: PanelKind
    column: Column | None
    row: int
    col: int

    @property
    def place(self) -> dict[str, int]:
        """Return the place as plotly takes it."""
        return {"row": self.row, "col": self.col}


class ComparisonFigure:
    """Draw the panels of a comparison into one plotly figure."""

    def __init__(self, comparison: Comparison, *, costs: bool):
        self.comparison = comparison
        self.kinds: list[PanelKind] = ["score"]  # of each score, from left to right
        if len(comparison.rows) > 1:
            self.kinds.append("difference")
        if comparison.off_the_shelf:
            self.kinds.append("gain")
        self.num_columns = len(self.kinds)
        self.panels = self._arrange(costs)
        self.names = [_row_label(row) for row in comparison.rows]
        self.score_names = [*self.names, *([OFF_THE_SHELF] if comparison.off_the_shelf else [])]
        self.looks: dict[str, Look] = looks_by_method(
            {row.method: row.method for row in comparison.rows}
        )
        self.width = WIDE_WIDTH
        longest = max(len(part) for name in self.score_names for part in name.split("<br>"))
        self.left = max(LEFT, 14 + round(7.2 * longest))

    def draw(self) -> Any:
        """Return the figure."""
        inner_height = self._create_panels()
        for panel in self.panels:
            if panel.kind == "time":
                self._draw_time(panel)
            elif panel.kind == "memory":
                self._draw_memory(panel)
            else:
                self._draw_scores(panel)
        self._finish(inner_height)
        return self.figure

    # ------------------------------------------------------------------------------ layout

    def _arrange(self, costs: bool) -> list[Panel]:
        """Return the panels from left to right and from top to bottom."""
        kinds: list[tuple[PanelKind, Column | None]] = [
            (kind, column) for column in self.comparison.columns for kind in self.kinds
        ]
        if costs:
            kinds += [("time", None), ("memory", None)]
        return [
            Panel(kind, column, number // self.num_columns + 1, number % self.num_columns + 1)
            for number, (kind, column) in enumerate(kinds)
        ]

    def _create_panels(self) -> int:
        """Create empty panels and return their height in pixels."""
        from plotly.subplots import make_subplots

        heights = [self._height(panel) for panel in self.panels if panel.col == 1]
        gap = AXIS + (20 if self.comparison.swept else 6)
        inner_height = sum(heights) + gap * (len(heights) - 1)
        self.figure = make_subplots(
            rows=len(heights),
            cols=self.num_columns,
            row_heights=heights,
            vertical_spacing=gap / inner_height if len(heights) > 1 else 0,
            specs=self._cells(len(heights)),
        )
        if self.num_columns > 1:  # leave room for the labels of the right columns
            inner_width = self.width - self.left - RIGHT
            between = LEFT if self.comparison.swept else 36
            gaps = between * (self.num_columns - 1)
            share = (inner_width - gaps) / self.num_columns / inner_width
            middle = [[(1 - share) / 2, (1 + share) / 2]] if self.num_columns == 3 else []
            for col, domain in enumerate([[0, share], *middle, [1 - share, 1]], 1):
                self.figure.update_xaxes(domain=domain, col=col)
        return inner_height

    def _height(self, panel: Panel) -> int:
        """Return the height of a panel in pixels: curves, or a list of rows."""
        if self.comparison.swept and panel.column is not None:
            return PANEL_HEIGHT
        names = self.names if panel.column is None else self.score_names
        return 16 + sum(ROW_HEIGHT + 12 * name.count("<br>") for name in names)

    def _cells(self, num_rows: int) -> list[list[dict[str, Any] | None]]:
        """Return plotly's settings of each cell; None where there is no panel."""
        places = {(panel.row, panel.col) for panel in self.panels}
        return [
            [{} if (row + 1, col + 1) in places else None for col in range(self.num_columns)]
            for row in range(num_rows)
        ]

    def _finish(self, inner_height: int) -> None:
        """Add legend and caption, and set the margins."""
        top = 16
        if self.comparison.swept:  # a legend stands above the panels
            top = 44
        self.figure.update_layout(
            legend={
                "orientation": "h",
                "x": 0,
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "font": {"size": FONT},
            }
        )
        height = top + inner_height + AXIS + 18
        finish(self.figure, _caption(self.comparison), width=self.width, height=height, top=top)
        self.figure.update_layout(
            margin_l=self.left, barmode="overlay", showlegend=bool(self.comparison.swept)
        )
        self.figure.layout.annotations[-1].xshift = 20 - self.left

    # ------------------------------------------------------------------------------ scores

    def _draw_scores(self, panel: Panel) -> None:
        """Draw the scores of all rows, their differences to the first row, or their gains."""
        column = panel.column
        if column is None:
            return
        title, estimate = self._estimates(panel.kind, column)
        percentages = [_percentage(estimate(row, column)) for row in self.comparison.rows]
        if panel.kind == "score":
            percentages = [_within_percent(estimate) for estimate in percentages]
        if self.comparison.swept:
            self._draw_curves(panel, percentages, title)
        else:
            self._draw_list(panel, percentages, title)
        start = self.comparison.start_score(column)
        if panel.kind == "score":
            ends = [end for estimate in filter(None, percentages) for end in _ends(estimate)]
            self._limit_scores(panel, [*ends, *([] if start is None else [100 * start])])
        if panel.kind == "score" and start is not None:
            self._draw_reference(panel, 100 * start)
            self._draw_start(panel, 100 * start)
        elif panel.kind != "score":
            self._draw_reference(panel, 0)
        if panel.kind == "gain" and start is not None:
            self._draw_start(panel, 0)

    def _draw_reference(self, panel: Panel, value: float) -> None:
        """Draw a dotted line through a panel at the value that others are compared with."""
        if self.comparison.swept:
            self.figure.add_hline(y=value, line=REFERENCE_LINE, **panel.place)
        else:
            self.figure.add_vline(x=value, line=REFERENCE_LINE, **panel.place)

    def _limit_scores(self, panel: Panel, ends: Sequence[float]) -> None:
        """Let the axis of scores show all error bars, and end at 0 and 100 %."""
        if ends:
            update = self.figure.update_yaxes if self.comparison.swept else self.figure.update_xaxes
            update(range=accuracy_range(ends), **panel.place)

    def _estimates(
        self, kind: PanelKind, column: Column
    ) -> tuple[str, Callable[[Row, Column], Estimate | None]]:
        """Return the title of a panel, and the function that estimates its values."""
        if kind == "score":
            return f"{column[1]}, %", self.comparison.score
        unit = "" if self.num_columns == 3 else ", points"  # there is no room beside three panels
        if kind == "gain":
            return f"{column[1]}: gain{unit}", self.comparison.gain
        return f"{column[1]}: difference{unit}", self.comparison.difference

    def _draw_start(self, panel: Panel, score: float) -> None:
        """Mark the weights off the shelf at their score, in percent, or at their gain, 0.

        In a sweep the dotted line shows them, and an entry of the legend names it.
        """
        place: dict[str, Any] = {"x": [score], "y": [OFF_THE_SHELF], "mode": "markers"}
        if self.comparison.swept:
            _, positions = _value_axis(self.comparison.rows)
            place = {"x": [positions[0]], "y": [score], "mode": "lines"}
        self.figure.add_scatter(
            **place,
            line=REFERENCE_LINE,
            marker={"color": INK, "symbol": "diamond-open", "size": 9},
            text=[f"{OFF_THE_SHELF}: {score:.2f}"],
            hovertemplate="%{text}<extra></extra>",
            name=OFF_THE_SHELF,
            legendgroup=OFF_THE_SHELF,
            showlegend=bool(self.comparison.swept) and panel is self.panels[0],
            cliponaxis=False,
            **panel.place,
        )

    def _draw_list(self, panel: Panel, estimates: Sequence[Estimate | None], title: str) -> None:
        """Draw one marker per row, from top to bottom."""
        for row, name, estimate in zip(self.comparison.rows, self.names, estimates, strict=True):
            if estimate:
                self.figure.add_scatter(
                    x=[estimate.mean],
                    y=[name],
                    error_x=_error_bars([estimate]),
                    mode="markers",
                    marker=self.looks[row.method].marker(9, max_shown=0),
                    text=[_hover_text(row.name, estimate)],
                    hovertemplate="%{text}<extra></extra>",
                    name=plain(row.name),
                    showlegend=False,
                    cliponaxis=False,
                    **panel.place,
                )
        frame(self.figure, x=title, y="", row=panel.row, col=panel.col)
        self._list_rows(panel)

    def _list_rows(self, panel: Panel) -> None:
        """Name the rows on the vertical axis of the leftmost panels."""
        order = (self.names if panel.column is None else self.score_names)[::-1]
        self.figure.update_yaxes(
            type="category",
            categoryorder="array",
            categoryarray=order,
            range=[-0.6, len(order) - 0.4],
            **panel.place,
        )
        self.figure.update_yaxes(
            showticklabels=panel.col == 1,
            ticks="",
            tickfont={"size": SMALL + 1},
            **panel.place,
        )
        self.figure.update_xaxes(nticks=6, **panel.place)

    def _draw_curves(self, panel: Panel, estimates: Sequence[Estimate | None], title: str) -> None:
        """Draw one line per method against the swept value.

        A method without the setting is a horizontal line, with its interval right of all values.
        """
        values, positions = _value_axis(self.comparison.rows)
        margin = (positions[-1] - positions[0]) / 12 or 0.1
        right = positions[-1]
        for method in dict.fromkeys(row.method for row in self.comparison.rows):
            points = [
                (row, estimate)
                for row, estimate in zip(self.comparison.rows, estimates, strict=True)
                if row.method == method and estimate
            ]
            points.sort(key=lambda point: _value_index(values, point[0]))
            x = [positions[values.index(row.value)] for row, _ in points if row.value is not None]
            bars = _error_bars([estimate for _, estimate in points])
            if len(points) == 1 and points[0][0].value is None:
                right += margin
                points = points * 2
                x = [positions[0], right]
                bars |= {key: [0, *bars[key]] for key in ("array", "arrayminus")}
            self.figure.add_scatter(
                x=x,
                y=[estimate.mean for _, estimate in points],
                error_y=bars,
                mode="lines+markers",
                line=self.looks[method].line(1.8),
                marker=self.looks[method].marker(9, max_shown=0),
                text=[_hover_text(row.name, estimate) for row, estimate in points],
                hovertemplate="%{text}<extra></extra>",
                name=plain(display_row_name(method)),
                legendgroup=method,
                showlegend=panel is self.panels[0],
                cliponaxis=False,
                **panel.place,
            )
        frame(
            self.figure, x=plain(self.comparison.swept or ""), y=title, row=panel.row, col=panel.col
        )
        labels = [plain(_value_text(value)) for value in values]
        self.figure.update_xaxes(tickvals=positions, ticktext=labels, **panel.place)
        self.figure.update_xaxes(range=[positions[0] - margin, right + margin], **panel.place)

    # ------------------------------------------------------------------------------ costs

    def _draw_time(self, panel: Panel) -> None:
        """Draw the time of a step as a grey bar, and the loss in it as a black one."""
        rows = self.comparison.rows
        self._draw_bars(panel, [row.step_ms for row in rows], "step, ms", BAR, 0.62)
        self._draw_bars(panel, [row.loss_ms for row in rows], "the loss in it, ms", "black", 0.24)
        self._finish_bars(panel, "ms per step; black: the loss")

    def _draw_memory(self, panel: Panel) -> None:
        """Draw the peak memory as a grey bar."""
        memory = [row.peak_mb for row in self.comparison.rows]
        self._draw_bars(panel, memory, "peak memory, MB", BAR, 0.62)
        self._finish_bars(panel, "peak memory, MB")

    def _draw_bars(
        self, panel: Panel, values: Sequence[float | None], name: str, colour: str, width: float
    ) -> None:
        """Draw one bar per row."""
        self.figure.add_bar(
            y=self.names,
            x=list(values),
            orientation="h",
            name=name,
            width=width,
            marker={"color": colour, "line": {"color": INK, "width": 1}},
            hovertemplate=f"{name}: %{{x:,.4~r}}<extra></extra>",
            showlegend=False,
            **panel.place,
        )

    def _finish_bars(self, panel: Panel, title: str) -> None:
        """Label the axes of a panel with bars."""
        frame(self.figure, x=title, y="", row=panel.row, col=panel.col)
        self._list_rows(panel)
        self.figure.update_xaxes(rangemode="tozero", **panel.place)


# ------------------------------------------------------------------------------ numbers and words


def _caption(comparison: Comparison) -> str:
    """Return the sentences beneath the figure."""
    seeds = len(comparison.seeds)
    sentences = ["One seed: differences may be due to chance."]
    if seeds > 1:
        sentences = [f"Means over {seeds} seeds with 95 % intervals."]
    if seeds == 2:
        sentences = ["Means of two seeds; bars end at both values."]
    if len(comparison.rows) > 1 and comparison.columns:
        first = comparison.rows[0]
        name = first.name.replace(first.method, display_row_name(first.method), 1)
        sentences.append(f"Differences are to {name}, paired by seed.")
    if comparison.off_the_shelf:
        sentences.append(
            "Gains, in percentage points, are over the weights that all runs started from, "
            f"{OFF_THE_SHELF} (dotted)."
        )
    protocols = dict.fromkeys(
        f"{result.protocol['name']} on {printable(result.protocol['data'])}"
        for result in comparison.protocols.values()
    )
    criteria = any(run.criteria for row in comparison.rows for run in row.runs)
    missing = "No scores: see the table without labels" if criteria else "No run is evaluated yet"
    sentences.append(f"{'; '.join(protocols) or missing}.")
    if "device" in comparison.about:
        sentences.append(f"{comparison.about['device']}.")
    if comparison.swept:
        sentences.append(f"The value after a name is {comparison.swept}.")
    if comparison.failed:
        failed = ", ".join(f"{name}, seed {run.seed}" for name, run in comparison.failed)
        sentences.append(f"Failed: {failed}.")
    return " ".join(sentences)


def _row_label(row: Row) -> str:
    """Return the method of a row, and its swept value if it has one."""
    value = "" if row.value is None else f", {_value_text(row.value)}"
    return plain(display_row_name(row.method) + value)


def _value_text(value: Any) -> str:
    """Format a swept value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value_axis(rows: Sequence[Row]) -> tuple[list[Any], list[float]]:
    """Return the swept values and their positions: logarithmic, linear, or in order of rows."""
    values = list({str(row.value): row.value for row in rows if row.value is not None}.values())
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return values, [float(i) for i in range(len(values))]
    values = sorted(values)
    if values[0] > 0:
        return values, [math.log10(value) for value in values]
    return values, [float(value) for value in values]


def _value_index(values: Sequence[Any], row: Row) -> int:
    """Return where the value of a row stands among the swept values; -1 if it has none."""
    return -1 if row.value is None else values.index(row.value)


def _percentage(estimate: Estimate | None) -> Estimate | None:
    """Multiply an estimate by 100."""
    if estimate is None:
        return None
    low = None if estimate.low is None else 100 * estimate.low
    high = None if estimate.high is None else 100 * estimate.high
    each = tuple(100 * value for value in estimate.values)
    return Estimate(100 * estimate.mean, low, high, estimate.seeds, each)


def _within_percent(estimate: Estimate | None) -> Estimate | None:
    """Cut an interval at 0 and 100: no accuracy is outside."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(0.0, estimate.low), high=min(100.0, estimate.high))


def _ends(estimate: Estimate) -> tuple[float, float]:
    """Return both ends of an error bar: the values of two seeds, or the interval."""
    if len(estimate.values) == 2:
        return min(estimate.values), max(estimate.values)
    if estimate.low is None or estimate.high is None:
        return estimate.mean, estimate.mean
    return estimate.low, estimate.high


def _error_bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the error bars of estimates as plotly takes them."""
    ends = [_ends(estimate) for estimate in estimates]
    return {
        "type": "data",
        "array": [high - e.mean for e, (_, high) in zip(estimates, ends, strict=True)],
        "arrayminus": [e.mean - low for e, (low, _) in zip(estimates, ends, strict=True)],
        "visible": any(estimate.high is not None for estimate in estimates),
        "thickness": 1.4,
        "width": 4,
    }


def _hover_text(name: str, estimate: Estimate) -> str:
    """Return the hover text of a marker."""
    text = f"{plain(name)}: {estimate.mean:.2f}"
    if len(estimate.values) == 2:
        text += f", {min(estimate.values):.2f} and {max(estimate.values):.2f}"
    elif estimate.low is not None and estimate.high is not None:
        text += f", {estimate.low:.2f} to {estimate.high:.2f}"
    seeds = ", ".join(map(str, estimate.seeds))
    return f"{text}, seed{'s' if len(estimate.seeds) > 1 else ''} {seeds}"
