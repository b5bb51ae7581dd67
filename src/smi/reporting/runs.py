"""Which runs a page is about, and what they are called on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smi.comparison.comparison import Comparison
from smi.errors import UserError
from smi.files import expand
from smi.runs.names import called, data_of, spelt
from smi.runs.run import Run


@dataclass(frozen=True)
class Shown:
    """A run of the page. Runs of one row of a comparison differ by their seed, and look the same."""

    name: str
    row: str
    run: Run
    source: str  # where it was found: its own folder, or that of a comparison
    command: str = ""  # that made it, if it is known
    compared: bool = False


def find(sources: Sequence[str | Path]) -> tuple[list[Shown], dict[str, Comparison]]:
    """Runs by themselves first; one that several comparisons share is there once. Comparisons by their names."""
    folders = [expand(source).resolve() for source in sources]
    if twice := next((folder for i, folder in enumerate(folders) if folder in folders[:i]), None):
        raise UserError(f"{twice} is given twice")
    comparisons: dict[str, Comparison] = {}
    alone: list[Run] = []
    compared: list[Shown] = []
    for source, folder in zip(map(expand, sources), folders, strict=True):
        if not source.exists():
            raise UserError(f"there is no run or comparison {source}")
        if not (source / "comparison.json").is_file():
            alone.append(Run(source))
            continue
        comparison = Comparison.read(source)
        name = (
            folder.name if folder.name not in comparisons else f"{folder.parent.name}/{folder.name}"
        )
        comparisons[name if name not in comparisons else str(folder)] = comparison
        here = list(_compared(comparison, str(source)))
        if not here:
            raise UserError(
                f"{source} is a comparison without runs: they are looked for in {source / 'runs'}"
            )
        compared += here
    found = [Shown(name, name, run, str(run.folder)) for name, run in called(alone).items()]
    seen = {one.run.folder.resolve() for one in found}
    for one in compared:
        if one.run.folder.resolve() not in seen:
            seen.add(one.run.folder.resolve())
            found.append(one)
    return _apart(found), comparisons


def _compared(comparison: Comparison, source: str) -> Iterator[Shown]:
    for row in comparison.rows:
        name = spelt(row.name)
        for trained in row.runs:
            if (Path(trained.folder) / "config.yaml").is_file():
                seed = (
                    f", seed {trained.seed}"
                    if len(row.runs) > 1 or len(comparison.seeds) > 1
                    else ""
                )
                yield Shown(
                    f"{name}{seed}", name, Run(trained.folder), source, trained.command, True
                )


def _apart(found: list[Shown]) -> list[Shown]:
    """Rows of one name from several places say what tells them apart: their data, or where they lie."""
    places: dict[str, dict[str, str]] = {}
    for one in found:
        places.setdefault(one.row, {})[one.source] = data_of(one.run)

    def told(one: Shown) -> Shown:
        data = places[one.row]
        if len(data) == 1:
            return one
        more = data[one.source] if len(set(data.values())) == len(data) else one.source
        return replace(one, name=f"{one.name}, {more}", row=f"{one.row}, {more}")

    return [told(one) for one in found]


def looked(shown: Sequence[Shown]) -> list[Shown]:
    """One run of each row: the first that has an encoder."""
    rows: dict[str, Shown] = {}
    for one in shown:
        if one.row not in rows or (
            one.run.checkpoint.is_file() and not rows[one.row].run.checkpoint.is_file()
        ):
            rows[one.row] = one
    return list(rows.values())
