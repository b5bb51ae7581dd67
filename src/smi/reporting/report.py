"""Write one page about runs and comparisons.

report(["runs/smi", "runs/bt"], "report.html")
"""

from collections.abc import Sequence
from pathlib import Path

from smi.device import Runtime
from smi.errors import UserError
from smi.figures.sample import Sample
from smi.files import Sources, as_list, disk_errors, expand, write_text
from smi.pages import page
from smi.reporting.document import ReportDocument
from smi.reporting.portrait import MAX_IMAGES, Portrait, load_portrait
from smi.reporting.runs import ReportRun, find_runs, first_runs
from smi.reporting.start_portrait import load_start_portrait
from smi.terminal import counted, printable, quietly, say

__all__ = ["report"]

MAX_PAGE_BYTES = 10_000_000
THINNING = (1, 2, 4, 8)  # t-SNE shows every n-th image; the first n that fits is used


def report(
    sources: Sources,
    out: str | Path = "report.html",
    *,
    data: str | Path | None = None,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Write a page about folders of runs and comparisons, and return its path.

    smi.report(["runs/smi", "runs/comparison"], "report.html")

    The page needs neither a network nor other files.
    data: images to show; None takes the dataset that each run was pretrained on.
    runtime: if its root is None, named datasets are read from where the run read them.
    """
    with quietly(quiet):
        out = expand(out)
        folders = as_list(sources)
        _check(folders, out)
        runs, comparisons = find_runs(folders)
        portraits, start_portraits = _load_portraits(runs, data, runtime)
        text = _fit_page(ReportDocument(runs, comparisons, portraits, start_portraits))
        with disk_errors(f"writing {out}"):
            write_text(out, text)
        size = f"{len(text.encode()) / 1e6:.1f} MB"
        say(
            f"{printable(str(out))}: {counted(len(runs), 'run')}, {size}; "
            "opens in any browser, without a network"
        )
        return out


def _check(sources: Sequence[str | Path], out: Path) -> None:
    """Refuse wrong arguments before anything is computed."""
    if not sources:
        raise UserError("name the folder of a run or a comparison to report on")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report is a web page, so --out must end in .html, not {out.name!r}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    if out.is_dir():
        raise UserError(f"{out} is a folder: choose another --out")


def _load_portraits(
    runs: Sequence[ReportRun], data: str | Path | None, runtime: Runtime
) -> tuple[dict[str, Portrait], dict[str, Portrait]]:
    """Load or compute the portrait of one run of each row, and that of its start if it has one."""
    device = runtime.choose_device()
    portraits = {}
    start_portraits = {}
    for run in first_runs(runs):
        root = runtime.root or run.run.facts.root
        sample = Sample(
            str(data or run.run.config["data"]["source"]),
            None if root is None else str(expand(root)),
            images=MAX_IMAGES,
            num_workers=runtime.num_workers,
        )
        portraits[run.row] = load_portrait(run.run, sample, device)
        if run.run.init_source is not None:
            start_portraits[run.row] = load_start_portrait(run.run, sample, device)
    return portraits, start_portraits


def _fit_page(document: ReportDocument) -> str:
    """Return the HTML of a page, with fewer images in t-SNE if it would be too large."""
    for thinning in THINNING:
        text = page(document.build(thinning))
        if len(text.encode()) < MAX_PAGE_BYTES:
            return text
    raise UserError(
        f"a page about {len(document.runs)} runs is larger than {MAX_PAGE_BYTES / 1e6:g} MB: "
        "give fewer runs"
    )
