"""What runs logged, one line for each: loss, accuracy, feature std, effective rank, gradient norm, redundancy ÷ alignment."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smi.analysis.style import COLOURS, DASHES
from smi.checkpoint import write_text
from smi.run import Run

Line = Mapping[str, Any]

PANELS: tuple[tuple[str, Callable[[Line], Any], bool], ...] = (
    ("loss, as a share of its first value", lambda line: line["loss"], False),
    ("kNN accuracy on held-out images", lambda line: line["probe"]["knn"], False),
    ("feature std", lambda line: line["feature_std"], False),
    ("effective rank", lambda line: line["effective_rank"], False),
    ("gradient norm", lambda line: line["gradient_norm"], True),
    ("redundancy ÷ alignment", lambda line: line["ratio"], True),
)


def write_curves(runs: Mapping[str, Run], path: Path) -> None:
    """A page that opens without a network: hover for values, drag to zoom, click a name to hide it."""
    write_text(path, figure(runs).to_html(include_plotlyjs=True, config={"displaylogo": False}))


def figure(runs: Mapping[str, Run]) -> Any:
    from plotly.graph_objects import Scatter  # type: ignore[import-untyped,unused-ignore]
    from plotly.subplots import make_subplots  # type: ignore[import-untyped,unused-ignore]

    found = make_subplots(rows=3, cols=2, subplot_titles=[title for title, _, _ in PANELS], vertical_spacing=0.1)
    for number, (name, run) in enumerate(runs.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]}
        for panel, (title, value, log) in enumerate(PANELS):
            lines = run.probes() if "kNN" in title else run.metrics()
            y = [value(line) for line in lines]
            if panel == 0:
                y = _relative(y)
            row, col = panel // 2 + 1, panel % 2 + 1
            x = [line["epoch"] for line in lines]
            found.add_trace(
                Scatter(x=x, y=y, name=name, legendgroup=name, showlegend=panel == 0, line=style, mode="lines"), row=row, col=col
            )
            found.update_xaxes(title_text="epoch", row=row, col=col)
            if log:
                found.update_yaxes(type="log", row=row, col=col)
    found.update_layout(
        template="plotly_white", height=900, margin={"t": 60, "l": 60, "r": 20, "b": 50}, legend={"orientation": "h", "y": 1.08}
    )
    return found


def _relative(values: Sequence[float]) -> list[float]:
    """Losses of different objectives are numbers of different sizes."""
    return [value / values[0] if values[0] else value for value in values]
