"""Describe the page of `smi reproduce` as a document of blocks, which `smi.pages` writes.

html = page(reproduction_document(json.loads(Path("out/claims.json").read_text()), Path("out")))
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smi.pages import (
    Block,
    ClaimBlock,
    ClaimSummary,
    Code,
    Document,
    Facts,
    Link,
    Links,
    Missing,
    Outcome,
    Plot,
    Section,
    TableBlock,
    Text,
)
from smi.pages.blocks import Level
from smi.paper.verdicts import FAILS, HOLDS
from smi.tables import Group, Table

Entry = Mapping[str, Any]
LEVELS: dict[str, Level] = {HOLDS: "ok", FAILS: "stop"}  # any other verdict is "unknown"
TAB = "Reproduction"  # the only one


def reproduction_document(document: Mapping[str, Any], folder: Path) -> Document:
    """Return the page of a reproduction.

    document: as claims.json holds it. folder: of claims.json, which holds the figures too.
    """
    about = document["about"]
    blocks: list[Block] = [
        Code("\n".join(about["calls"]), "Commands that made this page"),
        Facts(list(about["facts"].items())),
        *(Text(note, note=True) for note in about.get("notes", ())),
    ]
    claims = [_claim(claim) for claim in document["claims"]]
    if claims:
        blocks.append(Section("Verdicts", [ClaimSummary(claims)], "verdicts"))
        blocks.append(Section("Claims", claims, "claims"))
    if document["tables"]:
        tables = [_table(entry) for entry in document["tables"]]
        blocks.append(Section("Tables", tables, "tables"))
    if document["figures"]:
        figures = [_figure(entry, folder) for entry in document["figures"]]
        blocks.append(Section("Figures", figures, "figures"))
    if document["comparisons"]:
        comparisons = [_comparison(entry) for entry in document["comparisons"]]
        blocks.append(Section("Comparisons and runs", comparisons, "comparisons"))
    return Document(about["title"], about["introduction"], {TAB: blocks}, brand="smi reproduce")


def _claim(claim: Entry) -> ClaimBlock:
    facts = [("The paper", claim["paper"]), ("Measured here", claim["measure"])]
    outcomes = [_outcome(finding) for finding in claim["findings"]]
    return ClaimBlock(claim["name"], claim["title"], facts, outcomes, claim["notes"])


def _outcome(finding: Entry) -> Outcome:
    table = Table.of(finding["headers"], finding["rows"]) if finding["rows"] else None
    return Outcome(
        level=LEVELS.get(finding["verdict"], "unknown"),
        verdict=finding["verdict"],
        sentence=finding["sentence"],
        place=finding["where"],
        table=table,
    )


def _table(entry: Entry) -> Block:
    if entry["why"]:
        return Missing(f"{entry['title']} was not made. {entry['why']}")
    table = Table(
        tuple(Group(title, tuple(columns)) for title, columns in entry["groups"]),
        tuple(tuple(map(tuple, row)) for row in entry["rows"]),
        entry["title"],
        tuple(entry["notes"]),
    )
    return TableBlock(table, anchor=entry["name"], links=[Link("Markdown", entry["file"])])


def _figure(entry: Entry, folder: Path) -> Block:
    """Return the figure to explore; only links if an older version did not write its data."""
    title = f"{entry['name']}: {entry['sentence']}"
    if entry["why"]:
        return Missing(f"{title}. Not made: {entry['why']}")
    links = [Link(file.rsplit(".", 1)[-1], file) for file in entry["files"]]
    try:
        values = json.loads((folder / entry.get("plot", "")).read_text(encoding="utf-8"))
        return Plot(**values | {"title": title, "links": links})
    except (OSError, ValueError, TypeError):
        return Links(title, links)


def _comparison(entry: Entry) -> Block:
    if entry["why"]:
        return Missing(f"{entry['title']}: {entry['why']}")
    links = [Link(file.rsplit("/", 1)[-1], file) for file in entry["files"]]
    return Links(entry["title"], links)
