"""Turn a document of plain data into one HTML page that needs no other file and no network.

page(Document("Two runs", "…", {"Overview": [Text("…"), Plot("Loss", data, layout)]}))

This package knows neither torch nor runs.
"""

from smi.pages.blocks import (
    Block,
    Chooser,
    ClaimBlock,
    ClaimSummary,
    Cloud,
    Code,
    Document,
    Facts,
    Finding,
    Gallery,
    Link,
    Links,
    Missing,
    Outcome,
    Picture,
    Plot,
    Sample,
    Section,
    TableBlock,
    Text,
    Tile,
    Verdict,
)
from smi.pages.escape import data_url
from smi.pages.page import page

__all__ = [
    "Block",
    "Chooser",
    "ClaimBlock",
    "ClaimSummary",
    "Cloud",
    "Code",
    "Document",
    "Facts",
    "Finding",
    "Gallery",
    "Link",
    "Links",
    "Missing",
    "Outcome",
    "Picture",
    "Plot",
    "Sample",
    "Section",
    "TableBlock",
    "Text",
    "Tile",
    "Verdict",
    "data_url",
    "page",
]
