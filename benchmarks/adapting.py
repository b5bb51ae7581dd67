"""Compare encoders from scratch, off the shelf and adapted, in the same minutes on one core.

    python benchmarks/lite0.py lite0.safetensors                         real ImageNet weights
    python benchmarks/adapting.py run cifar10 --data DATA --init lite0.safetensors --out runs
    python benchmarks/adapting.py run imagenette-sub --data DATA --init lite0.safetensors --out runs
    python benchmarks/adapting.py run omniglot-sub --data DATA --init lite0.safetensors --out runs
    python benchmarks/adapting.py show                                   prints the tables

DATA holds cifar-10-batches-bin/, imagenette-sub/ and omniglot-sub/. `run` can be repeated: runs
that exist are not made again. It writes results/adapting-SET/, without local paths.

Four methods start from the same weights under the recipe `adapt`, three seeds each. SMI also trains
the small encoder of another recipe from scratch, for about as long. Hyperparameters are those of
the recipes. Probes use held-out training images. Test images are used once, after training.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from machine import RESULTS, command, footer, stamp, warn_if_dirty

METHODS = ("SMI", "BarlowTwins", "VICReg", "SimCLR")
SHOWN = {"BarlowTwins": "Barlow Twins"}
SCORES = {
    "kNN": "kNN",
    "linear-cached": "linear",
    "1 label": "1 label",
    "5 labels": "5 labels",
    "10 labels": "10 labels",
}
ENCODER = "tf_efficientnet_lite0"


class Case(NamedTuple):
    """Describe a dataset: how it is named, adapted to, and trained on from scratch."""

    name: str
    adapted: dict[str, Any]
    recipe: str  # from scratch
    scratch: dict[str, Any]
    images: int | None = None  # labelled images of the evaluation; None: all


HELD_OUT = {"data.validation": 0.1, "log.probe_images": 1000, "precision": "float32"}
SCRATCH = {"log.probe_every": 0, "data.images": None, "views.input_size": None}
STROKES = {"views": "digits"}  # no flips, no colours
CASES = {
    "cifar10": Case(
        "CIFAR-10",
        {"data.images": 4000, "epochs": 1},
        "cifar10-small",
        {"data.images": 4000, "epochs": 8},
        images=5000,
    ),
    "imagenette-sub": Case(
        "Imagenette photographs", {"epochs": 1}, "imagenette-small", {"epochs": 8}
    ),
    "omniglot-sub": Case(
        "Omniglot characters",
        {"data.images": 2000, "epochs": 1} | STROKES,
        "imagenette-small",
        {"data.images": 2000, "epochs": 6} | STROKES,
    ),
}


def run(name: str, data: Path, init: Path, out: Path) -> Path:
    """Make all runs of a dataset, and write their scores."""
    import torch

    import smi

    case = CASES[name]
    threads = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))  # of the runs, too
    torch.set_num_threads(threads)
    about = stamp(f"{threads} threads", torch=torch.__version__.partition("+")[0])
    is_folder = (data / name).is_dir()
    common = {
        "data": data / name if is_folder else name,
        "images": case.images,
        "runtime": smi.Runtime(root=None if is_folder else data),
    }
    start = {"encoder": ENCODER, "init": str(init)}
    adapted = smi.compare(
        METHODS,
        recipe="adapt",
        out=out / f"{name}-adapted",
        overrides=start | HELD_OUT | case.adapted,
        **common,
    )
    scratch = smi.compare(
        ["SMI"],
        recipe=case.recipe,
        out=out / f"{name}-scratch",
        overrides=HELD_OUT | SCRATCH | case.scratch,
        **common,
    )
    for kind, comparison in (("adapted", adapted), ("scratch", scratch)):
        text = json.dumps(comparison.plain() | about, indent=1, ensure_ascii=False)
        for path, shown in ((data, "DATA"), (init.parent, "."), (out, "runs")):
            text = re.sub(rf"{re.escape(str(path))}(?=[/ \"'])", shown, text)
        folder = RESULTS / f"adapting-{name}" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.json").write_text(text + "\n", encoding="utf-8")
    return RESULTS / f"adapting-{name}"


def show(name: str) -> str:
    """Format the scores of a dataset as Markdown."""
    from smi.comparison.comparison import Comparison, Estimate, Row

    adapted = Comparison.read(RESULTS / f"adapting-{name}" / "adapted")
    scratch = Comparison.read(RESULTS / f"adapting-{name}" / "scratch")
    columns = {column[1]: column for column in adapted.columns if column[1] in SCORES}

    def cell(estimate: Estimate | None) -> str:
        if estimate is None:
            return ""
        return f"{100 * estimate.mean:.1f} ± {100 * estimate.half:.1f}"

    def line(title: str, comparison: Comparison, row: Row) -> str:
        cells = [cell(comparison.score(row, column)) for column in columns.values()]
        seconds = [1e-3 * run.step_ms * run.steps for run in row.runs]
        return f"| {title} | {' | '.join(cells)} | {sum(seconds) / len(seconds):,.0f} s |"

    heads = " | ".join(SCORES[score] for score in columns)
    lines = [f"**{CASES[name].name}**", "", f"| | {heads} | training |"]
    lines += ["|---|" + "---:|" * (len(columns) + 1)]
    lines += [line("SMI from scratch", scratch, scratch.rows[0])]
    start = [f"{100 * adapted.start_score(column):.1f}" for column in columns.values()]
    lines += [f"| off the shelf | {' | '.join(start)} | |"]
    for row in adapted.rows:
        lines += [line(f"adapted with {SHOWN.get(row.method, row.method)}", adapted, row)]
    gains = [adapted.gain(adapted.rows[0], column).points for column in columns.values()]
    lines += [f"| *gain of SMI over off the shelf* | {' | '.join(gains)} | |"]
    for row in adapted.rows[1:]:
        title = f"*{SHOWN.get(row.method, row.method)} minus SMI*"
        gaps = [adapted.difference(row, column).points for column in columns.values()]
        lines += [f"| {title} | {' | '.join(gaps)} | |"]
    images = adapted.protocols[columns["kNN"][0]].protocol
    lines += [
        "",
        f"{images['train']['images']:,} labelled images, {images['test']['images']:,} test images, "
        f"{len(adapted.seeds)} seeds.",
    ]
    return "\n".join([*lines, "", footer(adapted.about)])


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("action", choices=("run", "show"))
    parser.add_argument("set", nargs="?", choices=tuple(CASES))
    for name in ("--data", "--init", "--out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    if given.action == "show":
        kept = [name for name in CASES if (RESULTS / f"adapting-{name}").is_dir()]
        print("\n\n".join(map(show, [given.set] if given.set else kept)))
        return
    if None in (given.set, given.data, given.init, given.out):
        parser.error("run needs a set, --data, --init and --out")
    warn_if_dirty()
    print(run(given.set, given.data.resolve(), given.init.resolve(), given.out.resolve()))


if __name__ == "__main__":
    main()
