"""A document with one of each block."""

import base64
import io

from PIL import Image

from smi.pages import (
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


def _pixel():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 30, 30)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


PIXEL = _pixel()
HOSTILE = (
    "<img src=x onerror=window.hurt=1>",
    "</script><script>window.hurt=1</script>",
    '"onmouseover="window.hurt=1',
    "'><svg onload=window.hurt=1>",
    '<a href="javascript:window.hurt=1">x</a>',
    "\u202egnp.exe\u2066 \x00\x1b[31m",
    "<!-- --!> ]]> &lt;b&gt; %{x} ${1} `x`",
)


def plot(name="SMI", words="Loss", beside=1):
    axes = {
        "xaxis": {"domain": [0, 0.45], "anchor": "y"},
        "yaxis": {"domain": [0, 1], "anchor": "x"},
    }
    more = (
        {
            "xaxis2": {"domain": [0.55, 1], "anchor": "y2"},
            "yaxis2": {"domain": [0, 1], "anchor": "x2"},
        }
        if beside > 1
        else {}
    )
    line = {
        "type": "scatter",
        "x": [1, 2, 3],
        "y": [3, 1, 2],
        "name": name,
        "mode": "lines+markers",
        "text": [name] * 3,
    }
    data = [line | {"showlegend": True}]
    data += [data[0] | {"xaxis": "x2", "yaxis": "y2", "showlegend": False}] if more else []
    layout = {"title": {"text": words}, "height": 400, **(axes if more else {}), **more}
    return Plot(words, data, layout, f"Lines of {name}.")


def document():
    places = [[-1, -1, -1], [1, 1, 1], [1, -1, 0.5], [0, 0, 0]]
    cloud = Cloud("t-SNE", "s", places, "Four images.")
    gallery = Gallery(
        "Neighbours",
        [
            (
                "",
                [
                    Tile(PIXEL, "query", ("cat", "a.png"), "query"),
                    Tile(PIXEL, "near", ("cat", "0.9"), "same"),
                ],
            )
        ],
    )
    wide = Table("Wide", ["", *map(str, range(30))], [["row", *["12.34 ± 0.56"] * 30]])
    return Document(
        "Two runs on digits",
        "Made up.",
        {
            "Overview": [
                Section(
                    "Health",
                    [
                        Verdict(
                            "ok",
                            "SMI",
                            "It looks healthy.",
                            "finished",
                            [Finding("ok", "Finite.", "10 lines")],
                        )
                    ],
                ),
                wide,
                Missing("Not there: `smi evaluate`.", "smi evaluate runs/x"),
                Facts([("Data", "digits")]),
            ],
            "Features": [
                plot(beside=2),
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
        {
            "s": Sample(
                ["a.png", "b.png", "c.png", "d.png"], [PIXEL] * 4, [0, 1, 0, 1], ["cat", "dog"]
            )
        },
        "Written by a test.",
    )


def hostile(name):
    """The same name wherever one may stand."""
    return Document(
        name,
        name,
        {
            "Overview": [
                Section(
                    name,
                    [Verdict("warning", name, name, name, [Finding("warning", name, name, name)])],
                ),
                Table(name, ["", name], [[name, name]], [name]),
                Facts([(name, name)]),
                Missing(name, name),
                Code(name, name),
                Text(name),
            ],
            "Features": [
                plot(name, name),
                Chooser(
                    name,
                    {name: [Cloud(name, "s", [[0, 0, 0], [1, 1, 1]], name)], "other": [Text(name)]},
                ),
                Gallery(name, [(name, [Tile(PIXEL, name, (name,), "query")])], name, (name,)),
            ],
        },
        {"s": Sample([name] * 2, [PIXEL] * 2, [0, 1], [name, "b"])},
        name,
    )
