"""Collect the first evidence: SMI, Barlow Twins, VICReg and SimCLR on CIFAR-10 and photographs.

Each has three seeds; SMI's λ is swept.

    smi compare cifar10-small --methods SMI BarlowTwins VICReg SimCLR
        --sweep SMI.redundancy_weight=0.1,0.01,0.03,0.3 --root DATA
        --data.images 6000 --epochs 8 --log.probe_every 0 --out runs/cifar10
    smi compare imagenette-small --methods SMI BarlowTwins VICReg SimCLR
        --sweep SMI.redundancy_weight=0.1,0.01,0.03,0.3
        --data DATA/imagenette-sub --epochs 12 --log.probe_every 0 --out runs/imagenette
    smi evaluate runs/cifar10/runs/SMI/seed-0 --floors
    smi evaluate runs/imagenette/runs/SMI/seed-0 --floors

    python benchmarks/evidence.py keep runs/cifar10 runs/imagenette
                                             writes results/comparison-RECIPE/, without local paths
    python benchmarks/evidence.py show       prints the table of the README
    python benchmarks/evidence.py claims     prints the paper's claims on these runs
    python benchmarks/evidence.py draw       draws docs/comparison-*.png

The hyperparameters are those of the recipes. benchmarks/knobs.py chose them on held-out training
images, with four values for each method. The test images are used once, after training, because
--log.probe_every 0 turns the probes during training off.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

from machine import RESULTS, command, footer, stamp, warn_if_dirty
from smi.comparison.comparison import Comparison, Estimate, Row, TrainedRun
from smi.comparison.figure import draw_comparison
from smi.evaluation.results import Result, read_all
from smi.paper.claims import judge_claims
from smi.paper.verdicts import DatasetComparisons

NAMES = {"cifar10-small": "CIFAR-10", "imagenette-small": "Imagenette photographs"}
SCORES = {"kNN": "kNN", "linear-cached": "linear", "1 label": "1 label", "10 labels": "10 labels"}
SHOWN = {"BarlowTwins": "Barlow Twins"}


def keep(folder: Path, commit: str) -> Path:
    """Write a comparison, the scores of its floors, and the paper's claims on its runs.

    The floors are an untrained encoder and pixels, under the protocols of the comparison.
    """
    comparison = Comparison.read(folder)
    recipe = comparison.about["recipe"]
    out = RESULTS / f"comparison-{recipe}"
    out.mkdir(parents=True, exist_ok=True)
    floors: dict[str, dict[str, float]] = {}
    for result in read_all(Path(comparison.rows[0].runs[0].folder)):
        if result.subject != "encoder" and result.stamp in comparison.protocols:
            floors.setdefault(result.subject, {}).update(
                {score.name: score.value for score in result.scores}
            )
    measured_claims = [
        claim.plain()
        for claim in judge_claims(
            [DatasetComparisons(NAMES[recipe], pair=comparison, sweep=comparison)]
        )
        if _measured(claim.name)
    ]
    about = stamp(
        comparison.about["device"].split(", ")[1], torch=comparison.about["versions"]["torch"]
    )
    about |= {"commit": commit} if commit else {}
    for name, document in (
        ("comparison", comparison.plain() | about | {"floors": floors}),
        ("claims", {"claims": measured_claims} | about),
    ):
        text = json.dumps(document, indent=1, ensure_ascii=False)
        text = re.sub(r"(?<=--root=)[^ \"]+|(?<=data=)/[^ \"]+(?=/)", "DATA", text).replace(
            f"{folder.parent}/", "runs/"
        )
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return out


def _measured(name: str) -> bool:
    return name not in ("cost", "no-gather")  # these do not depend on runs


def show(recipe: str) -> str:
    """Format the methods and the sweep as Markdown."""
    folder = RESULTS / f"comparison-{recipe}"
    comparison = Comparison.read(folder)
    columns = {
        name: column for column in comparison.columns for name in [column[1]] if name in SCORES
    }
    methods = [row for row in comparison.rows if row.value is None or row is comparison.rows[0]]
    lines = [f"**{NAMES[recipe]}**", ""]
    heads = [SCORES[name] for name in columns]
    lines += [
        f"| | {' | '.join(heads)} | linear, difference to SMI |",
        "|---|" + "---:|" * (len(heads) + 1),
    ]
    for row in methods:
        gap = (
            ""
            if row is methods[0]
            else _points(comparison.difference(row, columns["linear-cached"]))
        )
        cells = [_cell(comparison.score(row, column)) for column in columns.values()]
        lines.append(f"| {_called(row)} | {' | '.join(cells)} | {gap} |")
    for subject, scores in sorted(comparison.about["floors"].items(), reverse=True):
        cells = [f"{100 * scores[name]:.1f}" if name in scores else "" for name in columns]
        lines.append(f"| {subject} | {' | '.join(cells)} | |")
    swept = sorted(
        (row for row in comparison.rows if row.value is not None), key=lambda row: float(row.value)
    )
    sweep = ", ".join(
        f"{row.value:g}: {_cell(comparison.score(row, columns['linear-cached']))}" for row in swept
    )
    images = comparison.protocols[columns["kNN"][0]].protocol
    lines += ["", f"SMI's λ, linear: {sweep}."]
    lines += [
        "",
        f"{images['train']['images']:,} labelled images, {images['test']['images']:,} test images, "
        f"{len(comparison.seeds)} seeds.",
    ]
    return "\n".join([*lines, "", footer(comparison.about)])


def draw(recipe: str) -> Path:
    """Draw the scores of nearest neighbours and of the linear classifier for the docs."""
    whole = Comparison.read(RESULTS / f"comparison-{recipe}")

    def shown_scores(result: Result) -> Result:
        return replace(
            result,
            scores=tuple(
                score for score in result.scores if score.name in ("kNN", "linear-cached")
            ),
        )

    def kept(run: TrainedRun) -> TrainedRun:
        return replace(
            run, results=tuple(result for result in map(shown_scores, run.results) if result.scores)
        )

    rows = [replace(row, runs=tuple(map(kept, row.runs))) for row in whole.rows]
    drawn = draw_comparison(
        replace(whole, rows=tuple(rows)), costs=False
    )  # the times of runs beside other work do not count
    out = RESULTS.parent / "docs" / f"comparison-{recipe.removesuffix('-small')}.png"
    out.write_bytes(drawn.to_image(format="png", scale=1.4))
    return out


def show_claims() -> str:
    """Format each claim and its verdict on each dataset as Markdown."""
    documents = {
        recipe: json.loads((RESULTS / f"comparison-{recipe}" / "claims.json").read_text())
        for recipe in NAMES
    }
    lines = ["| claim | dataset | verdict | |", "|---|---|---|---|"]
    for number, claim in enumerate(next(iter(documents.values()))["claims"]):
        for recipe, document in documents.items():
            finding = document["claims"][number]["findings"][0]
            title = claim["title"] if recipe == next(iter(documents)) else ""
            lines.append(
                f"| {title} | {NAMES[recipe]} | **{finding['verdict']}** | {finding['sentence']} |"
            )
    return "\n".join(lines)


def _called(row: Row) -> str:
    return SHOWN.get(row.method, row.method)


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    if estimate.high is None:
        return f"{100 * estimate.mean:.1f}"
    return f"{100 * estimate.mean:.1f} ± {100 * estimate.half:.1f}"


def _points(estimate: Estimate | None) -> str:
    return "" if estimate is None else estimate.points


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("action", choices=("keep", "show", "claims", "draw"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument(
        "--commit", default="", help="the commit of the code that made the runs (default: this one)"
    )
    arguments = parser.parse_args()
    if arguments.action == "claims":
        print(show_claims())
    elif arguments.action == "show":
        print("\n\n".join(show(recipe) for recipe in NAMES))
    elif arguments.action == "draw":
        print(*map(draw, NAMES), sep="\n")
    if arguments.folders and not arguments.commit:
        warn_if_dirty()
    for folder in arguments.folders:
        print(keep(folder, arguments.commit))


if __name__ == "__main__":
    main()
