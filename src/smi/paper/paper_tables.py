"""Make the paper's tables beside the results of runs, or read the tables of comparisons again.

print(make_table(3, ["runs/smi", "runs/barlow-twins"]).text())
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smi.comparison.comparison import Comparison
from smi.errors import UserError
from smi.files import expand
from smi.paper.cost import CostTable, cost
from smi.runs.collect import collect_runs
from smi.runs.names import is_published, name_runs
from smi.runs.run import Run
from smi.tables import Table


@dataclass(frozen=True)
class PaperTable(Table):
    """Hold one of the paper's tables, with its number."""

    number: int = 0

    def csv(self) -> str:
        """Return the cells as comma-separated values; the records are nested."""
        return Table(self.groups, self.rows).csv()

    def plain(self) -> dict[str, Any]:
        """Return the table's number, title, records and notes, ready for JSON."""
        return {
            "table": self.number,
            "title": self.title,
            "rows": list(self.records),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class ComparisonTables:
    """Hold comparisons that were read from their folders, to be printed again."""

    comparisons: tuple[Comparison, ...]

    def text(self) -> str:
        """Return the tables that `smi compare` printed."""
        return "\n\n".join(comparison.text() for comparison in self.comparisons)

    def markdown(self) -> str:
        """Return the same tables in Markdown."""
        return "\n\n".join(comparison.markdown().rstrip() for comparison in self.comparisons)

    def latex(self) -> str:
        """Return the same tables in LaTeX."""
        return "\n\n".join(comparison.latex() for comparison in self.comparisons)

    def csv(self) -> str:
        """Return one CSV table for each comparison, with an empty line between them."""
        return "\n".join(comparison.csv() for comparison in self.comparisons)

    def json(self) -> str:
        """Return a JSON list with everything about each comparison."""
        return json.dumps(self.plain(), indent=2, ensure_ascii=False)

    def plain(self) -> list[dict[str, Any]]:
        """Return everything about each comparison, ready for JSON."""
        return [comparison.plain() for comparison in self.comparisons]


def make_table(
    name: str | int,
    sources: Sequence[str | Path] = (),
    *,
    data: str | Path | None = None,
    batch: int | None = None,
    dim: int | None = None,
    devices: int | None = None,
    measure: bool = False,
) -> PaperTable | ComparisonTables | CostTable:
    """Return a table of the paper with the results of runs beside it.

        make_table(1, ["runs/smi"], data="cifar10").markdown()
        make_table("comparison", ["compared"]).text()

    name: 1, 2 or 3, or "comparison" for the tables of comparisons. sources: folders of runs, or
    of comparisons, which stand for their finished runs. data: the dataset that the runs were
    evaluated on; None is the dataset of pretraining. batch, dim, devices, measure: count, and
    measure, the cost of losses for other sizes than those of Table 2.
    """
    sizes = {"batch": batch, "dim": dim, "devices": devices}
    given = {key: value for key, value in sizes.items() if value is not None}
    if given or measure:
        if str(name) != "2" or sources:
            raise UserError("--batch, --dim, --devices and --measure are for Table 2, without runs")
        return cost(**given, measure=measure)
    if name == "comparison":
        if not sources:
            raise UserError("name the folder of a comparison: smi table comparison DIR")
        return ComparisonTables(tuple(Comparison.read(expand(source)) for source in sources))
    return paper_table(name, sources, data=data)


def paper_table(
    number: str | int, sources: Sequence[str | Path] = (), *, data: str | Path | None = None
) -> PaperTable:
    """Return Table 1, 2 or 3 of the paper; the arguments are those of `make_table`."""
    if str(number) not in ("1", "2", "3"):
        raise UserError(f"there is no table {number}: the paper has 1, 2 and 3")
    number = int(number)
    runs = [Run(folder) for folder in collect_runs(sources)]
    name_runs(runs)  # refuses a run that is given twice
    if number == 2 and runs:
        raise UserError("Table 2 counts the cost of losses and does not depend on runs: give none")
    _refuse_mixture(number, runs)
    if data is not None:
        from smi.data.sources import dataset_label  # imports numpy, which counting does not need

        data = dataset_label(data)
    table = _fill(number, runs, data)
    return PaperTable(
        table.groups, table.rows, table.title, table.notes, table.records, number=number
    )


def _refuse_mixture(number: int, runs: Sequence[Run]) -> None:
    """Refuse runs as published beside runs with identical settings, and in Table 3 altogether."""
    published = [run for run in runs if is_published(run)]
    others = [run for run in runs if not is_published(run)]
    if published and others:
        raise UserError(
            f"{published[0].folder} was trained as its authors publish it, {others[0].folder} was "
            "not: make one table of each kind"
        )
    if published and number == 3:
        raise UserError(
            "Table 3 compares methods under identical settings: give it runs without --published"
        )


def _fill(number: int, runs: Sequence[Run], data: str | None) -> Table:
    if number == 1:
        from smi.paper.table_1 import table_1

        return table_1(runs, data=data)
    if number == 2:
        from smi.paper.table_2 import table_2

        return table_2()
    from smi.paper.table_3 import table_3

    return table_3(runs, data=data)
