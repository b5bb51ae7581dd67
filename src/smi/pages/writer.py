"""Turn blocks into HTML, and collect the data that the page's script draws."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    Level,
    Link,
    Links,
    Missing,
    Outcome,
    Picture,
    Plot,
    Section,
    TableBlock,
    Text,
    Tile,
    Verdict,
)
from smi.pages.escape import PICTURE_URL, in_href, in_html, in_plotly, visible
from smi.pages.palette import script_colours
from smi.tables import Table
from smi.terminal import counted

LEVEL_WORDS: dict[Level, str] = {
    "ok": "good",
    "warning": "attention",
    "stop": "broken",
    "unknown": "unclear",
}
LEVEL_SIGNS: dict[Level, str] = {"ok": "✓", "warning": "!", "stop": "✗", "unknown": "?"}
CLOUD_KEYS = (
    "Drag, or focus and use the arrow keys, to rotate; + and − to zoom; "
    "N and P for the next and previous image."
)


def identifier(name: str) -> str:
    """Return the HTML id of a tab."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part"


class Writer:
    """Write the blocks of one document as HTML; `data` returns what the script draws."""

    def __init__(self, document: Document):
        self.document = document
        self.pictures: dict[str, int] = {}
        self.plots: list[dict[str, Any]] = []
        self.clouds: list[dict[str, Any]] = []
        self.count = 0

    def data(self) -> dict[str, Any]:
        """Return plots, clouds, samples, pictures and colours as plain values."""
        samples = {
            name: {
                "names": [visible(text) for text in sample.names],
                "pictures": [self.picture_number(picture) for picture in sample.pictures],
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
            "colours": script_colours(),
        }

    def picture_number(self, source: str) -> int:
        """Return the number of a picture, which is the same for the same picture."""
        if not PICTURE_URL.fullmatch(source):
            raise ValueError(
                f"a picture must be a data: URL of a PNG, JPEG, WebP or SVG, not {source[:40]!r}"
            )
        return self.pictures.setdefault(source, len(self.pictures))

    def panel(self, name: str, blocks: Sequence[Block]) -> str:
        """Write the panel of one tab; the only panel of a page needs no heading."""
        if len(self.document.tabs) == 1:
            return f'<section class="panel shown">\n{self.blocks(blocks)}\n</section>'
        panel = identifier(name)
        return (
            f'<section class="panel" role="tabpanel" id="{panel}" aria-labelledby="tab-{panel}">\n'
            f'<h2 class="part">{in_html(name)}</h2>\n{self.blocks(blocks)}\n</section>'
        )

    def blocks(self, blocks: Sequence[Block]) -> str:
        """Write blocks one after the other."""
        return "\n".join(self.block(block) for block in blocks)

    def block(self, block: Block) -> str:
        """Write one block."""
        match block:
            case Text():
                return _text(block)
            case Missing():
                return _missing(block)
            case Facts():
                return _facts(block)
            case Code():
                return _code(block)
            case Links():
                return f'<p class="links">{in_html(block.label)}: {_links(block.links)}</p>'
            case TableBlock():
                return _table_block(block)
            case Verdict():
                return _verdict(block)
            case ClaimBlock():
                return _claim(block)
            case ClaimSummary():
                return _claim_summary(block)
            case Plot():
                return self.plot(block)
            case Picture():
                return self.picture(block)
            case Gallery():
                return self.gallery(block)
            case Cloud():
                return self.cloud(block)
            case Chooser():
                return self.chooser(block)
            case Section():
                return self.section(block)

    def section(self, section: Section) -> str:
        """Write a heading and the blocks beneath it."""
        return (
            f'<section class="block"{_id(section.anchor)}><h3>{in_html(section.title)}</h3>\n'
            f"{self.blocks(section.blocks)}\n</section>"
        )

    # --------------------------------------------------------------------- figures and pictures

    def plot(self, plot: Plot) -> str:
        """Write the container of a plotly figure and store its data."""
        number = len(self.plots)
        layout = in_plotly(dict(plot.layout))
        entry: dict[str, Any] = {
            "data": in_plotly(list(plot.data)),
            "layout": layout,
            "width": plot.width,
        }
        if plot.paper is not None:
            entry |= {"paper": in_plotly(dict(plot.paper)), "file": plot.file_name}
        self.plots.append(entry)
        height = int(layout.get("height") or 450)
        place = (
            f'<div class="plot" data-plot="{number}" role="img" '
            f'aria-label="{in_html(plot.title)}" style="height:{height}px"></div>'
        )
        if plot.width is not None:
            place = f'<div class="scroll">{place}</div>'
        if plot.paper is not None:
            place += (
                f'<button type="button" class="save" data-save="{number}" hidden>'
                "Save as SVG</button>"
            )
        return self.figure(plot.title, plot.caption, place, "half" if plot.half else "", plot.links)

    def picture(self, picture: Picture) -> str:
        """Write a picture as wide as the page."""
        image = (
            f'<img class="picture" data-picture="{self.picture_number(picture.source)}" '
            f'alt="{in_html(picture.alt)}">'
        )
        return self.figure(picture.title, picture.caption, image, links=picture.links)

    def cloud(self, cloud: Cloud) -> str:
        """Write the canvas of a cloud and store its points."""
        number = len(self.clouds)
        points = [list(point) for point in cloud.points]
        self.clouds.append({"sample": cloud.sample, "points": points})
        inner = (
            f'<div class="cloud" data-cloud="{number}"><canvas tabindex="0" role="application" '
            f'aria-label="{in_html(cloud.title)}. {CLOUD_KEYS}"></canvas>'
            f'<ul class="legend"></ul><p class="note keys">{CLOUD_KEYS}</p></div>'
        )
        return self.figure(cloud.title, cloud.caption, inner, "half" if cloud.half else "")

    def figure(
        self, title: str, caption: str, inner: str, kind: str = "", links: Sequence[Link] = ()
    ) -> str:
        """Write a figure element: heading, content, caption and links."""
        self.count += 1
        heading = f"<h3>{in_html(title)}</h3>" if title else ""
        words = f"<p>{in_html(caption)}</p>" if caption else ""
        files = f'<p class="links">{_links(links)}</p>' if links else ""
        return (
            f'<figure class="{kind}" id="figure-{self.count}">{heading}{inner}'
            f"<figcaption>{words}{files}</figcaption></figure>"
        )

    def gallery(self, gallery: Gallery) -> str:
        """Write rows of small pictures."""
        rows = "".join(self._gallery_row(label, tiles) for label, tiles in gallery.rows)
        titles = "".join(f"<li>{in_html(title)}</li>" for title in gallery.column_titles)
        layout = "heads" if titles else "flow" if gallery.flow else ""
        kind = f"gallery {'beside' if gallery.side_by_side else layout}".strip()
        inner = f'<ul class="columns" aria-hidden="true">{titles}</ul>{rows}' if titles else rows
        return self.figure(
            gallery.title,
            gallery.caption,
            f'<div class="{kind}" tabindex="0" role="group" '
            f'aria-label="{in_html(gallery.title)}">{inner}</div>',
        )

    def _gallery_row(self, label: str, tiles: Sequence[Tile]) -> str:
        name = f"<p>{in_html(label)}</p>" if label else ""
        return f'<div class="row">{name}<ul>{"".join(map(self._tile, tiles))}</ul></div>'

    def _tile(self, tile: Tile) -> str:
        lines = "".join(f"<span>{in_html(line)}</span>" for line in tile.lines)
        whole = in_html(" · ".join(tile.lines))
        words = f'<p title="{whole}">{lines}</p>' if lines else ""
        return (
            f'<li class="tile {tile.mark}"><img data-picture="{self.picture_number(tile.picture)}" '
            f'alt="{in_html(tile.alt)}">{words}</li>'
        )

    # ------------------------------------------------------------------------------- choosers

    def chooser(self, chooser: Chooser) -> str:
        """Write radio buttons and their options; a single option is shown without a button."""
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
                f'<label><input type="radio" name="{name}" value="{i}" '
                f'data-option="{in_html(option)}"{checked}><span>{in_html(option)}</span></label>'
            )
        yield "</fieldset>"
        for i, (option, blocks) in enumerate(options.items()):
            yield (
                f'<div class="option" data-value="{i}"><p class="option-name">{in_html(option)}'
                f"</p>{self.blocks(blocks)}</div>"
            )
        yield "</div>"


