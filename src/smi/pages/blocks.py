"""What a page is made of. Texts are plain: whatever is in them is shown letter by letter. Pictures are data: URLs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warning", "stop", "unknown"]


@dataclass(frozen=True)
class Text:
    """A paragraph; a note is smaller."""

    words: str
    note: bool = False


@dataclass(frozen=True)
class Missing:
    """Why something is not here, in a sentence, and the command that makes it."""

    sentence: str
    command: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    words: str
    label: str  # what it is


@dataclass(frozen=True)
class Table:
    """The first cell of a row is its heading."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: int = 0  # so many columns behind the first are words, and stand to the left


@dataclass(frozen=True)
class Finding:
    level: Level
    sentence: str
    evidence: str
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """Of one run: a sentence, some facts, and what it rests on."""

    level: Level
    name: str
    sentence: str
    facts: str
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Plot:
    """A plotly figure as plain values. data: traces. panels beside each other are stacked where there is little room."""

    title: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    caption: str = ""
    half: bool = False  # of the page's width, where that is wide


@dataclass(frozen=True)
class Tile:
    picture: str
    alt: str
    words: Sequence[str] = ()  # lines beneath
    mark: Literal["", "query", "same", "other"] = ""


@dataclass(frozen=True)
class Gallery:
    """Rows of pictures, each with what it is called."""

    title: str
    rows: Sequence[tuple[str, Sequence[Tile]]]
    caption: str = ""
    heads: Sequence[str] = ()  # what columns are called
    flow: bool = False  # rows are short: several beside each other


@dataclass(frozen=True)
class Sample:
    """Images that clouds are of."""

    names: Sequence[str]
    pictures: Sequence[str]
    labels: Sequence[int] | None = None
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class Cloud:
    """Points in three dimensions that can be turned; each shows its image."""

    title: str
    sample: str  # its name in the document
    places: Sequence[Sequence[float]]  # [n, 3]
    caption: str = ""


@dataclass(frozen=True)
class Chooser:
    """One of several is shown; all choosers of a page with an option of this name follow."""

    label: str
    options: Mapping[str, Sequence["Block"]]


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence["Block"]


Block = Text | Missing | Facts | Code | Table | Verdict | Plot | Gallery | Cloud | Chooser | Section


@dataclass(frozen=True)
class Document:
    title: str
    lead: str
    tabs: Mapping[str, Sequence[Block]]
    samples: Mapping[str, Sample] = field(default_factory=dict)
    foot: str = ""
