"""One page about runs and comparisons: what `smi report` writes.

report(["runs/smi", "runs/bt"], "report.html")       # or the folder of a comparison
"""

from collections.abc import Sequence
from pathlib import Path

from smi.device import choose_device, keep_memory
from smi.errors import UserError
from smi.files import disk_errors, expand, write_text
from smi.pages import page
from smi.reporting.document import Gathered
from smi.reporting.portrait import Asked, portrait
from smi.reporting.runs import find, looked
from smi.terminal import printable

__all__ = ["report"]

LARGEST = 10_000_000  # bytes of a page
THINNER = (
    1,
    2,
    4,
    8,
)  # of the images in clouds one in so many is left, if the page would be larger


def report(
    sources: Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
) -> Path:
    """Write a page about runs' and comparisons' folders that needs no network nor any other file; give its path.

    data: images to look at; None: what each run was pretrained on. root: where named sets lie; None: where the run found them.
    """
    out = expand(out)
    _check(sources, out)
    shown, comparisons = find(sources)
    if choose_device(device).type == "cpu":
        keep_memory()
    portraits = {}
    for one in looked(shown):
        place = root or one.run.about.get("root")
        asked = Asked(
            str(data or one.run.config["data"]["source"]),
            None if place is None else str(expand(place)),
        )
        portraits[one.row] = portrait(one.run, asked, device=device, num_workers=num_workers)
    gathered = Gathered(shown, comparisons, portraits)
    for thinner in THINNER:
        text = page(gathered.document(thinner))
        if len(text.encode()) < LARGEST:
            break
    else:
        raise UserError(
            f"a page about {len(shown)} runs is larger than {LARGEST / 1e6:g} MB: give fewer of them"
        )
    with disk_errors(f"writing {out}"):
        write_text(out, text)
    runs = "one run" if len(shown) == 1 else f"{len(shown)} runs"
    print(
        f"{printable(str(out))}: {runs}, {len(text.encode()) / 1e6:.1f} MB; opens in any browser, without a network"
    )
    return out


def _check(sources: Sequence[str | Path], out: Path) -> None:
    """Before anything is computed."""
    if not sources:
        raise UserError("name the folder of a run or a comparison to report on")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report is a page, so --out must end in .html, not {out.name!r}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    if out.is_dir():
        raise UserError(f"{out} is a folder: choose another --out")
