"""Collect runs from folders of runs and folders of comparisons."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.files import (
    Sources,
    as_list,
    check_all,
    check_fields,
    check_numbers,
    damaged,
    expand,
    read_json,
)
from smi.runs.run import is_run
from smi.terminal import announce

COMPARISON = "comparison.json"
# What readers of comparison.json need; those with ? are not in files of earlier versions.
NUMBER = (int, float)
SCORE_KINDS = {"stamp": str, "score": str, "value": NUMBER}
PROTOCOL_KINDS = {
    "stamp": str,
    "sentence": str,
    "name": str,
    "data": str,
    "test?": {"images?": int},
    "draws?": int,
}
RUN_KINDS = {
    "seed": int,
    "folder": str,
    "command": str,
    "results": list,
    "failed": str,
    "step_ms?": NUMBER,
    "peak_mb?": NUMBER,
    "device?": str,
    "steps?": int,
    "halved?": str,
    "criteria?": dict,
}
ROW_KINDS = {"name": str, "method": str, "runs": list, "loss_ms?": NUMBER}
START_KINDS = {
    "source": str,
    "network": str,
    "digest": str,
    "results": list,
    "failed": str,
    "criteria?": dict,
}
COMPARISON_KINDS = {
    "seeds": list,
    "swept?": str,
    "protocols": list,
    "rows": list,
    "notes": list,
    "off_the_shelf?": START_KINDS,
    "seconds?": NUMBER,
    "learning_rates?": dict,
    "choice?": list,
}


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
    return [
        ComparedRun(row["name"], run["seed"], locate_run(folder, run["folder"]), run["failed"])
        for row in read_comparison(folder)["rows"]
        for run in row["runs"]
    ]


def read_comparison(folder: Path) -> dict[str, Any]:
    """Read comparison.json and check the fields that its readers need."""
    path = folder / COMPARISON
    try:
        document = read_json(path)
        check_fields(document, COMPARISON_KINDS, path)
        check_all(document["protocols"], PROTOCOL_KINDS, path, "protocols.")
        check_all(document["rows"], ROW_KINDS, path, "rows.")
        runs = [run for row in document["rows"] for run in row["runs"]]
        check_all(runs, RUN_KINDS, path, "rows.runs.")
        start = document.get("off_the_shelf")
        for owner in runs if start is None else [*runs, start]:
            check_all(owner["results"], SCORE_KINDS, path, "results.")
            check_numbers(owner.get("criteria") or {}, path, "criteria")
        check_numbers(document.get("learning_rates") or {}, path, "learning_rates")
        for name in ("seeds", "choice", "notes"):
            kind = int if name == "seeds" else str
            if not all(type(value) is kind for value in document.get(name) or ()):
                raise damaged(path, f"{name} has a value of a wrong kind")
        return document
    except (UserError, OSError) as error:
        raise UserError(
            f"{path} does not describe a comparison ({error}). Run `smi compare` again to "
            "rewrite it."
        ) from error


def locate_run(folder: Path, recorded: str) -> Path:
    """Return the folder of a compared run: inside the comparison, beside it, or as recorded."""
    last = Path(*Path(recorded).parts[-2:])
    places = (folder / "runs" / last, folder.parent / "runs" / last)  # comparisons may share runs
    return next((place for place in places if place.is_dir()), Path(recorded))
