"""Define the blocks of a page as plain data.

All text is escaped and shown letter by letter. Pictures are data: URLs, links are relative paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smi.tables import Table

Level = Literal["ok", "warning", "stop", "unknown"]


@dataclass(frozen=True)
class Text:
    """Show a paragraph; a note is smaller."""

    text: str
    note: bool = False


@dataclass(frozen=True)
class Missing:
    """Explain in a sentence why something is missing, and name the command that makes it."""

    sentence: str
    command: str = ""


@dataclass(frozen=True)
class Facts:
    """Show pairs of a name and a value."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """Show text in a monospaced box with a button that copies it."""

    text: str
    label: str


@dataclass(frozen=True)
class Link:
    """Link to a file by its path relative to the page, or to an anchor of the page ("#name")."""

    text: str
    target: str


@dataclass(frozen=True)
class Links:
    """Show a label and links in one line."""

    label: str
    links: Sequence[Link]


@dataclass(frozen=True)
class TableBlock:
    """Show a table with its title and notes; groups of columns have their titles above them.

    Columns in groups with a title are shaded, or bold if the title begins with "here". The first
    cell of a row is its heading.
    """

    table: Table
    text_columns: int = 0  # columns after the first that hold text, aligned to the left
    anchor: str = ""
    links: Sequence[Link] = ()


@dataclass(frozen=True)
class Finding:
    """Describe one check of a run: its level, a sentence, the evidence and advice."""

    level: Level
    sentence: str
    evidence: str
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """Show the health of one run: a sentence, facts, and the findings behind them."""

    level: Level
    name: str
    sentence: str
    facts: str
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Outcome:
    """Describe the outcome of testing a claim in one place; the level chooses its colour.

    verdict: a word or two, such as "holds". table: the numbers behind it.
    """

    level: Level
    verdict: str
    sentence: str
    place: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class ClaimBlock:
    """Show a claim with its outcomes.

    facts: pairs of a label and a sentence, such as ("The paper", "…").
    """

    anchor: str
    title: str
    facts: Sequence[tuple[str, str]]
    outcomes: Sequence[Outcome]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class ClaimSummary:
    """List claims in a table of two columns: each claim with a link, and its verdicts."""

    claims: Sequence[ClaimBlock]
    headers: tuple[str, str] = ("The paper claims", "Here")


@dataclass(frozen=True)
class Plot:
    """Show a plotly figure, given as plain values; `smi.pages.plots.plot` makes one.

    Panels side by side are stacked on a narrow screen, unless the figure has a width of its own.
    paper: the layout to save as SVG, white and with its caption; it adds a button that saves it
    and, under the pointer, plotly's toolbar.
    """

    title: str
    data: Sequence[Mapping[str, Any]]  # traces
    layout: Mapping[str, Any]
    caption: str = ""
    half: bool = False  # half the width of a wide page
    width: int | None = None  # pixels; None is the width of the page
    paper: Mapping[str, Any] | None = None
    file_name: str = "figure"  # of the saved SVG, without the suffix
    links: Sequence[Link] = ()


@dataclass(frozen=True)
class Picture:
    """Show a PNG, JPEG, WebP or SVG image, given as a data: URL (`data_url` makes one)."""

    title: str
    source: str
    alt: str
    caption: str = ""
    links: Sequence[Link] = ()


@dataclass(frozen=True)
class Tile:
    """Describe a small picture of a gallery and the lines of text beneath it."""

    picture: str
    alt: str
    lines: Sequence[str] = ()
    mark: Literal["", "query", "same", "other"] = ""


@dataclass(frozen=True)
class Gallery:
    """Show rows of small pictures, each row with a label."""

    title: str
    rows: Sequence[tuple[str, Sequence[Tile]]]
    caption: str = ""
    column_titles: Sequence[str] = ()
    flow: bool = False  # short rows: several side by side
    side_by_side: bool = (
        False  # rows of one length: two side by side, tiles as wide as there is room
    )


@dataclass(frozen=True)
class Sample:
    """Hold the images that clouds show."""

    names: Sequence[str]
    pictures: Sequence[str]
    labels: Sequence[int] | None = None
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class Cloud:
    """Show points in three dimensions that the reader can rotate; each point shows its image."""

    title: str
    sample: str  # a key of the document's samples
    points: Sequence[Sequence[float]]  # [n, 3]
    caption: str = ""
    half: bool = False  # half the width of a wide page


@dataclass(frozen=True)
class Chooser:
    """Show one of several options; all choosers of a page that have the chosen option follow."""

    label: str
    options: Mapping[str, Sequence["Block"]]


@dataclass(frozen=True)
class Section:
    """Show blocks under a heading."""

    title: str
    blocks: Sequence["Block"]
    anchor: str = ""


Block = (
    Text
    | Missing
    | Facts
    | Code
    | Links
    | TableBlock
    | Verdict
    | ClaimBlock
    | ClaimSummary
    | Plot
    | Picture
    | Gallery
    | Cloud
    | Chooser
    | Section
)


@dataclass(frozen=True)
class Document:
    """Hold a page: its title, a sentence beneath it, and blocks by tab.

    A page with one tab shows no tab bar. brand: the small line above the title.
    """

    title: str
    lead: str
    tabs: Mapping[str, Sequence[Block]]
    samples: Mapping[str, Sample] = field(default_factory=dict)
    footer: str = ""
    brand: str = "smi report"
