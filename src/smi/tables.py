"""Tables on a terminal."""


def align(headers: list[str], table: list[list[str]]) -> str:
    """Columns of text: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *table, strict=True)]
    lines = [headers, ["-" * width for width in widths], *table]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )
