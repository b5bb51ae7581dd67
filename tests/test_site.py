"""Build the site, and check that every link inside it leads somewhere.

`make site` builds it first and names the folder in SMI_SITE.
"""

import html.parser
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("sphinx", "myst_parser", "furo")
needs_sphinx = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in PARTS),
    reason="the site needs the extra `docs`: run `make site`",
)


class Links(html.parser.HTMLParser):
    """Collect the addresses and the anchors of a page."""

    def __init__(self):
        super().__init__()
        self.links = []
        self.loaded = []
        self.anchors = set()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.update(found[key] for key in ("id", "name") if found.get(key))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag in ("img", "script", "source", "iframe") and found.get("src"):
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("href") and found.get("rel") != "canonical":
            self.loaded.append(found["href"])


def read(path: Path) -> Links:
    page = Links()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if built := os.environ.get("SMI_SITE"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "docs/site/build.py", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def load_api_pages():
    path = ROOT / "docs" / "site" / "api_pages.py"
    spec = importlib.util.spec_from_file_location("api_pages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_become_prose_code_and_a_list_of_arguments():
    docstring = """Return a * b.

run = smi.pretrain("digits")

A sentence that goes on with
it: this is not an argument.
eps, shift: of `logcosh`,
in nats. k: of
neighbours.""".splitlines()
    assert load_api_pages().as_rst(docstring) == [
        "Return a \\* b.",
        "",
        ".. code-block:: python",
        "",
        '   run = smi.pretrain("digits")',
        "",
        "A sentence that goes on with",
        "it: this is not an argument.",
        "",
        "- ``eps``, ``shift``: of ``logcosh``,",
        "  in nats.",
        "- ``k``: of",
        "  neighbours.",
        "",
    ]


@needs_sphinx
def test_formulas_need_no_script(site):
    text = (site / "method.html").read_text(encoding="utf-8")
    assert text.count("<math ") > 30
    assert "<munderover>\n<mi>z" not in text  # an index beneath a letter with a bar
    assert re.search(r"<mfrac[^>]*>\s*<mn>1</mn>\s*<mn>2</mn>", text)  # from \\tfrac12


@needs_sphinx
def test_links_inside_the_site_lead_somewhere(site):
    pages = {path: read(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            target, _, anchor = unquote(link).partition("#")
            target = target.partition("?")[0]
            if re.match(r"[a-z]+:", target):
                continue
            linked = (path.parent / target).resolve() if target else path
            if not linked.exists() or (anchor and anchor not in pages[linked].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


@needs_sphinx
def test_the_site_loads_nothing_from_a_network(site):
    for path in site.rglob("*.html"):
        assert [src for src in read(path).loaded if re.match(r"(https?:)?//", src)] == [], path
    for path in site.rglob("*.css"):
        assert "url(http" not in path.read_text(encoding="utf-8"), path


@needs_sphinx
def test_every_page_of_docs_and_every_method_is_there(site):
    from smi.methods import METHOD_NAMES

    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
    for name in METHOD_NAMES:
        text = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
        for heading in ("Settings", "Cost", "Health", "Numbers measured here", "Code"):
            assert f"<h2>{heading}<" in text, (name, heading)
        assert "<svg" in text
        assert "arxiv.org" in text