# ----------------------------------------------------------------------------- text and links


def _id(anchor: str) -> str:
    return f' id="{in_html(anchor)}"' if anchor else ""


def _text(block: Text) -> str:
    kind = ' class="note"' if block.note else ""
    return f"<p{kind}>{in_html(block.text)}</p>"


def _missing(block: Missing) -> str:
    command = f" <code>{in_html(block.command)}</code>" if block.command else ""
    return f'<p class="missing">{_with_code(block.sentence)}{command}</p>'


def _with_code(text: str) -> str:
    """Write text, in which words between backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", in_html(text))


def _facts(block: Facts) -> str:
    items = "".join(
        f"<div><dt>{in_html(name)}</dt><dd>{in_html(value)}</dd></div>"
        for name, value in block.items
    )
    return f'<dl class="facts">{items}</dl>'


def _code(block: Code) -> str:
    label = in_html(block.label)
    return (
        f'<div class="code"><p class="label">{label}</p>'
        '<button type="button" class="copy" hidden>Copy</button>'
        f'<pre tabindex="0" aria-label="{label}"><code>{in_html(block.text)}</code></pre></div>'
    )


def _links(links: Sequence[Link]) -> str:
    return ", ".join(f'<a href="{in_href(link.target)}">{in_html(link.text)}</a>' for link in links)


# ------------------------------------------------------------------------------------- tables


def _table_block(block: TableBlock) -> str:
    table = block.table
    notes = "".join(f"<li>{in_html(note)}</li>" for note in table.notes)
    links = f'<p class="links">{_links(block.links)}</p>' if block.links else ""
    return (
        f'<div class="table"{_id(block.anchor)}>{_table(table, table.title, block.text_columns)}'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + f"{links}</div>"
    )


def _table(table: Table, label: str, text_columns: int = 0) -> str:
    """Write a table that scrolls sideways; `label` names it for screen readers."""
    cells = _Cells(table, text_columns)
    caption = f"<caption><span>{in_html(table.title)}</span></caption>" if table.title else ""
    rows = "".join(f"<tr>{cells.row(row)}</tr>" for row in table.rows)
    kind = ' class="grouped"' if cells.grouped else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{in_html(label)}">'
        f"<table{kind}>{caption}<thead>{cells.head()}</thead><tbody>{rows}</tbody></table></div>"
    )


class _Cells:
    """Write the cells of one table with the classes of their columns."""

    def __init__(self, table: Table, text_columns: int):
        self.groups = table.groups
        self.grouped = any(group.title for group in table.groups)
        self.kinds: list[list[str]] = []
        for group in table.groups:
            kind = "here" if group.title.startswith("here") else "paper" if group.title else ""
            self.kinds.append([f"{kind} first" if kind else "", *[kind] * (len(group.columns) - 1)])
        for column, (number, place) in enumerate(self._places()):
            if column > text_columns:
                self.kinds[number][place] = f"number {self.kinds[number][place]}".strip()

    def _places(self) -> list[tuple[int, int]]:
        return [
            (number, place)
            for number, group in enumerate(self.groups)
            for place in range(len(group.columns))
        ]

    def head(self) -> str:
        """Write the row of group titles, if there are any, and that of column titles."""
        titles = "".join(
            f'<th scope="colgroup" colspan="{len(group.columns)}"'
            f"{_class(self.kinds[i][0].removeprefix('number '))}>{in_html(group.title)}</th>"
            for i, group in enumerate(self.groups)
            if group.columns
        )
        columns = "".join(
            f'<th scope="col"{_class(self.kinds[i][j])}>{in_html(self.groups[i].columns[j])}</th>'
            for i, j in self._places()
        )
        return (f'<tr class="groups">{titles}</tr>' if self.grouped else "") + f"<tr>{columns}</tr>"

    def row(self, row: Sequence[Sequence[str]]) -> str:
        """Write one row; its first cell is a heading."""
        first, *rest = [
            (self.kinds[i][j], cell) for i, cells in enumerate(row) for j, cell in enumerate(cells)
        ]
        return f'<th scope="row"{_class(first[0])}>{in_html(first[1])}</th>' + "".join(
            f"<td{_class(kind)}>{in_html(cell)}</td>" for kind, cell in rest
        )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


# ------------------------------------------------------------------------ verdicts and claims


def _verdict(verdict: Verdict) -> str:
    """Write the health of one run; what is right is folded away."""
    problems = "".join(_finding(f) for f in verdict.findings if f.level != "ok")
    passed = [_finding(f) for f in verdict.findings if f.level == "ok"]
    details = f'<ul class="findings">{problems}</ul>' if problems else ""
    if passed:
        summary = f"{counted(len(passed), 'check')} passed"
        details += (
            f'<details><summary>{summary}</summary><ul class="findings">{"".join(passed)}</ul>'
            "</details>"
        )
    return (
        f'<article class="verdict {verdict.level}"><p class="state">'
        f'<span class="sign" aria-hidden="true"></span>{LEVEL_WORDS[verdict.level]}</p>'
        f"<h4>{in_html(verdict.name)}</h4><p>{in_html(verdict.sentence)}</p>"
        f'<p class="note">{in_html(verdict.facts)}</p>{details}</article>'
    )


def _finding(finding: Finding) -> str:
    advice = f'<p class="advice">Advice: {_with_code(finding.advice)}</p>' if finding.advice else ""
    return (
        f'<li class="{finding.level}"><strong>{in_html(finding.sentence)}</strong> '
        f'<span class="evidence">{in_html(finding.evidence)}</span>{advice}</li>'
    )


def _claim_summary(summary: ClaimSummary) -> str:
    """Write a table of claims, each with its verdicts."""
    head = "".join(f'<th scope="col">{in_html(header)}</th>' for header in summary.headers)
    rows = "".join(
        f'<tr><th scope="row"><a href="{in_href(f"#{claim.anchor}")}">{in_html(claim.title)}</a>'
        f"</th><td>{''.join(map(_short_outcome, claim.outcomes))}</td></tr>"
        for claim in summary.claims
    )
    return (
        f'<div class="table"><table class="claims"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _short_outcome(outcome: Outcome) -> str:
    place = f' <span class="note">{in_html(outcome.place)}</span>' if outcome.place else ""
    return f"<div>{_outcome_word(outcome)}{place}</div>"


def _outcome_word(outcome: Outcome) -> str:
    """Write a sign and a word; the colour only repeats them."""
    return (
        f'<span class="outcome-word {outcome.level}">{LEVEL_SIGNS[outcome.level]} '
        f"{in_html(outcome.verdict)}</span>"
    )


def _claim(claim: ClaimBlock) -> str:
    """Write one claim: its facts, its outcomes with their numbers, and notes."""
    facts = "".join(
        f'<p><span class="label">{in_html(label)}:</span> {in_html(sentence)}</p>'
        for label, sentence in claim.facts
    )
    outcomes = "".join(_outcome(outcome, claim.title) for outcome in claim.outcomes)
    notes = "".join(f'<p class="note">{in_html(note)}</p>' for note in claim.notes)
    return (
        f'<article class="claim"{_id(claim.anchor)}><h3>{in_html(claim.title)}</h3>'
        f"{facts}{outcomes}{notes}</article>"
    )


def _outcome(outcome: Outcome, title: str) -> str:
    place = f"<strong>{in_html(outcome.place)}:</strong> " if outcome.place else ""
    table = "" if outcome.table is None else _table(outcome.table, f"{title}: numbers")
    return (
        f'<div class="outcome {outcome.level}"><p>{place}{_outcome_word(outcome)}</p>'
        f"<p>{in_html(outcome.sentence)}</p>{table}</div>"
    )
