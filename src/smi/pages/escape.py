"""Names from anywhere, made harmless for each place they go to."""

import html
import json
import math
import re
from typing import Any

# Plotly reads a little HTML in its texts, links among it. These are what figures write themselves; every other tag is shown as letters.
OURS = re.compile(r"<(?!/?(?:b|i|extra)>|br>)")
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Letters that cannot be seen, or turn round what follows them, become their codes."""
    return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def in_html(text: object) -> str:
    """For content and for values of attributes in double quotes."""
    return html.escape(visible(str(text)), quote=True)


def in_plotly(value: Any) -> Any:
    """A figure, or part of one, whose texts have no tags but ours."""
    if isinstance(value, str):
        return value if value.startswith("data:") else OURS.sub("&lt;", visible(value))
    if isinstance(value, dict):
        return {key: in_plotly(item) for key, item in value.items()}
    if getattr(getattr(value, "dtype", None), "kind", "") in "OU" and hasattr(
        value, "tolist"
    ):  # an array of texts
        return in_plotly(value.tolist())
    if isinstance(value, list | tuple):
        return [in_plotly(item) for item in value]
    return value


def in_script(value: Any) -> str:
    """JSON that cannot end the script it stands in; what is no number is null."""
    return json.dumps(
        _finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False
    ).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
