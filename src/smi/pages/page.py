"""The page: blocks to HTML, with its style, its script and plotly.js in it, and a policy under which nothing else can run or load.

Texts and tables are HTML and can be read without scripts. Figures, clouds and pictures are data in one script of type JSON, and are drawn
when they come into sight; a picture that is shown often is there once.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from smi.pages.blocks import (
    Block,
    Chooser,
    Cloud,
    Code,
    Document,
    Facts,
    Gallery,
    Level,
    Missing,
    Plot,
    Section,
    Table,
    Text,
    Tile,
    Verdict,
)
from smi.pages.escape import in_html, in_plotly, in_script, visible

WORDS: dict[Level, str] = {
    "ok": "good",
    "warning": "attention",
    "stop": "broken",
    "unknown": "unclear",
}


def page(document: Document) -> str:
    writer = Writer(document)
    panels = "\n".join(writer.panel(name, blocks) for name, blocks in document.tabs.items())
    tabs = "".join(
        f'<a role="tab" id="tab-{_id(name)}" href="#{_id(name)}" aria-controls="{_id(name)}">{in_html(name)}</a>'
        for name in document.tabs
    )
    plotly, ours = _plotly(), _own("page.js")
    style = _own("page.css")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, ours)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{in_html(document.title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the report</a>
<header>
<div class="bar"><p class="brand">smi report</p><button id="theme" type="button" hidden>Dark</button></div>
<h1>{in_html(document.title)}</h1>
<p class="lead">{in_html(document.lead)}</p>
</header>
<nav class="tabs" role="tablist" aria-label="Parts of the report">{tabs}</nav>
<noscript><p class="missing">Figures and pictures are drawn by a script, and scripts are off here: only texts and tables are shown.</p>
</noscript>
<main id="content" tabindex="-1">
{panels}
</main>
<footer><p>{in_html(document.foot)}</p></footer>
<div id="card" role="status" aria-live="polite" hidden></div>
<script type="application/json" id="data">{in_script(writer.data())}</script>
<script>{plotly}</script>
<script>{ours}</script>
</body>
</html>
"""


def _policy(*scripts: str) -> str:
    """Scripts by their hashes, so that one from a name would not run even if it got into the page; plotly sets styles of elements."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


def _own(name: str) -> str:
    return (files("smi.pages") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    found: str = get_plotlyjs()
    return found.replace("</script", "<\\/script").replace("<!--", "<\\!--").replace("\r", "")


def _quoted(words: str) -> str:
    """What stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", in_html(words))


def _advice(words: str) -> str:
    return f'<p class="advice">What to do: {in_html(words)}</p>' if words else ""


