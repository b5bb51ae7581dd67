"""The page of `smi reproduce`: what the paper claims beside what was measured. A document of plain values in, one HTML file out.

html = page(json.loads(Path("reproduced/claims.json").read_text()))
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

SYMBOLS = {"holds": "✓", "does not hold": "✗"}  # any other verdict: "?"
KINDS = {"holds": "yes", "does not hold": "no"}

CSS = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #595959; --paper: #fff; --line: #d5d5d5; --shade: #f5f5f3; --link: #0050a0;
  --yes: #0a6b3d; --no: #a3290f; --open: #5a5a5a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --soft: #a9a9a6; --paper: #161616; --line: #3a3a3a; --shade: #202020;
  --link: #8ec5ff; --yes: #6fd3a0; --no: #ff9b82; --open: #b5b5b2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
h3 { font-size: 1.05rem; margin: 0 0 .5rem; } p + h3 { margin-top: 2rem; }
p { margin: .4rem 0; }
a { color: var(--link); }
a:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; } .skip:focus { position: static; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; font-size: .92rem; }
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top; overflow-wrap: normal; }
.numbers td, .numbers th { white-space: nowrap; }
.numbers td:not(:first-child), .numbers th:not(:first-child) { text-align: right; }
.summary { width: 100%; } .summary td { overflow-wrap: anywhere; }
article { border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; margin: 1rem 0; }
.finding { border-left: 4px solid var(--open); padding: .1rem 0 .1rem .8rem; margin: .8rem 0; }
.finding.yes { border-color: var(--yes); } .finding.no { border-color: var(--no); }
.verdict { font-weight: 650; white-space: nowrap; color: var(--open); }
.verdict.yes { color: var(--yes); } .verdict.no { color: var(--no); }
.label { color: var(--soft); } .where { font-weight: 650; }
.note, small { color: var(--soft); font-size: .9rem; }
.groups { font-size: .8rem; line-height: 1.3; } .groups th, .groups td { padding: .25rem .4rem; }
.groups thead tr:last-child th { white-space: normal; vertical-align: bottom; }
.groups .paper { background: var(--shade); } .groups td.here { font-weight: 650; } .groups .first { border-left: 2px solid var(--soft); }
.groups tr > :first-child { border-left: 0; padding-left: 0; } .groups thead tr:first-child th { text-align: center; border-bottom: 0; }
li { margin: .25rem 0; } .pictures { list-style: none; padding: 0; } .pictures li { margin: 0 0 2rem; }
.picture { display: block; margin-top: .5rem; background: #fff; border: 1px solid var(--line); }
.picture img { display: block; width: 100%; }
code { background: var(--shade); padding: .1rem .25rem; }
@media (max-width: 36rem) { dl.facts { grid-template-columns: 1fr; } dl.facts dd { margin-bottom: .4rem; }
  .summary, .summary tbody, .summary tr, .summary td { display: block; } .summary thead { position: absolute; left: -999rem; }
  .summary td { border: 0; padding: 0; } .summary tr { border-bottom: 1px solid var(--line); padding: .4rem 0; } }
@media print { :root { --ink: #000; --paper: #fff; --soft: #444; --line: #bbb; --shade: #fff; --yes: #000; --no: #000; --open: #000;
  --link: #000; } body { max-width: none; padding: 0; font-size: 10.5pt; } article, tr { break-inside: avoid; }
  .pictures li { break-inside: avoid; } .scroll { overflow: visible; } .groups { font-size: 6.5pt; }
  .groups th, .groups td { padding: .15rem .2rem; } .numbers th, .numbers td { white-space: normal; } }
"""


def page(document: Mapping[str, Any]) -> str:
    """Everything in the document is text, and is shown as text."""
    about, claims = document["about"], document["claims"]
    parts = [
        f"<h1>{escape(about['title'])}</h1>",
        f"<p>{escape(about['introduction'])}</p>",
        _facts(about["facts"]),
        *(f'<p class="note">{escape(note)}</p>' for note in about.get("notes", ())),
    ]
    if claims:
        parts += [
            '<h2 id="verdicts">Verdicts</h2>',
            _summary(claims),
            '<h2 id="claims">Claim by claim</h2>',
            *map(_claim, claims),
        ]
    if document["tables"]:
        parts += ['<h2 id="tables">Tables</h2>', *map(_table, document["tables"])]
    if document["figures"]:
        parts += [
            '<h2 id="figures">Figures</h2>',
            _list(map(_figure, document["figures"]), "pictures"),
        ]
    if document["comparisons"]:
        parts += [
            '<h2 id="comparisons">Comparisons and runs</h2>',
            _list(map(_comparison, document["comparisons"])),
        ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, '
        f'initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(about['title'])}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#content">To the content</a>\n<main id="content">\n{body}\n</main>\n</body>\n</html>\n'
    )


def _facts(facts: Mapping[str, str]) -> str:
    return (
        '<dl class="facts">'
        + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
        + "</dl>"
    )


def _verdict(verdict: str) -> str:
    """A symbol and a word; the colour only repeats them."""
    return f'<span class="verdict {KINDS.get(verdict, "open")}">{SYMBOLS.get(verdict, "?")} {escape(verdict)}</span>'


