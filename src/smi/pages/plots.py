"""Turn plotly figures into small plain values for a page.

Dense lines are thinned, numbers have six digits, and the caption becomes text of the page.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.pages.blocks import Plot

MAX_LINE_POINTS = 500
NUM_DIGITS = 6
CAPTION = "caption"  # the name of the annotation that holds a figure's caption
CAPTION_LINE = 17  # pixels, the height of one line of a caption
CAPTION_MARGIN = 14  # pixels between the caption and the axis
FIXED_KINDS = ("image", "heatmap", "scatter3d")  # traces in panels of a fixed shape


def plot(title: str, figure: Mapping[str, Any], *, max_points: int = MAX_LINE_POINTS) -> Plot:
    """Return a block that shows a figure, which is given as `to_plotly_json` returns it.

    max_points: longer lines are thinned to this many points.
    """
    values = _plain(figure)
    layout = {
        key: value
        for key, value in values["layout"].items()
        if key not in ("template", "width", "meta")
    }
    caption = (values["layout"].get("meta") or {}).get("caption", "")
    notes = layout.get("annotations", [])
    layout["annotations"] = [note for note in notes if note.get("name") != CAPTION]
    lines = sum(note["text"].count("<br>") + 1 for note in notes if note.get("name") == CAPTION)
    if lines:  # give back the space that the caption took
        margin = layout.get("margin", {})
        space = CAPTION_LINE * lines + CAPTION_MARGIN
        layout["margin"] = margin | {"b": margin.get("b", 80) - space}
        layout["height"] = layout.get("height", 450) - space
    return Plot(title, [thinned(trace, max_points) for trace in values["data"]], layout, caption)


def single_plot(figure: Mapping[str, Any], file_name: str) -> Plot:
    """Return a block for a page that shows one figure, with a button that saves it as SVG.

    Every point is kept. A figure of images or of points in three dimensions keeps its width.
    file_name: of the saved SVG, without the suffix.
    """
    block = plot("", figure, max_points=2**31)
    paper = {key: value for key, value in _plain(figure["layout"]).items() if key != "template"}
    fixed = any(trace.get("type") in FIXED_KINDS for trace in block.data)
    width = int(paper["width"]) if fixed and paper.get("width") else None
    return replace(block, width=width, paper=paper, file_name=file_name)


def thinned(trace: dict[str, Any], max_points: int = MAX_LINE_POINTS) -> dict[str, Any]:
    """Keep the ends of a long line, and the lowest and highest point of each stretch of it.

    Every point that is shown is a point of the line, and no peak is lost.
    """
    x = trace.get("x")
    y = trace.get("y")
    is_line = trace.get("type", "scatter") == "scatter"
    if not is_line or not isinstance(x, list) or not isinstance(y, list) or len(y) <= max_points:
        return trace
    values = np.array([math.nan if value is None else value for value in y], dtype=np.float64)
    indices = _extremes(values, max_points)
    return {key: _select(value, indices, len(y)) for key, value in trace.items()}


def _extremes(values: NDArray[np.float64], max_points: int) -> list[int]:
    """Return the indices of the ends and of the extremes of equal stretches."""
    indices = {0, len(values) - 1}
    for part in np.array_split(np.arange(len(values)), (max_points - 2) // 2):
        stretch = values[part]
        if np.isfinite(stretch).any():
            indices |= {int(part[np.nanargmin(stretch)]), int(part[np.nanargmax(stretch)])}
        else:
            indices.add(int(part[0]))  # a gap stays a gap
    return sorted(indices)


def _select(value: Any, indices: Sequence[int], length: int) -> Any:
    """Select the same points in every list that has one value per point."""
    if isinstance(value, dict):
        return {key: _select(item, indices, length) for key, item in value.items()}
    if isinstance(value, list) and len(value) == length:
        return [value[i] for i in indices]
    return value


def _plain(value: Any) -> Any:
    """Return lists, dictionaries, texts and numbers; plotly's packed arrays are unpacked."""
    if isinstance(value, Mapping):
        if set(value) >= {"dtype", "bdata"}:
            array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
            if shape := value.get("shape"):
                array = array.reshape([int(size) for size in str(shape).split(",")])
            return _plain(array)
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{NUM_DIGITS}g}")
    return value