def _id(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part"


class Writer:
    """Blocks to HTML; what is drawn is gathered for the script."""

    def __init__(self, document: Document):
        self.document = document
        self.pictures: dict[str, int] = {}
        self.plots: list[dict[str, Any]] = []
        self.clouds: list[dict[str, Any]] = []
        self.count = 0

    def data(self) -> dict[str, Any]:
        samples = {
            name: {
                "names": [visible(text) for text in sample.names],
                "pictures": [self.picture(one) for one in sample.pictures],
                "labels": sample.labels,
                "classes": sample.classes and [visible(text) for text in sample.classes],
            }
            for name, sample in self.document.samples.items()
        }
        return {
            "plots": self.plots,
            "clouds": self.clouds,
            "samples": samples,
            "pictures": list(self.pictures),
        }

    def picture(self, source: str) -> int:
        """Its number; the same for the same picture."""
        if not re.fullmatch(r"data:image/(?:png|jpeg|webp);base64,[A-Za-z0-9+/=]+", source):
            raise ValueError(
                f"a picture is a data: URL of a PNG, JPEG or WebP, not {source[:40]!r}"
            )
        return self.pictures.setdefault(source, len(self.pictures))

    def panel(self, name: str, blocks: Sequence[Block]) -> str:
        here = _id(name)
        return (
            f'<section class="panel" role="tabpanel" id="{here}" aria-labelledby="tab-{here}">\n'
            f'<h2 class="part">{in_html(name)}</h2>\n{self.blocks(blocks)}\n</section>'
        )

    def blocks(self, blocks: Sequence[Block]) -> str:
        return "\n".join(self.block(block) for block in blocks)

    def block(self, block: Block) -> str:
        match block:
            case Text():
                kind = ' class="note"' if block.note else ""
                return f"<p{kind}>{in_html(block.words)}</p>"
            case Missing():
                command = f" <code>{in_html(block.command)}</code>" if block.command else ""
                return f'<p class="missing">{_quoted(block.sentence)}{command}</p>'
            case Facts():
                items = "".join(
                    f"<div><dt>{in_html(name)}</dt><dd>{in_html(value)}</dd></div>"
                    for name, value in block.items
                )
                return f'<dl class="facts">{items}</dl>'
            case Code():
                label = in_html(block.label)
                return (
                    f'<div class="code"><p class="label">{label}</p><button type="button" class="copy" hidden>Copy</button>'
                    f'<pre tabindex="0" aria-label="{label}"><code>{in_html(block.words)}</code></pre></div>'
                )
            case Table():
                return self.table(block)
            case Verdict():
                return self.verdict(block)
            case Plot():
                return self.plot(block)
            case Gallery():
                return self.gallery(block)
            case Cloud():
                return self.cloud(block)
            case Chooser():
                return self.chooser(block)
            case Section():
                return f'<section class="block"><h3>{in_html(block.title)}</h3>\n{self.blocks(block.blocks)}\n</section>'

    def table(self, table: Table) -> str:
        def cell(tag: str, place: int, words: str) -> str:
            kind = "" if 0 < place <= table.words or not place else ' class="number"'
            scope = ' scope="col"' if tag == "th" else ""
            return (
                f'<th scope="row">{in_html(words)}</th>'
                if tag == "td" and not place
                else f"<{tag}{scope}{kind}>{in_html(words)}</{tag}>"
            )

        head = "".join(cell("th", i, words) for i, words in enumerate(table.headers))
        rows = "".join(
            f"<tr>{''.join(cell('td', i, words) for i, words in enumerate(row))}</tr>"
            for row in table.rows
        )
        notes = "".join(f"<li>{in_html(note)}</li>" for note in table.notes)
        return (
            f'<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="{in_html(table.title)}"><table>'
            f"<caption>{in_html(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
            + (f'<ul class="notes">{notes}</ul>' if notes else "")
            + "</div>"
        )

    def verdict(self, verdict: Verdict) -> str:
        findings = "".join(
            f'<li class="{finding.level}"><strong>{in_html(finding.sentence)}</strong> <span class="evidence">{in_html(finding.evidence)}'
            f"</span>{_advice(finding.advice)}</li>"
            for finding in verdict.findings
        )
        opened = " open" if verdict.level in ("warning", "stop") else ""
        details = (
            f"<details{opened}><summary>What that rests on</summary><ul>{findings}</ul></details>"
            if findings
            else ""
        )
        return (
            f'<article class="verdict {verdict.level}"><p class="state"><span class="sign" aria-hidden="true"></span>'
            f"{WORDS[verdict.level]}</p><h4>{in_html(verdict.name)}</h4><p>{in_html(verdict.sentence)}</p>"
            f'<p class="note">{in_html(verdict.facts)}</p>{details}</article>'
        )

    def plot(self, plot: Plot) -> str:
        number, layout = len(self.plots), in_plotly(dict(plot.layout))
        self.plots.append({"data": in_plotly(list(plot.data)), "layout": layout})
        height = int(layout.get("height") or 450)
        inner = f'<div class="plot" data-plot="{number}" role="img" aria-label="{in_html(plot.title)}" style="height:{height}px"></div>'
        return self.figure(plot.title, plot.caption, inner, "half" if plot.half else "")

    def cloud(self, cloud: Cloud) -> str:
        number = len(self.clouds)
        self.clouds.append(
            {"sample": cloud.sample, "places": [list(place) for place in cloud.places]}
        )
        keys = "Drag, or focus and use the arrow keys, to turn it; + and − to come closer; N and P for the next and previous image."
        inner = (
            f'<div class="cloud" data-cloud="{number}"><canvas tabindex="0" role="application" aria-label="{in_html(cloud.title)}. {keys}">'
            f'</canvas><ul class="legend"></ul><p class="note keys">{keys}</p></div>'
        )
        return self.figure(cloud.title, cloud.caption, inner)

    def figure(self, title: str, caption: str, inner: str, kind: str = "") -> str:
        self.count += 1
        words = f"<p>{in_html(caption)}</p>" if caption else ""
        return f'<figure class="{kind}" id="figure-{self.count}"><h3>{in_html(title)}</h3>{inner}<figcaption>{words}</figcaption></figure>'

    def gallery(self, gallery: Gallery) -> str:
        def tile(one: Tile) -> str:
            lines, whole = (
                "".join(f"<span>{in_html(line)}</span>" for line in one.words),
                in_html(" · ".join(one.words)),
            )
            words = f'<p title="{whole}">{lines}</p>' if lines else ""
            return f'<li class="tile {one.mark}"><img data-picture="{self.picture(one.picture)}" alt="{in_html(one.alt)}">{words}</li>'

        def row(label: str, tiles: Sequence[Tile]) -> str:
            name = f"<p>{in_html(label)}</p>" if label else ""
            return f'<div class="row">{name}<ul>{"".join(map(tile, tiles))}</ul></div>'

        heads = "".join(f"<li>{in_html(head)}</li>" for head in gallery.heads)
        rows = "".join(row(label, tiles) for label, tiles in gallery.rows)
        kind = "gallery heads" if heads else "gallery flow" if gallery.flow else "gallery"
        title = in_html(gallery.title)
        inner = f'<ul class="columns" aria-hidden="true">{heads}</ul>{rows}' if heads else rows
        return self.figure(
            gallery.title,
            gallery.caption,
            f'<div class="{kind}" tabindex="0" role="group" aria-label="{title}">{inner}</div>',
        )

    def chooser(self, chooser: Chooser) -> str:
        if len(chooser.options) == 1:
            return self.blocks(next(iter(chooser.options.values())))
        self.count += 1
        name = f"chooser-{self.count}"
        return "".join(self._chooser(name, chooser.label, chooser.options))

    def _chooser(
        self, name: str, label: str, options: Mapping[str, Sequence[Block]]
    ) -> Iterator[str]:
        yield f'<div class="chooser"><fieldset><legend>{in_html(label)}</legend>'
        for i, option in enumerate(options):
            checked = " checked" if i == 0 else ""
            yield (
                f'<label><input type="radio" name="{name}" value="{i}" data-option="{in_html(option)}"{checked}>'
                f"<span>{in_html(option)}</span></label>"
            )
        yield "</fieldset>"
        for i, (option, blocks) in enumerate(options.items()):
            yield f'<div class="option" data-value="{i}"><p class="option-name">{in_html(option)}</p>{self.blocks(blocks)}</div>'
        yield "</div>"
