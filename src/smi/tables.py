"""Format tables as text, Markdown, CSV or JSON: one table type for every command.

table = Table.of(["Method", "kNN"], [["SMI", "52.7%"]], notes=["one seed"])
print(table.text())
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from smi.terminal import printable, printable_lines

NONE = "-"  # an empty cell
# A cell of CSV that begins with one of these is a formula to a spreadsheet, unless it is a number.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
SIGNED_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?( ?%)?( ± [\d.,]+( ?%)?)?|[+-]?(nan|inf)|-")
BAR = " ┃ "  # between groups of columns

Format = Literal["text", "markdown", "csv", "json"]


@dataclass(frozen=True)
class Group:
    """Hold neighbouring columns under one title; the first group of a table has none."""

    title: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Hold rows of cells, in one group of columns or several.

    records: the same rows with numbers instead of text, for programs; empty takes the cells.
    """

    groups: tuple[Group, ...]
    rows: tuple[tuple[tuple[str, ...], ...], ...]  # rows of groups of cells
    title: str = ""
    notes: tuple[str, ...] = ()
    records: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        notes: Iterable[str] = (),
        records: Iterable[dict[str, Any]] = (),
    ) -> "Table":
        """Make a table with one group of columns."""
        cells = tuple((tuple(row),) for row in rows)
        return cls((Group("", tuple(headers)),), cells, title, tuple(notes), tuple(records))

    @property
    def headers(self) -> list[str]:
        """Return the names of all columns, with the title of their group in front."""
        return [
            f"{group.title}: {column}" if group.title else column
            for group in self.groups
            for column in group.columns
        ]

    @property
    def lines(self) -> list[list[str]]:
        """Return the rows as plain lists of cells."""
        return [[cell for cells in row for cell in cells] for row in self.rows]

    def format(self, form: Format) -> str:
        """Return the table in one of the four formats."""
        if form == "csv":
            return self.csv()
        if form == "json":
            return self.json()
        return self.markdown() if form == "markdown" else self.text()

    def text(self) -> str:
        """Align columns for a terminal: the first to the left, the others to the right."""
        body = self._simple() if len(self.groups) == 1 else self._grouped()
        head = [self.title, ""] if self.title else []
        notes = ["", *self.notes] if self.notes else []
        return "\n".join(printable(line).rstrip() for line in [*head, *body, *notes])

    def markdown(self) -> str:
        """Write a pipe table; cells of groups that begin with "here" are bold."""
        align = [":--" if i == 0 else "--:" for i in range(len(self.headers))]
        rows = [
            [self._bold_cell(number, cell) for number, cells in enumerate(row) for cell in cells]
            for row in self.rows
        ]
        headers = [f"**{h}**" if h.startswith("here") else h for h in self.headers]
        lines = [
            "| " + " | ".join(in_markdown(cell).replace("|", r"\|") for cell in cells) + " |"
            for cells in (headers, align, *rows)
        ]
        notes = ["", *(f"{in_markdown(note)}  " for note in self.notes)] if self.notes else []
        return "\n".join([*lines, *notes])

    def latex(self) -> str:
        """Write a tabular with the rules of booktabs, the title above and the notes beneath."""
        columns = "l" + "r" * (len(self.headers) - 1)
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in (self.headers, *self.lines)]
        notes = [f"% {note}" for note in self.notes]
        return "\n".join(
            [
                f"% {self.title}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                *notes,
            ]
        )

    def csv(self) -> str:
        """Write the records, or the cells where there are none, as comma-separated values."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        if self.records:
            columns = list(dict.fromkeys(key for record in self.records for key in record))
            lines = [[record.get(column, "") for column in columns] for record in self.records]
        else:
            columns = self.headers
            lines = [list(line) for line in self.lines]
        writer.writerows([in_csv(cell) for cell in line] for line in (columns, *lines))
        return file.getvalue()

    def json(self) -> str:
        """Write title, rows and notes as JSON."""
        return json.dumps(self.plain(), indent=2, ensure_ascii=False)

    def plain(self) -> dict[str, Any]:
        """Return title, rows and notes as plain values; empty parts are left out."""
        rows = list(self.records) or [
            dict(zip(self.headers, line, strict=True)) for line in self.lines
        ]
        parts = {"title": self.title, "rows": rows, "notes": list(self.notes)}
        return {name: value for name, value in parts.items() if value or name == "rows"}

    def _simple(self) -> list[str]:
        (widths,) = self._widths()
        rule = ["-" * width for width in widths]
        return [_cells(row, widths, first=True) for row in (self.headers, rule, *self.lines)]

    def _grouped(self) -> list[str]:
        widths = self._widths()
        spans = [
            max(sum(wide) + 2 * (len(wide) - 1), len(group.title))
            for wide, group in zip(widths, self.groups, strict=True)
        ]

        def line(row: Sequence[Sequence[str]]) -> str:
            return BAR.join(
                _cells(cells, wide, first=i == 0).ljust(span)
                for i, (cells, wide, span) in enumerate(zip(row, widths, spans, strict=True))
            )

        titles = BAR.join(
            group.title.center(span) for group, span in zip(self.groups, spans, strict=True)
        )
        rule = "━╋━".join("━" * span for span in spans)
        return [titles, line([g.columns for g in self.groups]), rule, *map(line, self.rows)]

    def _widths(self) -> list[list[int]]:
        """Return the width of each column, group by group."""
        return [
            [
                max(map(len, column))
                for column in zip(group.columns, *(row[i] for row in self.rows), strict=True)
            ]
            for i, group in enumerate(self.groups)
        ]

    def _bold_cell(self, group: int, cell: str) -> str:
        """Print our measurements in bold; the paper's numbers stay plain."""
        measured = self.groups[group].title.startswith("here") and cell not in (NONE, "")
        return f"**{cell}**" if measured else cell


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "λ": r"$\lambda$",
    "→": r"$\rightarrow$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex(cell: str) -> str:
    """Escape what LaTeX would read as a command."""
    return "".join(LATEX.get(character, character) for character in cell)


def yes(flag: bool | None) -> str:
    """Return yes, no, or a dash for None."""
    return NONE if flag is None else "yes" if flag else "no"


def percent(value: float | None) -> str:
    """Return a percentage with one decimal, or with two where it has two."""
    if value is None:
        return NONE
    return f"{value:.1f}" if round(value, 1) == round(value, 2) else f"{value:.2f}"


def in_markdown(text: str) -> str:
    """Escape text that may hold HTML or links for Markdown."""
    return printable(text).replace("<", "&lt;").replace("](", r"\](")


def in_csv(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would compute."""
    if not isinstance(cell, str):
        return cell
    text = printable_lines(cell)
    is_formula = cell.startswith(FORMULA_STARTS) and not SIGNED_NUMBER.fullmatch(cell)
    return f"'{text}" if is_formula else text


def name_in_csv(name: str) -> str:
    """Escape a name for a cell: on one line, and never what a spreadsheet would compute."""
    return printable(f"'{name}" if name.startswith(FORMULA_STARTS) else name)


def _cells(cells: Sequence[str], widths: Sequence[int], *, first: bool) -> str:
    """Pad cells; the very first column of a table is aligned to the left."""
    return "  ".join(
        cell.ljust(width) if first and i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
