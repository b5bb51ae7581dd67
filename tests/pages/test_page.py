"""Test pages without a browser: structure, escaping, size, and that nothing comes from outside."""

import base64
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from smi.pages import (
    Cloud,
    Document,
    Gallery,
    Link,
    Links,
    Picture,
    Plot,
    Sample,
    TableBlock,
    Text,
    Tile,
    data_url,
    page,
    palette,
)
from smi.pages.escape import in_href, in_html, in_plotly, in_script, visible
from smi.pages.plots import plot, single_plot, thinned
from smi.tables import Table
from support.made_up_page import (
    HOSTILE,
    PIXEL,
    claims,
    document,
    grouped_table,
    hostile,
    page_data,
    reproduction,
)


class Reader(HTMLParser):
    """Collect the elements of a page with their attributes, and the text that is shown."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.words = []
        self._inside = []
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


def one_tab(*blocks):
    return page(Document("t", "", {"A": list(blocks)}))


def test_every_tab_has_its_panel_and_every_picture_its_words(plain):
    read = Reader(plain)
    tabs = [attrs for attrs in read.all("a") if attrs.get("role") == "tab"]
    panels = {
        attrs["id"]: attrs for attrs in read.all("section") if attrs.get("role") == "tabpanel"
    }
    assert [tab["aria-controls"] for tab in tabs] == ["overview", "features", "settings"]
    assert list(panels) == ["overview", "features", "settings"]
    assert all(panels[tab["aria-controls"]]["aria-labelledby"] == tab["id"] for tab in tabs)
    assert all(image["alt"] for image in read.all("img"))
    identifiers = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))


def test_a_page_with_one_tab_has_no_tab_bar():
    read = Reader(one_tab(Text("x")))
    assert not read.all("nav")
    assert read.all("section") == [{"class": "panel shown"}]


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
    assert plain.count("<script") == 3  # data, plotly.js and page.js
    assert len(plain) < 5_200_000  # plotly.js takes 4.8 million


def test_a_picture_that_is_shown_often_is_stored_once():
    rows = [("", [Tile(PIXEL, "a"), Tile(PIXEL, "b")])] * 9
    assert one_tab(Gallery("g", rows)).count(PIXEL.split(",")[1]) == 1


def test_galleries_and_clouds_side_by_side():
    rows = [("a", [Tile(PIXEL, "a")]), ("b", [Tile(PIXEL, "b")])]
    assert 'class="gallery beside"' in one_tab(Gallery("g", rows, side_by_side=True))
    cloud = Cloud("t", "s", [[0, 0, 0]], half=True)
    document = Document("t", "", {"a": [cloud]}, {"s": Sample(["x"], [PIXEL])})
    assert '<figure class="half"' in page(document)


@pytest.mark.parametrize(
    "source",
    ["https://example.org/x.png", "data:text/html;base64,AAAA", 'data:image/png;base64,"'],
)
def test_a_picture_is_a_data_url(source):
    with pytest.raises(ValueError, match="data: URL"):
        one_tab(Gallery("g", [("", [Tile(source, "a")])]))
    with pytest.raises(ValueError, match="data: URL"):
        one_tab(Picture("p", source, "a"))


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_and_do_nothing(name, plain):
    text = page(hostile(name))
    read = Reader(text)
    harmless = {
        tag for source in (plain, page(reproduction())) for tag, _ in Reader(source).elements
    }
    assert {tag for tag, _ in read.elements} <= harmless
    assert text.count("<script") == 3
    assert not [key for _, attrs in read.elements for key in attrs if key.startswith("on")]
    assert not [link for link in read.all("a") if ":" in link["href"]]
    assert visible(name).strip() in "".join(read.words)
    data = page_data(text)
    assert data["samples"]["s"]["names"] == [visible(name)] * 2
    drawn = data["plots"][0]
    for words in (drawn["data"][0]["name"], drawn["layout"]["title"]["text"]):
        assert not re.search(r"<(?!/?(b|i|extra)>|br>)", words)


def test_escapes():
    assert in_html('<a b="c">\'&') == "&lt;a b=&quot;c&quot;&gt;&#x27;&amp;"
    assert visible("a\u202eb\x00\ud800\u2066") == "a\\u202eb\\u0000\\ud800\\u2066"
    texts = ["<b>x</b><br>", "<a href='x'>y</a>", "<br onload=x>", np.float64(1)]
    assert in_plotly({"text": texts})["text"] == [
        "<b>x</b><br>",
        "&lt;a href='x'>y&lt;/a>",
        "&lt;br onload=x>",
        1.0,
    ]
    assert in_plotly(np.array(["<img>"], dtype=object)) == ["&lt;img>"]
    assert json.loads(in_script(["</script>", math.nan, "\u2028"])) == ["</script>", None, "\u2028"]
    assert "<" not in in_script("</script><!--")


def test_links_stay_relative():
    assert in_href("figures/a b.html") == "figures/a%20b.html"
    assert in_href("#table-3") == "#table-3"
    assert in_href("javascript:x") == "javascript%3Ax"
    for target in ("//example.org/x", "/etc/passwd"):
        with pytest.raises(ValueError, match="relative path or an anchor"):
            in_href(target)


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
    short = thinned(trace)
    assert 400 < len(short["y"]) <= 500
    assert short["x"][0] == 0
    assert short["x"][-1] == 19_999
    assert {777, 13_000} <= set(short["x"])
    assert [y[i] for i in short["x"]] == short["y"]
    assert short["customdata"] == [2 * value for value in short["y"]]
    assert short["marker"] == {"maxdisplayed": 9}
    assert thinned({"type": "bar", "x": [1] * 900, "y": [1] * 900})["y"] == [1] * 900


CAPTIONED = {
    "meta": {"caption": "A caption."},
    "annotations": [{"name": "caption", "text": "A<br>caption."}, {"text": "kept"}],
    "height": 500,
    "width": 900,
}


def test_a_figure_loses_its_caption_to_the_page_and_numbers_their_tails():
    packed = {
        "dtype": "f8",
        "bdata": base64.b64encode(np.array([1 / 3, math.nan]).tobytes()).decode(),
    }
    trace = {"type": "scatter", "x": packed, "y": (1, 2)}
    block = plot("t", {"data": [trace], "layout": CAPTIONED})
    assert block.caption == "A caption."
    assert [note["text"] for note in block.layout["annotations"]] == ["kept"]
    assert "width" not in block.layout
    assert block.layout["height"] == 500 - 2 * 17 - 14
    assert block.data[0]["x"][0] == 0.333333
    assert math.isnan(block.data[0]["x"][1])
    assert page_data(one_tab(block))["plots"][0]["data"][0]["x"] == [0.333333, None]


def test_a_single_figure_keeps_every_point_and_is_saved_with_its_caption():
    line = {"type": "scatter", "x": list(range(3000)), "y": list(range(3000))}
    block = single_plot({"data": [line], "layout": CAPTIONED}, "gradient-norm")
    assert len(block.data[0]["y"]) == 3000
    assert block.width is None
    drawn = page_data(one_tab(block))["plots"][0]
    assert drawn["file"] == "gradient-norm"
    assert [note["text"] for note in drawn["paper"]["annotations"]] == ["A<br>caption.", "kept"]
    assert (drawn["paper"]["width"], drawn["paper"]["height"]) == (900, 500)
    maps = single_plot({"data": [{"type": "heatmap", "z": [[1]]}], "layout": CAPTIONED}, "maps")
    assert maps.width == 900
    assert "paper" not in page_data(one_tab(Plot("p", [], {})))["plots"][0]


def test_tables_have_headings():
    table = Table.of(["", "a"], [["row", "1"]], title="T", notes=["note"])
    read = Reader(one_tab(TableBlock(table), Text("x"), Plot("p", [], {})))
    assert [attrs.get("scope") for attrs in read.all("th")] == ["col", "col", "row"]
    assert [attrs.get("class") for attrs in read.all("td")] == ["number"]
    text = Reader(one_tab(TableBlock(table, text_columns=1)))
    assert [attrs.get("class") for attrs in text.all("td")] == [None]


def test_groups_of_columns_have_titles_and_classes():
    read = Reader(one_tab(TableBlock(grouped_table())))
    titles = [attrs for attrs in read.all("th") if attrs["scope"] == "colgroup"]
    assert [attrs["colspan"] for attrs in titles] == ["1", "2", "1"]
    assert [attrs.get("class") for attrs in titles] == [None, "paper first", "here first"]
    classes = [attrs.get("class") for attrs in read.all("td")]
    assert classes == ["number paper first", "number paper", "number here first"]


def test_claims_say_their_verdict_in_words_signs_and_classes():
    read = Reader(page(reproduction()))
    summary = [a["href"] for a in read.all("a") if a["href"].startswith("#gradient")]
    articles = [attrs["id"] for attrs in read.all("article")]
    assert summary == [f"#{name}" for name in articles] == ["#gradient", "#gradient-2"]
    outcomes = [a["class"] for a in read.all("div") if a.get("class", "").startswith("outcome ")]
    assert outcomes == ["outcome ok", "outcome stop", "outcome unknown"]
    words = [word for word in read.words if word[0] in "✓✗?"]
    assert words == ["✓ holds", "✗ does not hold", "? open"] * 2
    assert claims()[0].outcomes[0].table is not None
    assert "0.5" in read.words  # the numbers behind the verdict


def test_files_are_linked_by_relative_paths():
    read = Reader(page(reproduction()))
    assert [a["href"] for a in read.all("a") if not a["href"].startswith("#")] == [
        "tables/table%203.md",
        "figures/ratio.html",
        "runs/a%3Ab%23c/comparison.md",
    ]
    text = one_tab(Links("Files", [Link("a", "a.md"), Link("b", "b.md")]))
    assert '<p class="links">Files: <a href="a.md">a</a>, <a href="b.md">b</a></p>' in text


def test_colours_are_written_once():
    """No colour of the palette is repeated in the style or the script."""
    text = one_tab(Text("x"))
    style = text.split("<style>")[1].split("</style>")[0]
    script = text.rsplit("<script>", 1)[1]
    for light, dark in palette.PAGE.values():
        assert style.count(f"light-dark({light}, {dark})") == 1
    assert len(re.findall(r"#[0-9a-f]{3,6}\b", style)) == 2 * len(palette.PAGE)
    assert not re.findall(r"#[0-9a-f]{6}\b", script)
    assert page_data(text)["colours"]["dark"] == palette.DARK
    assert set(palette.CLASSES) <= set(palette.DARK)


def test_data_urls():
    assert data_url(b"abc", "svg") == "data:image/svg+xml;base64,YWJj"
    assert data_url(b"abc", "png") == "data:image/png;base64,YWJj"


def test_pages_are_made_without_torch():
    code = "import sys, smi.pages, smi.pages.plots; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
