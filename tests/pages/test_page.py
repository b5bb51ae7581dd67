"""The page alone, of documents that are made up: structure, escaping, size, nothing from elsewhere."""

import base64
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from smi.pages import Document, Gallery, Plot, Table, Text, Tile, page
from smi.pages.escape import in_html, in_plotly, in_script, visible
from smi.pages.plots import plot, thinned
from support.made_up_page import HOSTILE, PIXEL, document, hostile


class Reader(HTMLParser):
    """Elements with their attributes, and the text that is shown."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self._inside = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" not in self._inside and "style" not in self._inside:
            self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def plain():
    return page(document())


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )


def test_every_tab_has_its_panel_and_every_picture_its_words(plain):
    read = Reader(plain)
    tabs = [attrs for attrs in read.all("a") if attrs.get("role") == "tab"]
    panels = {
        attrs["id"]: attrs for attrs in read.all("section") if attrs.get("role") == "tabpanel"
    }
    assert (
        [tab["aria-controls"] for tab in tabs]
        == list(panels)
        == ["overview", "features", "settings"]
    )
    assert all(panels[tab["aria-controls"]]["aria-labelledby"] == tab["id"] for tab in tabs)
    assert all(image["alt"] for image in read.all("img"))
    identifiers = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))


def test_nothing_comes_from_elsewhere(plain):
    read = Reader(plain)
    linked = [
        (tag, value)
        for tag, attrs in read.elements
        for name, value in attrs.items()
        if name in ("src", "href", "action", "srcset")
    ]
    assert all(tag == "a" and value.startswith("#") for tag, value in linked)
    assert not read.all("link")
    assert "@import" not in plain.split("</style>")[0]
    policy = next(
        attrs["content"]
        for attrs in read.all("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    assert plain.count("<script") == 3  # data, plotly.js and ours
    assert len(plain) < 5_200_000  # of which plotly.js is 4.8


def test_a_picture_that_is_shown_often_is_there_once():
    many = page(
        Document("t", "", {"A": [Gallery("g", [("", [Tile(PIXEL, "a"), Tile(PIXEL, "b")])] * 9)]})
    )
    assert many.count(PIXEL.split(",")[1]) == 1
    with pytest.raises(ValueError, match="data: URL"):
        page(
            Document(
                "t", "", {"A": [Gallery("g", [("", [Tile("https://example.org/x.png", "a")])])]}
            )
        )


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_and_do_nothing(name, plain):
    text = page(hostile(name))
    read, before = Reader(text), Reader(plain)
    assert {tag for tag, _ in read.elements} <= {tag for tag, _ in before.elements}
    assert text.count("<script") == 3
    assert not [key for _, attrs in read.elements for key in attrs if key.startswith("on")]
    assert visible(name).strip() in "".join(read.words)
    found = data_of(text)
    assert found["samples"]["s"]["names"] == [visible(name)] * 2
    for words in (
        found["plots"][0]["data"][0]["name"],
        found["plots"][0]["layout"]["title"]["text"],
    ):
        assert not re.search(r"<(?!/?(b|i|extra)>|br>)", words)


def test_escapes():
    assert in_html('<a b="c">\'&') == "&lt;a b=&quot;c&quot;&gt;&#x27;&amp;"
    assert visible("a\u202eb\x00\ud800\u2066") == "a\\u202eb\\u0000\\ud800\\u2066"
    assert in_plotly(
        {"text": ["<b>x</b><br>", "<a href='x'>y</a>", "<br onload=x>", np.float64(1)]}
    )["text"][:3] == [
        "<b>x</b><br>",
        "&lt;a href='x'>y&lt;/a>",
        "&lt;br onload=x>",
    ]
    assert in_plotly(np.array(["<img>"], dtype=object)) == ["&lt;img>"]
    assert json.loads(in_script(["</script>", math.nan, "\u2028"])) == ["</script>", None, "\u2028"]
    assert "<" not in in_script("</script><!--")


def test_long_lines_are_thinned_to_points_of_their_own():
    y = np.random.default_rng(0).normal(size=20_000)
    y[777], y[13_000] = 50, -50  # peaks that must not be lost
    trace = {
        "type": "scatter",
        "x": list(range(20_000)),
        "y": y.tolist(),
        "customdata": (2 * y).tolist(),
        "marker": {"maxdisplayed": 9},
    }
    found = thinned(trace)
    assert 400 < len(found["y"]) <= 500
    assert found["x"][0] == 0
    assert found["x"][-1] == 19_999
    assert {777, 13_000} <= set(found["x"])
    assert [y[i] for i in found["x"]] == found["y"]
    assert found["customdata"] == [2 * value for value in found["y"]]
    assert thinned({"type": "bar", "x": [1] * 900, "y": [1] * 900})["y"] == [1] * 900


def test_a_figure_loses_its_caption_to_the_page_and_numbers_their_tails():
    packed = {
        "dtype": "f8",
        "bdata": base64.b64encode(np.array([1 / 3, math.nan]).tobytes()).decode(),
    }
    layout = {
        "meta": {"caption": "What it is."},
        "annotations": [{"name": "caption", "text": "What<br>it is."}, {"text": "kept"}],
    }
    found = plot(
        "t",
        {
            "data": [{"type": "scatter", "x": packed, "y": (1, 2)}],
            "layout": layout | {"height": 500, "width": 900},
        },
    )
    assert found.caption == "What it is."
    assert [note["text"] for note in found.layout["annotations"]] == ["kept"]
    assert "width" not in found.layout
    assert found.layout["height"] < 500
    assert found.data[0]["x"][0] == 0.333333
    assert math.isnan(found.data[0]["x"][1])
    assert data_of(page(Document("t", "", {"A": [found]})))["plots"][0]["data"][0]["x"] == [
        0.333333,
        None,
    ]


def test_tables_have_headings():
    read = Reader(
        page(
            Document(
                "t",
                "",
                {
                    "A": [
                        Table("T", ["", "a"], [["row", "1"]], ["note"]),
                        Text("x"),
                        Plot("p", [], {}),
                    ]
                },
            )
        )
    )
    assert [attrs.get("scope") for attrs in read.all("th")] == ["col", "col", "row"]


def test_pages_are_made_without_torch():
    code = "import sys, smi.pages, smi.pages.plots; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