def _summary(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for claim in claims:
        found = "".join(
            f"<div>{_verdict(f['verdict'])}{_where(f)}</div>" for f in claim["findings"]
        )
        rows.append(
            f'<tr><td><a href="#{quote(claim["name"])}">{escape(claim["title"])}</a></td><td>{found}</td></tr>'
        )
    head = '<thead><tr><th scope="col">The paper claims</th><th scope="col">Here</th></tr></thead>'
    return f'<table class="summary">{head}<tbody>{"".join(rows)}</tbody></table>'


def _where(finding: Mapping[str, Any]) -> str:
    return f" <small>{escape(finding['where'])}</small>" if finding["where"] else ""


def _claim(claim: Mapping[str, Any]) -> str:
    lines = [
        f'<article id="{escape(claim["name"])}">',
        f"<h3>{escape(claim['title'])}</h3>",
        f'<p><span class="label">The paper:</span> {escape(claim["paper"])}</p>',
        f'<p><span class="label">Measured here:</span> {escape(claim["measure"])}</p>',
    ]
    for finding in claim["findings"]:
        kind = KINDS.get(finding["verdict"], "open")
        where = (
            f'<span class="where">{escape(finding["where"])}:</span> ' if finding["where"] else ""
        )
        lines.append(
            f'<div class="finding {kind}"><p>{where}{_verdict(finding["verdict"])}</p><p>{escape(finding["sentence"])}</p>'
        )
        lines.append(
            _numbers(finding["headers"], finding["rows"], f"{claim['title']}: numbers")
            if finding["rows"]
            else ""
        )
        lines.append("</div>")
    lines += [f'<p class="note">{escape(note)}</p>' for note in claim["notes"]]
    return "\n".join([*filter(None, lines), "</article>"])


def _numbers(headers: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
    )


def _table(table: Mapping[str, Any]) -> str:
    if table["why"]:
        return f"<p>{escape(table['title'])}: not made. {escape(table['why'])}</p>"
    parts = [
        f'<h3 id="{escape(table["name"])}">{escape(table["title"])} <small>({_link(table["file"], "Markdown")})</small></h3>'
    ]
    parts.append(_groups(table["groups"], table["rows"], table["title"]))
    return "\n".join([*parts, *(f'<p class="note">{escape(note)}</p>' for note in table["notes"])])


def _groups(
    groups: Sequence[tuple[str, Sequence[str]]], rows: Sequence[Sequence[Sequence[str]]], label: str
) -> str:
    """The paper's columns and ours, told apart by a shade, a rule and bold type."""
    kinds = [
        "here" if title.startswith("here") else "paper" if title else "" for title, _ in groups
    ]

    def cell(tag: str, number: int, first: bool, text: str, more: str = "") -> str:
        return f'<{tag} class="{kinds[number]}{" first" * first}"{more}>{escape(text)}</{tag}>'

    titles = (
        cell("th", i, True, title, f' colspan="{len(columns)}" scope="colgroup"')
        for i, (title, columns) in enumerate(groups)
    )
    heads = (
        cell("th", i, j == 0, text, ' scope="col"')
        for i, (_, columns) in enumerate(groups)
        for j, text in enumerate(columns)
    )
    body = (
        "".join(
            cell("td", i, j == 0, text)
            for i, cells in enumerate(row)
            for j, text in enumerate(cells)
        )
        for row in rows
    )
    head = f"<thead><tr>{''.join(titles)}</tr><tr>{''.join(heads)}</tr></thead>"
    table = f'<table class="numbers groups">{head}<tbody>{"".join(f"<tr>{line}</tr>" for line in body)}</tbody></table>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
    )


def _figure(figure: Mapping[str, Any]) -> str:
    name = f"<b>{escape(figure['name'])}</b>: {escape(figure['sentence'])}"
    if figure["why"]:
        return f"{name}. Not made: {escape(figure['why'])}"
    links = ", ".join(_link(file, file.rsplit(".", 1)[-1]) for file in figure["files"])
    drawn = next((file for file in figure["files"] if file.endswith(".svg")), "")
    if not drawn:
        return f"{name} ({links})"
    picture = (
        f'<img src="{escape(quote(drawn))}" alt="{escape(figure["sentence"])}" loading="lazy">'
    )
    return f'{name} ({links})<a class="picture" href="{escape(quote(figure["files"][0]))}">{picture}</a>'


def _comparison(comparison: Mapping[str, Any]) -> str:
    links = ", ".join(_link(file, file.rsplit("/", 1)[-1]) for file in comparison["files"])
    return (
        f"{escape(comparison['title'])}: {links}"
        if links
        else f"{escape(comparison['title'])}: {escape(comparison['why'])}"
    )


def _link(file: str, text: str) -> str:
    return f'<a href="{escape(quote(file))}">{escape(text)}</a>'


def _list(items: Iterable[str], kind: str = "") -> str:
    return f'<ul class="{kind}">' + "\n".join(f"<li>{item}</li>" for item in items) + "</ul>"
