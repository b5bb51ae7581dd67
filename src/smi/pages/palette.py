"""Define every colour of pages and figures once, as plain data.

Figures are drawn for white paper. A dark page replaces each of their colours by DARK[colour].
"""

from typing import Any

# Colours of the page itself: the name of the CSS variable, then the light and the dark colour.
PAGE = {
    "paper": ("#fdfdfb", "#15171a"),
    "raised": ("#f5f4f0", "#1e2125"),
    "ink": ("#1d1f22", "#e9e7e2"),
    "faint": ("#5d6167", "#a3a7ad"),
    "rule": ("#dedcd5", "#363a40"),
    "accent": ("#0b62a3", "#6fb7ee"),
    "good": ("#15733f", "#62cf93"),
    "attention": ("#955600", "#f0b34e"),
    "broken": ("#b3261e", "#ff8b81"),
    "hover": ("#ffffff", "#2a2e33"),  # behind the text that a pointer shows
}

# One colour per run or method. Okabe and Ito chose them so that colour-blind readers can
# distinguish them. Each has a lighter version for dark pages.
_SERIES = {
    "#0072b2": "#4ea3e3",
    "#d55e00": "#ff8c42",
    "#009e73": "#34c79d",
    "#cc79a7": "#e79fca",
    "#56b4e9": "#a6dbff",
    "#e69f00": "#f7c352",
    "#000000": "#f4f4f4",
}
_MORE_CLASSES = {"#8b4513": "#cf9467", "#7f7f7f": "#a9a9a9", "#6a3d9a": "#b394e0"}
SERIES = tuple(_SERIES)
CLASSES = (*SERIES, *_MORE_CLASSES)  # one per class of a dataset

INK = "#222222"  # text and axes of a figure
CAPTION_INK = "#444444"
GRID = "#e6e6e6"
BOX_EDGE = "#dddddd"  # edges of a box in three dimensions
BAR = "#bbbbbb"
BLACK = "black"
WHITE = "white"
LEGEND_FILL = "rgba(255,255,255,0.85)"
VIOLIN_FILL = "rgba(0,0,0,0.06)"
HOVER_EDGE = "#7f7f7f"  # around the text that a pointer shows

DARK = {
    **_SERIES,
    **_MORE_CLASSES,
    INK: PAGE["ink"][1],
    CAPTION_INK: PAGE["faint"][1],
    GRID: PAGE["rule"][1],
    BOX_EDGE: PAGE["rule"][1],
    BLACK: _SERIES["#000000"],
    WHITE: PAGE["paper"][1],
    LEGEND_FILL: "rgba(21,23,26,0.85)",
    VIOLIN_FILL: "rgba(255,255,255,0.1)",
}


def css_variables() -> str:
    """Return the CSS rule that defines one variable for each colour of the page."""
    lines = [f"  --{name}: light-dark({light}, {dark});" for name, (light, dark) in PAGE.items()]
    return "\n".join([":root {", *lines, "}", ""])


def script_colours() -> dict[str, Any]:
    """Return the colours that page.js needs."""
    return {
        "classes": CLASSES,
        "dark": DARK,
        "ink": INK,
        "grid": GRID,
        "boxEdge": BOX_EDGE,
        "hover": PAGE["hover"],
        "hoverEdge": HOVER_EDGE,
    }
