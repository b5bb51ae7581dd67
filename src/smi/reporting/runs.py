"""Which runs a page is about, and what they are called on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smi.analysis.comparison import Comparison
from smi.analysis.style import SPELT, called, data_of
from smi.data.places import expand
from smi.errors import UserError
from smi.run import Run


@dataclass(frozen=True)
class Shown:
    """A run of the page. Runs of one row of a comparison differ by their seed, and look the same."""

    name: str
    row: str
    run: Run
    command: str = ""  # that made it, if it is known
    compared: bool = False


def find(sources: Sequence[str | Path]) -> tuple[list[Shown], dict[str, Comparison]]:
    comparisons: dict[str, Comparison] = {}
    alone: list[Run] = []
    found: list[Shown] = []
    for source in map(expand, sources):
        if not source.exists():
            raise UserError(f"there is no run or comparison {source}")
        if not (source / "comparison.json").is_file():
            alone.append(Run(source))
            continue
        comparison = Comparison.read(source)
        comparisons[source.resolve().name] = comparison
        here = list(_compared(comparison))
        if not here:
            raise UserError(f"{source} is a comparison without runs: they are looked for in {source / 'runs'}")
        found += here
    found = [Shown(name, name, run) for name, run in called(alone).items()] + found
    folders = [one.run.folder.resolve() for one in found]
    if twice := next((folder for i, folder in enumerate(folders) if folder in folders[:i]), None):
        raise UserError(f"{twice} is given twice")
    return _apart(found), comparisons


def _compared(comparison: Comparison) -> Iterator[Shown]:
    for row in comparison.rows:
        name = spelt(row.name)
        for trained in row.runs:
            if (Path(trained.folder) / "config.yaml").is_file():
                seed = f", seed {trained.seed}" if len(row.runs) > 1 or len(comparison.seeds) > 1 else ""
                yield Shown(f"{name}{seed}", name, Run(trained.folder), trained.command, True)


def spelt(name: str) -> str:
    method, comma, rest = name.partition(",")
    return SPELT.get(method, method.rsplit(".", 1)[-1]) + comma + rest.replace("redundancy_weight=", "λ = ")


def _apart(found: list[Shown]) -> list[Shown]:
    """Those of one name say what else tells them apart: their data, or where they lie."""
    names = [one.name for one in found]
    if len(set(names)) == len(names):
        return found
    data = [data_of(one.run) for one in found]
    more = data if len(set(zip(names, data, strict=True))) == len(names) else [str(one.run.folder) for one in found]
    rows = data if more is data else [str(one.run.folder.parent if one.compared else one.run.folder) for one in found]
    return [
        replace(one, name=f"{one.name}, {words}", row=f"{one.row}, {others}") for one, words, others in zip(found, more, rows, strict=True)
    ]


def looked(shown: Sequence[Shown]) -> list[Shown]:
    """One run of each row: the first that has an encoder."""
    rows: dict[str, Shown] = {}
    for one in shown:
        if one.row not in rows or (one.run.checkpoint.is_file() and not rows[one.row].run.checkpoint.is_file()):
            rows[one.row] = one
    return list(rows.values())
