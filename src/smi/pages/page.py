"""Assemble the page: the blocks as HTML, with the style, the script and plotly.js inside it.

A content security policy forbids everything else to run or to load. Text and tables are HTML and
can be read without scripts. Figures, clouds and pictures are data in one JSON script. They are
drawn when they come into sight, and a picture that is shown often is stored once.
"""

import base64
import hashlib
from importlib.resources import files

from smi.pages.blocks import Document
from smi.pages.escape import in_html, in_script
from smi.pages.palette import css_variables
from smi.pages.writer import Writer, identifier

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<div class="bar"><p class="brand">{brand}</p>
<button id="theme" type="button" hidden>Dark</button></div>
<h1>{title}</h1>
<p class="lead">{lead}</p>
</header>
{tabs}
<noscript><p class="missing">Figures and pictures need JavaScript, which is disabled here. Only text
and tables are shown.</p>
</noscript>
<main id="content" tabindex="-1">
{panels}
</main>
{footer}
<div id="card" role="status" aria-live="polite" hidden></div>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def page(document: Document) -> str:
    """Return the document as one HTML page."""
    writer = Writer(document)
    panels = "\n".join(writer.panel(name, blocks) for name, blocks in document.tabs.items())
    plotly = _plotly()
    script = _own_file("page.js")
    return TEMPLATE.format(
        policy=_policy(plotly, script),
        style=css_variables() + _own_file("page.css"),
        title=in_html(document.title),
        brand=in_html(document.brand),
        lead=in_html(document.lead),
        tabs=_tabs(document),
        panels=panels,
        footer=f"<footer><p>{in_html(document.footer)}</p></footer>" if document.footer else "",
        data=in_script(writer.data()),
        plotly=plotly,
        script=script,
    )


def _tabs(document: Document) -> str:
    """Return the tab bar; a page with one tab has none."""
    if len(document.tabs) < 2:
        return ""
    tabs = "".join(
        f'<a role="tab" id="tab-{identifier(name)}" href="#{identifier(name)}" '
        f'aria-controls="{identifier(name)}">{in_html(name)}</a>'
        for name in document.tabs
    )
    return f'<nav class="tabs" role="tablist" aria-label="Parts of this page">{tabs}</nav>'


def _policy(*scripts: str) -> str:
    """Return the content security policy, which allows these scripts by their hashes.

    A script that reached the page through a name would not run. Plotly sets styles of elements,
    so inline styles are allowed.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _own_file(name: str) -> str:
    return (files("smi.pages") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Return plotly.js, escaped so that nothing in it ends the script element."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--").replace("\r", "")
