"""Build documents that hold one block of each kind."""

import base64
import io
import json
import re

from PIL import Image

from smi.pages import (
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
    data_url,
)
from smi.tables import Group, Table


def _pixel():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 30, 30)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


PIXEL = _pixel()
DRAWING = data_url(
    b'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><path d="M0 0h40v20z"/></svg>',
    "svg",
)
HOSTILE = (
    "<img src=x onerror=window.hurt=1>",
    "</script><script>window.hurt=1</script>",
    '"onmouseover="window.hurt=1',
    "'><svg onload=window.hurt=1>",
    '<a href="javascript:window.hurt=1">x</a>',
    "javascript:window.hurt=1",
    "\u202egnp.exe\u2066 \x00\x1b[31m",
    "<!-- --!> ]]> &lt;b&gt; %{x} ${1} `x`",
)


def plot(name="SMI", title="Loss", panels=1):
    """Return a block with one line in each panel; two panels stand side by side."""
    axes = {
        "xaxis": {"domain": [0, 0.45], "anchor": "y"},
        "yaxis": {"domain": [0, 1], "anchor": "x"},
        "xaxis2": {"domain": [0.55, 1], "anchor": "y2"},
        "yaxis2": {"domain": [0, 1], "anchor": "x2"},
    }
    line = {
        "type": "scatter",
        "x": [1, 2, 3],
        "y": [3, 1, 2],
        "name": name,
        "mode": "lines+markers",
        "text": [name] * 3,
        "showlegend": True,
    }
    data = [line]
    if panels > 1:
        data.append(line | {"xaxis": "x2", "yaxis": "y2", "showlegend": False})
    layout = {"title": {"text": title}, "height": 400, **(axes if panels > 1 else {})}
    return Plot(title, data, layout, f"Lines of {name}.")


def grouped_table(title="Table 3", cell="1.0"):
    """Return a table whose columns stand under "paper" and "here"."""
    groups = (Group("", ("Data",)), Group("paper", ("SMI", "BT")), Group("here", ("SMI",)))
    return Table(groups, ((("digits",), (cell, "2.0"), ("3.0",)),), title, ("A note.",))


def claims(name="gradient", words="It is smaller."):
    """Return two claims: one that holds and was measured, one that is open."""
    numbers = Table.of(["", "SMI"], [["norm", "0.5"]])
    held = Outcome("ok", "holds", words, "digits", numbers)
    failed = Outcome("stop", "does not hold", words, "cifar10")
    return (
        ClaimBlock(name, words, [("The paper", words), ("Measured here", words)], [held, failed]),
        ClaimBlock(f"{name}-2", words, [], [Outcome("unknown", "open", words)], [words]),
    )


def document():
    """Return a report with three tabs."""
    points = [[-1, -1, -1], [1, 1, 1], [1, -1, 0.5], [0, 0, 0]]
    cloud = Cloud("t-SNE", "s", points, "Four images.")
    query = Tile(PIXEL, "query", ("cat", "a.png"), "query")
    near = Tile(PIXEL, "near", ("cat", "0.9"), "same")
    gallery = Gallery("Neighbours", [("", [query, near])])
    wide = Table.of(["", *map(str, range(30))], [["row", *["12.34 ± 0.56"] * 30]], title="Wide")
    finding = Finding("ok", "Finite.", "10 lines")
    verdict = Verdict("ok", "SMI", "It looks healthy.", "finished", [finding])
    names = ["a.png", "b.png", "c.png", "d.png"]
    return Document(
        "Two runs on digits",
        "Made up.",
        {
            "Overview": [
                Section("Health", [verdict]),
                TableBlock(wide),
                Missing("Not there: `smi evaluate`.", "smi evaluate runs/x"),
                Facts([("Data", "digits")]),
            ],
            "Features": [
                plot(panels=2),
                Chooser(
                    "Run",
                    {"SMI": [cloud, gallery], "Barlow Twins": [plot("Barlow Twins", "Other")]},
                ),
            ],
            "Settings": [
                Code("epochs: 10", "Configuration"),
                Text("Words."),
                Chooser("Run", {"SMI": [Text("a")], "Barlow Twins": [Text("b")]}),
            ],
        },
        {"s": Sample(names, [PIXEL] * 4, [0, 1, 0, 1], ["cat", "dog"])},
        "Written by a test.",
    )


def reproduction():
    """Return a page of claims, tables, figures and links to files."""
    both = claims()
    return Document(
        "The paper's claims",
        "Measured here.",
        {
            "Verdicts": [Facts([("Seeds", "3")]), ClaimSummary(both)],
            "Claims": list(both),
            "Tables": [
                TableBlock(
                    grouped_table(), anchor="table-3", links=[Link("Markdown", "tables/table 3.md")]
                )
            ],
            "Figures": [
                Picture(
                    "Ratio", DRAWING, "ratio", "A caption.", [Link("html", "figures/ratio.html")]
                ),
                Links("Comparison", [Link("comparison.md", "runs/a:b#c/comparison.md")]),
            ],
        },
        brand="smi reproduce",
    )


def hostile(name):
    """Return a page that has the same name in every place that takes text."""
    finding = Finding("warning", name, name, name)
    table = Table((Group("", (name,)), Group(name, (name,))), (((name,), (name,)),), name, (name,))
    link = Link(name, name)
    return Document(
        name,
        name,
        {
            "Overview": [
                Section(name, [Verdict("warning", name, name, name, [finding])], name),
                TableBlock(table, links=[link]),
                Facts([(name, name)]),
                Missing(name, name),
                Code(name, name),
                Text(name),
                Links(name, [link]),
                *claims(f"claim {name}", name),
                ClaimSummary(claims(f"claim {name}", name)),
            ],
            "Features": [
                plot(name, name),
                Picture(name, PIXEL, name, name, [link]),
                Chooser(
                    name,
                    {name: [Cloud(name, "s", [[0, 0, 0], [1, 1, 1]], name)], "other": [Text(name)]},
                ),
                Gallery(name, [(name, [Tile(PIXEL, name, (name,), "query")])], name, (name,)),
            ],
        },
        {"s": Sample([name] * 2, [PIXEL] * 2, [0, 1], [name, "b"])},
        name,
        name,
    )


def page_data(text):
    """Return the data that the script of a page draws."""
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(script[1])
