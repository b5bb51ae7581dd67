"""A document of plain data becomes one HTML page that needs nothing else. Nothing here knows torch, nor what a run is.

page(Document("Two runs", "…", {"Overview": [Text("…"), Plot("loss", data, layout)]}))
"""

from smi.pages.blocks import (
    Block,
    Chooser,
    Cloud,
    Code,
    Document,
    Facts,
    Finding,
    Gallery,
    Missing,
    Plot,
    Sample,
    Section,
    Table,
    Text,
    Tile,
    Verdict,
)
from smi.pages.page import page

__all__ = [
    "Block",
    "Chooser",
    "Cloud",
    "Code",
    "Document",
    "Facts",
    "Finding",
    "Gallery",
    "Missing",
    "Plot",
    "Sample",
    "Section",
    "Table",
    "Text",
    "Tile",
    "Verdict",
    "page",
]
