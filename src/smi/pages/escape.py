"""Escape untrusted names and text for each part of a page that uses them."""

import base64
import html
import json
import re
from typing import Any, Literal
from urllib.parse import quote

from smi.files import finite

# Plotly interprets a little HTML in its texts, links included. Figures write only these tags;
# every other tag is shown as letters.
FOREIGN_TAG = re.compile(r"<(?!/?(?:b|i|extra)>|br>)")
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
PICTURE_URL = re.compile(r"data:image/(?:png|jpeg|webp|svg\+xml);base64,[A-Za-z0-9+/=]+")


def visible(text: str) -> str:
    """Replace characters that are invisible, or reverse the text after them, by their codes."""
    return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def in_html(text: object) -> str:
    """Escape text for HTML content and for attribute values in double quotes."""
    return html.escape(visible(str(text)), quote=True)


def in_href(target: str) -> str:
    """Escape a relative path, or an anchor that begins with #, for a link.

    Percent-encoding turns the colon of a scheme into %3A, so every path stays relative.
    """
    if target.startswith("/"):
        raise ValueError(f"a link must be a relative path or an anchor, not {target!r}")
    anchor, path = ("#", target[1:]) if target.startswith("#") else ("", target)
    return in_html(anchor + quote(path, errors="replace"))


def in_plotly(value: Any) -> Any:
    """Escape the texts of a figure, or of part of one, except the few tags that figures write."""
    if isinstance(value, str):
        return value if value.startswith("data:") else FOREIGN_TAG.sub("&lt;", visible(value))
    if isinstance(value, dict):
        return {key: in_plotly(item) for key, item in value.items()}
    if getattr(getattr(value, "dtype", None), "kind", "") in "OU" and hasattr(value, "tolist"):
        return in_plotly(value.tolist())  # an array of texts
    if isinstance(value, list | tuple):
        return [in_plotly(item) for item in value]
    return value


def in_script(value: Any) -> str:
    """Return JSON that cannot end the script element around it; NaN becomes null."""
    text = json.dumps(finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def data_url(content: bytes, kind: Literal["png", "jpeg", "webp", "svg"]) -> str:
    """Return an image file's content as a data: URL."""
    name = "svg+xml" if kind == "svg" else kind
    return f"data:image/{name};base64,{base64.b64encode(content).decode()}"
