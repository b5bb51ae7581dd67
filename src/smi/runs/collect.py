"""Collect runs from folders of runs and folders of comparisons."""

import json
from dataclasses import dataclass
from pathlib import Path

from smi.errors import UserError
from smi.files import Sources, as_list, expand
from smi.runs.run import is_run
from smi.terminal import announce

COMPARISON = "comparison.json"


@dataclass(frozen=True)
class ComparedRun:
    """Hold one entry of comparison.json; `failed` is the reason of a failure, or empty."""

    row: str
    seed: int
    folder: Path
    failed: str


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison, and is not a run itself."""
    return (folder / COMPARISON).is_file() and not is_run(folder)


def collect_runs(sources: Sources, *, max_rows: int | None = None) -> list[Path]:
    """Return the folders of all runs in `sources`; a comparison stands for its finished runs.

    max_rows: take only the first seed of the first rows of a comparison; None takes every run.
    """
    folders: list[Path] = []
    for source in map(expand, as_list(sources)):
        if not is_comparison(source):
            folders.append(source)
            continue
        rows: dict[str, list[Path]] = {}
        for run in read_compared(source):
            if run.failed:
                announce(f"left out: {run.row}, seed {run.seed}, which failed")
            else:
                rows.setdefault(run.row, []).append(run.folder)
        if not rows:
            raise UserError(f"{source} has no finished run yet")
        if max_rows is None:
            folders += [folder for runs in rows.values() for folder in runs]
        else:
            folders += [runs[0] for runs in rows.values()][:max_rows]
    return folders


def read_compared(folder: Path) -> list[ComparedRun]:
    """List the runs of a comparison, in the order of its rows."""
    path = folder / COMPARISON
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [
            ComparedRun(row["name"], run["seed"], locate_run(folder, run["folder"]), run["failed"])
            for row in rows
            for run in row["runs"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not describe a comparison ({error!r}): run `smi compare` again"
        ) from error


def locate_run(folder: Path, recorded: str) -> Path:
    """Return the folder of a compared run: inside the comparison, beside it, or as recorded."""
    last = Path(*Path(recorded).parts[-2:])
    places = (folder / "runs" / last, folder.parent / "runs" / last)  # comparisons may share runs
    return next((place for place in places if place.is_dir()), Path(recorded))
