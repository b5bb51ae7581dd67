"""Make the tables, figures and claims of a reproduction from its comparisons.

Each entry is a dictionary of plain values, for claims.json and the page. An entry that cannot be
made says why, so that one failure after hours of runs does not lose the rest.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from smi.comparison.comparison import Comparison
from smi.device import describe_device
from smi.errors import UserError
from smi.evaluation.evaluate import evaluate
from smi.figures.catalogue import FIGURES, draw_figure, save_figure
from smi.files import write_json, write_text
from smi.methods import METHOD_NAMES
from smi.pages.plots import plot, single_plot
from smi.paper.claims import judge_claims
from smi.paper.cost import BATCH, DIM
from smi.paper.paper_tables import paper_table
from smi.paper.plan import Plan, require_dataset
from smi.paper.reproducible import CLAIMS, ITEMS, Need
from smi.paper.scales import KINDS, METHODS, SEEDS, SWEEP, TWO_PROCESSES, DatasetSetup
from smi.paper.timing import largest_dim, time_losses_in_turn
from smi.paper.verdicts import Claim, DatasetComparisons, LossTimes
from smi.terminal import announce, say

Entry = dict[str, Any]
TABLE_KINDS = {"table-1": (METHODS, SEEDS), "table-2": (), "table-3": (SEEDS,)}


class Outputs:
    """Make and write everything that a plan's items show.

    comparisons: those that were made, by dataset and kind. notes: sentences for the page.
    """

    def __init__(self, plan: Plan, comparisons: Mapping[tuple[str, str], Comparison]):
        self.plan = plan
        self.comparisons = comparisons
        self.notes: list[str] = []
        self.can_write_svg = True  # until it turns out that there is no browser to draw it

    def document(self) -> dict[str, list[Entry]]:
        """Make all items; the keys are those of claims.json."""
        names = [name for name in self.plan.names if name in FIGURES]
        # It evaluates the runs, and the other figures and tables read the results.
        names.sort(key=lambda name: name != "linear-curves")
        figures = {name: list(self.figures(name)) for name in names}
        claims = self.claims() if CLAIMS in self.plan.names else []
        return {
            "claims": [claim.plain() for claim in claims],
            "tables": [self.table(name) for name in self.plan.names if name in TABLE_KINDS],
            "figures": [entry for name in self.plan.names for entry in figures.get(name, ())],
            "comparisons": list(self.comparison_entries()),
        }

    # -------------------------------------------------------------------------------- tables

    def table(self, name: str) -> Entry:
        """Make one of the paper's tables and write it as Markdown."""
        number = name.removeprefix("table-")
        entry: Entry = {"name": name, "title": f"Table {number}", "file": "", "why": ""}
        entry |= {"groups": [], "rows": [], "notes": []}
        kinds = TABLE_KINDS[name]
        sources = self._table_sources(kinds)
        if kinds and not sources:
            return entry | {"why": self.why_missing(name)}
        try:
            table = paper_table(number, sources)
        except Exception as error:  # the rest is still made
            return entry | {"why": reason(error)}
        entry["file"] = f"tables/{name}.md"
        path = self.plan.out / entry["file"]
        write_text(path, f"{table.title}\n\n{table.markdown()}\n")
        say(f"{path}: {table.title}")
        groups = [(group.title, group.columns) for group in table.groups]
        values = {"groups": groups, "rows": table.rows, "notes": table.notes}
        return entry | {"title": table.title} | values

    def _table_sources(self, kinds: Sequence[str]) -> list[str]:
        """Return runs of the first kind's datasets, each run once."""
        sources = [
            folder
            for setup in self.plan.setups
            if kinds and (setup.name, kinds[0]) in self.comparisons
            for kind in kinds
            for folder in self.sources(setup, Need(kind, METHOD_NAMES), self.plan.num_seeds)
        ]
        return list(dict.fromkeys(sources))

    def sources(self, setup: DatasetSetup, need: Need, num_seeds: int) -> list[str]:
        """Return the folders of the runs that an item needs and that did not fail."""
        comparison = self.comparisons.get((setup.name, need.kind))
        return [
            run.folder
            for row in (comparison.rows if comparison else ())
            if row.method in need.methods
            for run in row.runs
            if run.seed < num_seeds and not run.failed
        ]

    def why_missing(self, name: str) -> str:
        """Explain why an item has no runs."""
        kind = ITEMS[name].needs[0].kind
        if any((setup.name, kind) in self.comparisons for setup in self.plan.setups):
            return "The runs that it needs failed."
        datasets = [setup.source for setup in self.plan.scale.datasets if kind in setup.kinds]
        return (
            f"It needs runs ({KINDS[kind]}) that this scale makes on {', '.join(datasets)}, "
            "which is not available."
        )

    # -------------------------------------------------------------------------------- figures

    def figures(self, name: str) -> Iterator[Entry]:
        """Draw a figure for all datasets together, or one for each."""
        item = ITEMS[name]
        (need,) = item.needs
        num_seeds = self.plan.num_seeds if item.shows_seeds else 1
        by_dataset = {
            setup.folder: sources
            for setup in self.plan.setups
            if (sources := self.sources(setup, need, num_seeds))
        }
        if not by_dataset:
            why = self.why_missing(name)
            yield {"name": name, "sentence": item.sentence, "files": [], "plot": "", "why": why}
        elif item.joins_datasets or len(by_dataset) == 1:
            all_sources = [source for sources in by_dataset.values() for source in sources]
            yield self.figure(name, name, all_sources)
        else:
            for folder, sources in by_dataset.items():
                yield self.figure(name, f"{name}-{folder}", sources)

    def figure(self, name: str, file: str, sources: Sequence[str]) -> Entry:
        """Draw one figure and write it as HTML, as data for the page, and as SVG if possible."""
        entry: Entry = {"name": file, "sentence": ITEMS[name].sentence, "files": [], "plot": ""}
        entry["why"] = ""
        html = f"figures/{file}.html"
        try:
            figure = self._draw(name, sources)
            save_figure(figure, name, self.plan.out / html)
            self._write_plot(figure, file, ITEMS[name].sentence)
        except Exception as error:  # the rest is still made
            return entry | {"why": reason(error)}
        entry["files"].append(html)
        entry["plot"] = f"figures/{file}.json"
        if self._write_svg(figure, name, file):
            entry["files"].append(f"figures/{file}.svg")
        say(f"{self.plan.out / html}: {entry['sentence']}")
        return entry

    def _draw(self, name: str, sources: Sequence[str]) -> Any:
        runtime = self.plan.runtime
        if name == "linear-curves":
            epochs = self.plan.scale.linear_epochs
            evaluate(sources, protocols=["linear"], epochs=epochs, runtime=runtime)
        return draw_figure(name, sources, data=self._figure_data(name), runtime=runtime)

    def _figure_data(self, name: str) -> str | None:
        """Return STL-10 for t-SNE as in the paper, if it exists; None is the runs' dataset."""
        if name != "tsne" or self.plan.scale.name != "paper":
            return None
        try:
            require_dataset("stl10", self.plan.runtime)
        except UserError:
            return None
        return "stl10"

    def _write_plot(self, figure: Any, file: str, title: str) -> None:
        values = figure.to_plotly_json()
        block = replace(plot(title, values), width=single_plot(values, file).width)
        write_json(self.plan.out / "figures" / f"{file}.json", asdict(block))

    def _write_svg(self, figure: Any, name: str, file: str) -> bool:
        if not self.can_write_svg:
            return False
        try:
            save_figure(figure, name, self.plan.out / "figures" / f"{file}.svg")
        except Exception as error:
            # A UserError means that there is no browser; another error may be this figure's alone.
            self.can_write_svg = not isinstance(error, UserError)
            figures = "Some figures are" if self.can_write_svg else "Figures are"
            self.notes.append(f"{figures} HTML only: {reason(error)}")
            return False
        return True

    # -------------------------------------------------------------------------------- claims

    def claims(self) -> list[Claim]:
        """Judge the claims; none, with a note, if that fails."""
        datasets = []
        for setup in self.plan.setups:
            made = [
                self.comparisons.get((setup.name, kind)) for kind in (SEEDS, SWEEP, TWO_PROCESSES)
            ]
            if any(comparison is not None for comparison in made):
                datasets.append(DatasetComparisons(setup.name, *made))
        try:
            return judge_claims(datasets, self.loss_times())
        except Exception as error:  # the rest is still made
            self.notes.append(f"The claims could not be judged. {reason(error)}")
            announce(self.notes[-1])
            return []

    def loss_times(self) -> LossTimes | None:
        """Time the losses once per machine, so that making the page again does not change it."""
        path = self.plan.out / "cost.json"
        device = self.plan.runtime.choose_device()
        machine = describe_device(device)
        earlier = _read_times(path)
        if earlier is not None and earlier.machine == machine:
            return earlier
        dim = largest_dim() if device.type == "cpu" else DIM
        say(f"timing the losses at {BATCH} × {dim}")
        try:
            times = time_losses_in_turn(BATCH, dim, device=device)
        except (RuntimeError, MemoryError) as error:
            message = (str(error).splitlines() or [type(error).__name__])[0]
            self.notes.append(f"The losses could not be timed at {BATCH} × {dim}: {message}.")
            return None
        loss_times = LossTimes(BATCH, dim, machine, times)
        write_json(path, asdict(loss_times))
        return loss_times

    # -------------------------------------------------------------------------------- comparisons

    def comparison_entries(self) -> Iterator[Entry]:
        """Yield the title and the files of each comparison."""
        for planned in self.plan.comparisons:
            folder = planned.tables_folder(self.plan.out)
            names = ("figure.html", "table.md", "table.csv", "comparison.json")
            yield {
                "name": f"{planned.setup.name} {planned.kind}",
                "title": f"{planned.setup.name}: {planned.sentence}",
                "files": [str((folder / name).relative_to(self.plan.out)) for name in names],
                "why": "",
            }


def _read_times(path: Path) -> LossTimes | None:
    try:
        loss_times = LossTimes(**json.loads(path.read_text(encoding="utf-8")))
        times = {name: tuple(values) for name, values in loss_times.times.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # absent, or not our file
        return None
    return replace(loss_times, times=times)


def reason(error: Exception) -> str:
    """Return the first line of an error as a sentence."""
    text = str(error).strip().splitlines() or [""]
    return f"{text[0]}." if isinstance(error, UserError) else f"{type(error).__name__}: {text[0]}."
