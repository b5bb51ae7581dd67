"""The paper's tables beside what runs scored here."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from smi.comparison.comparison import Comparison
from smi.errors import UserError
from smi.figures.scores import requested_dataset
from smi.files import expand
from smi.runs.collect import collect_runs
from smi.runs.names import called
from smi.runs.run import Run
from smi.tables import Table


def print_table(
    name: str | int,
    sources: Sequence[str | Path] = (),
    *,
    data: str | Path | None = None,
    form: Literal["text", "markdown", "json"] = "text",
) -> None:
    """Table 1, 2 or 3 of the paper, with what these runs, or those of comparisons, scored beside it; or `comparison`: what was printed."""
    if name == "comparison":
        return _print_comparisons(sources, form)
    number = int(name)
    table = make_table(number, sources, data=data)
    if form == "json":
        print(
            json.dumps(
                {
                    "table": number,
                    "title": table.title,
                    "rows": list(table.records),
                    "notes": list(table.notes),
                },
                indent=2,
            )
        )
    else:
        print(table.markdown() if form == "markdown" else table.text())
    return None


def _print_comparisons(sources: Sequence[str | Path], form: str) -> None:
    if not sources:
        raise UserError("name the folder of a comparison: smi table comparison DIR")
    found = [Comparison.read(expand(source)) for source in sources]
    if form == "json":
        print(
            json.dumps([comparison.plain() for comparison in found], indent=2, ensure_ascii=False)
        )
    else:
        print(
            "\n\n".join(
                comparison.markdown().rstrip() if form == "markdown" else comparison.text()
                for comparison in found
            )
        )


def make_table(
    number: int, sources: Sequence[str | Path] = (), *, data: str | Path | None = None
) -> Table:
    runs = tuple(Run(source) for source in collect_runs(sources))
    called(runs)  # none is given twice
    if number == 1:
        from smi.paper.table_1 import table_1

        return table_1(runs, data=requested_dataset(data))
    if number == 2:
        from smi.paper.table_2 import table_2

        if runs:
            raise UserError("Table 2 counts what losses cost, whatever the runs: give none")
        return table_2()
    if number == 3:
        from smi.paper.table_3 import table_3

        return table_3(runs, data=requested_dataset(data))
    raise UserError(f"there is no table {number}: the paper has 1, 2 and 3")
