"""Plotly figures as plain, small values: what is dense is thinned, numbers have six digits, the caption is text of the page."""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.pages.blocks import Plot

MOST = 500  # points of a line
DIGITS = 6
CAPTION = "caption"


def plot(title: str, figure: Mapping[str, Any]) -> Plot:
    """figure: as `to_plotly_json` gives it."""
    found = _plain(figure)
    layout = {
        key: value
        for key, value in found["layout"].items()
        if key not in ("template", "width", "meta")
    }
    caption = (found["layout"].get("meta") or {}).get("caption", "")
    notes = layout.get("annotations", [])
    layout["annotations"] = [note for note in notes if note.get("name") != CAPTION]
    lines = sum(note["text"].count("<br>") + 1 for note in notes if note.get("name") == CAPTION)
    if lines:  # room that the caption took
        margin = layout.get("margin", {})
        taken = 17 * lines + 14
        layout["margin"] = margin | {"b": margin.get("b", 80) - taken}
        layout["height"] = layout.get("height", 450) - taken
    return Plot(title, [thinned(trace) for trace in found["data"]], layout, caption)


def thinned(trace: dict[str, Any], most: int = MOST) -> dict[str, Any]:
    """Of a long line the ends, and of every stretch its lowest and highest point: what is shown is true, and no peak is lost."""
    x, y = trace.get("x"), trace.get("y")
    if (
        trace.get("type", "scatter") != "scatter"
        or not isinstance(x, list)
        or not isinstance(y, list)
        or len(y) <= most
    ):
        return trace
    kept = _extremes(
        np.array([math.nan if value is None else value for value in y], dtype=np.float64), most
    )
    return {key: _chosen(value, kept, len(y)) for key, value in trace.items()}


def _extremes(values: NDArray[np.float64], most: int) -> list[int]:
    found = {0, len(values) - 1}
    for part in np.array_split(np.arange(len(values)), (most - 2) // 2):
        some = values[part]
        if np.isfinite(some).any():
            found |= {int(part[np.nanargmin(some)]), int(part[np.nanargmax(some)])}
        else:
            found.add(int(part[0]))  # a gap stays one
    return sorted(found)


def _chosen(value: Any, kept: Sequence[int], length: int) -> Any:
    """The same points of everything that has one value for each."""
    if isinstance(value, dict):
        return {key: _chosen(item, kept, length) for key, item in value.items()}
    if isinstance(value, list) and len(value) == length:
        return [value[i] for i in kept]
    return value


def _plain(value: Any) -> Any:
    """Lists, dictionaries, texts and numbers; arrays may come as plotly packs them."""
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
    return (
        float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value
    )
