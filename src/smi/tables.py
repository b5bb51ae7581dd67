"""Tables whose columns stand in groups, the paper's numbers and ours: as text, Markdown or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NONE = "-"
BAR = " ┃ "


@dataclass(frozen=True)
class Group:
    """Neighbouring columns; the first of a table has no title."""

    title: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    title: str
    groups: tuple[Group, ...]
    rows: tuple[tuple[tuple[str, ...], ...], ...]  # cells, in their groups
    notes: tuple[str, ...]
    plain: list[dict[str, Any]]  # the same for programs

    def text(self) -> str:
        widths = [self._widths(i) for i in range(len(self.groups))]
        spans = [
            max(sum(w) + 2 * (len(w) - 1), len(group.title))
            for w, group in zip(widths, self.groups, strict=True)
        ]
        head = BAR.join(
            group.title.center(span) for group, span in zip(self.groups, spans, strict=True)
        )
        lines = [_row([group.columns for group in self.groups], widths, spans)]
        lines.append("━╋━".join("━" * span for span in spans))
        lines += [_row(row, widths, spans) for row in self.rows]
        return "\n".join(line.rstrip() for line in [self.title, "", head, *lines, "", *self.notes])

    def markdown(self) -> str:
        headers = [
            f"{group.title}: {column}" if group.title else column
            for group in self.groups
            for column in group.columns
        ]
        align = [":--" if i == 0 else "--:" for i in range(len(headers))]
        rows = [
            [self._emphasised(number, cell) for number, cells in enumerate(row) for cell in cells]
            for row in self.rows
        ]
        lines = [
            "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
            for cells in ([self._bold(h) for h in headers], align, *rows)
        ]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes)])

    def _widths(self, group: int) -> list[int]:
        columns = zip(self.groups[group].columns, *(row[group] for row in self.rows), strict=True)
        return [max(map(len, column)) for column in columns]

    def _emphasised(self, group: int, cell: str) -> str:
        """What was measured here is bold, what the paper prints is not."""
        return (
            f"**{cell}**"
            if self.groups[group].title.startswith("here") and cell not in (NONE, "")
            else cell
        )

    def _bold(self, header: str) -> str:
        return f"**{header}**" if header.startswith("here") else header


def _row(
    cells: Sequence[Sequence[str]], widths: Sequence[Sequence[int]], spans: Sequence[int]
) -> str:
    parts = []
    for i, (group, wide, span) in enumerate(zip(cells, widths, spans, strict=True)):
        text = "  ".join(
            c.ljust(w) if i == 0 and j == 0 else c.rjust(w)
            for j, (c, w) in enumerate(zip(group, wide, strict=True))
        )
        parts.append(text.ljust(span))
    return BAR.join(parts)


def yes(flag: bool | None) -> str:
    return NONE if flag is None else "yes" if flag else "no"


def percent(value: float | None) -> str:
    """As the paper prints them: a decimal, or two where it has two."""
    return (
        NONE
        if value is None
        else f"{value:.1f}"
        if round(value, 1) == round(value, 2)
        else f"{value:.2f}"
    )


def align(headers: list[str], table: list[list[str]]) -> str:
    """Columns of text: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *table, strict=True)]
    lines = [headers, ["-" * width for width in widths], *table]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
