"""Find the runs of a report and give each a name that is unique on the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smi.comparison.comparison import Comparison
from smi.errors import UserError
from smi.files import expand
from smi.runs.collect import is_comparison
from smi.runs.names import dataset_name, display_row_name, name_runs
from smi.runs.run import Run, is_run


@dataclass(frozen=True)
class ReportRun:
    """Hold one run of the page. Runs of one row of a comparison differ by their seed only."""

    name: str
    row: str
    run: Run
    source: str  # the folder that was given: the run's own, or that of a comparison
    command: str = ""  # the command that made the run, if recorded


def find_runs(sources: Sequence[str | Path]) -> tuple[list[ReportRun], dict[str, Comparison]]:
    """Return the runs in folders of runs and comparisons, and the comparisons by name.

    Single runs come first. A run that several comparisons share is listed once.
    """
    _refuse_duplicates(sources)
    comparisons: dict[str, Comparison] = {}
    single_runs: list[Run] = []
    compared_runs: list[ReportRun] = []
    for source in map(expand, sources):
        if not source.exists():
            raise UserError(f"there is no run or comparison {source}")
        if not is_comparison(source):
            single_runs.append(Run(source))
            continue
        comparison = Comparison.read(source)
        comparisons[_comparison_name(source, comparisons)] = comparison
        runs = list(_runs_of_comparison(comparison, str(source)))
        if not runs:
            raise UserError(
                f"{source} is a comparison without runs. They are expected in {source / 'runs'}."
            )
        compared_runs += runs
    named = [
        ReportRun(name, name, run, str(run.folder)) for name, run in name_runs(single_runs).items()
    ]
    unique: dict[Path, ReportRun] = {}
    for run in (*named, *compared_runs):
        unique.setdefault(run.run.folder.resolve(), run)
    return _with_unique_rows(list(unique.values())), comparisons


def first_runs(runs: Sequence[ReportRun]) -> list[ReportRun]:
    """Return one run of each row: the first that has a checkpoint, or else the first."""
    rows: dict[str, ReportRun] = {}
    for run in runs:
        first = rows.setdefault(run.row, run)
        if run.run.checkpoint.is_file() and not first.run.checkpoint.is_file():
            rows[run.row] = run
    return list(rows.values())


def _refuse_duplicates(sources: Sequence[str | Path]) -> None:
    """Refuse a folder that is given twice."""
    folders: set[Path] = set()
    for source in sources:
        folder = expand(source).resolve()
        if folder in folders:
            raise UserError(f"{folder} is given twice")
        folders.add(folder)


def _comparison_name(source: Path, comparisons: dict[str, Comparison]) -> str:
    """Return the shortest end of a path that no other comparison is named by."""
    folder = source.resolve()
    names = (folder.name, f"{folder.parent.name}/{folder.name}", str(folder))
    return next(name for name in names if name not in comparisons)


def _runs_of_comparison(comparison: Comparison, source: str) -> Iterator[ReportRun]:
    """Yield the runs of a comparison that still exist."""
    for row in comparison.rows:
        name = display_row_name(row.name)
        has_seeds = len(row.runs) > 1 or len(comparison.seeds) > 1
        for trained in row.runs:
            if is_run(Path(trained.folder)):
                seed = f", seed {trained.seed}" if has_seeds else ""
                run = Run(trained.folder)
                yield ReportRun(f"{name}{seed}", name, run, source, trained.command)


def _with_unique_rows(runs: Sequence[ReportRun]) -> list[ReportRun]:
    """Add the dataset, or else the folder, to rows of the same name from several sources."""
    datasets: dict[str, dict[str, str]] = {}  # by row and source
    for run in runs:
        datasets.setdefault(run.row, {})[run.source] = dataset_name(run.run)

    def unique(run: ReportRun) -> ReportRun:
        by_source = datasets[run.row]
        if len(by_source) == 1:
            return run
        has_own_dataset = len(set(by_source.values())) == len(by_source)
        suffix = by_source[run.source] if has_own_dataset else run.source
        return replace(run, name=f"{run.name}, {suffix}", row=f"{run.row}, {suffix}")

    return [unique(run) for run in runs]
