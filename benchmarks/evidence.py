"""First evidence: SMI beside Barlow Twins, VICReg and SimCLR on CIFAR-10 and on photographs, three seeds, with a sweep of SMI's λ.

    smi compare cifar10-small --methods SMI BarlowTwins VICReg SimCLR --sweep SMI.redundancy_weight=0.1,0.01,0.03,0.3 --root DATA
        --data.images 6000 --epochs 8 --log.probe_every 0 --out runs/cifar10
    smi compare imagenette-small --methods SMI BarlowTwins VICReg SimCLR --sweep SMI.redundancy_weight=0.1,0.01,0.03,0.3
        --data DATA/imagenette-sub --epochs 12 --log.probe_every 0 --out runs/imagenette
    smi evaluate runs/cifar10/runs/SMI/seed-0 --floors; smi evaluate runs/imagenette/runs/SMI/seed-0 --floors

    python benchmarks/evidence.py keep runs/cifar10 runs/imagenette     into results/comparison-RECIPE/, without this machine's paths
    python benchmarks/evidence.py show                                  the table of the README
    python benchmarks/evidence.py claims                                the paper's claims on these runs
    python benchmarks/evidence.py draw                                  docs/comparison-*.png

Knobs are those of the recipes: benchmarks/knobs.py chose them on training images that were kept apart, four values for each method. The
test images are looked at once, after training: --log.probe_every 0 turns the looks on the way off.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

from machine import RESULTS, command, footer, stamp
from smi.comparison.comparison import Comparison, Estimate, Row, TrainedRun
from smi.comparison.figure import draw_comparison
from smi.evaluation.results import Result, read_all
from smi.paper.claims import Evidence, claims

NAMES = {"cifar10-small": "CIFAR-10", "imagenette-small": "Imagenette photographs"}
SCORES = {"kNN": "kNN", "linear-cached": "linear", "1 label": "1 label", "10 labels": "10 labels"}
SHOWN = {"BarlowTwins": "Barlow Twins"}


def keep(folder: Path, commit: str) -> Path:
    """A comparison, what is known of an untrained encoder and of pixels under its protocols, and the paper's claims on its runs."""
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
    found = [
        claim.plain()
        for claim in claims([Evidence(NAMES[recipe], pair=comparison, sweep=comparison)])
        if _measured(claim.name)
    ]
    about = stamp(
        comparison.about["device"].split(", ")[1], torch=comparison.about["versions"]["torch"]
    )
    about |= {"commit": commit} if commit else {}
    for name, document in (
        ("comparison", comparison.plain() | about | {"floors": floors}),
        ("claims", {"claims": found} | about),
    ):
        text = json.dumps(document, indent=1, ensure_ascii=False)
        text = re.sub(r"(?<=--root=)[^ \"]+|(?<=data=)/[^ \"]+(?=/)", "DATA", text).replace(
            f"{folder.parent}/", "runs/"
        )
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return out


def _measured(name: str) -> bool:
    return name not in ("cost", "no-gather")  # these are no matter of runs


def show(recipe: str) -> str:
    """Methods, then the sweep, in Markdown."""
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
        lines.append(
            f"| {subject} | {' | '.join(f'{100 * scores[name]:.1f}' if name in scores else '' for name in columns)} | |"
        )
    swept = sorted(
        (row for row in comparison.rows if row.value is not None), key=lambda row: float(row.value)
    )
    said = ", ".join(
        f"{row.value:g}: {_cell(comparison.score(row, columns['linear-cached']))}" for row in swept
    )
    images = comparison.protocols[columns["kNN"][0]].protocol
    lines += ["", f"SMI's λ, linear: {said}."]
    lines += [
        "",
        f"{images['train']['images']:,} labelled images, {images['test']['images']:,} test images, {len(comparison.seeds)} seeds.",
    ]
    return "\n".join([*lines, "", footer(comparison.about)])


def draw(recipe: str) -> Path:
    """Nearest neighbours and the linear classifier: what the pages show."""
    whole = Comparison.read(RESULTS / f"comparison-{recipe}")

    def some(result: Result) -> Result:
        return replace(
            result,
            scores=tuple(
                score for score in result.scores if score.name in ("kNN", "linear-cached")
            ),
        )

    def kept(run: TrainedRun) -> TrainedRun:
        return replace(
            run, results=tuple(result for result in map(some, run.results) if result.scores)
        )

    rows = [replace(row, runs=tuple(map(kept, row.runs))) for row in whole.rows]
    drawn = draw_comparison(
        replace(whole, rows=tuple(rows)), costs=False
    )  # runs beside other work are no measurement of time
    out = RESULTS.parent / "docs" / f"comparison-{recipe.removesuffix('-small')}.png"
    out.write_bytes(drawn.to_image(format="png", scale=1.4))
    return out


def show_claims() -> str:
    """Each claim, and what it came to on each set."""
    documents = {
        recipe: json.loads((RESULTS / f"comparison-{recipe}" / "claims.json").read_text())
        for recipe in NAMES
    }
    lines = ["| claim | set | verdict | |", "|---|---|---|---|"]
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


def _cell(found: Estimate | None) -> str:
    return (
        ""
        if found is None
        else f"{100 * found.mean:.1f} ± {100 * found.half:.1f}"
        if found.high is not None
        else f"{100 * found.mean:.1f}"
    )


def _points(found: Estimate | None) -> str:
    return "" if found is None else found.points


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("what", choices=("keep", "show", "claims", "draw"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument(
        "--commit", default="", help="of the code that made the runs (default: this one)"
    )
    arguments = parser.parse_args()
    if arguments.what == "claims":
        print(show_claims())
    elif arguments.what == "show":
        print("\n\n".join(show(recipe) for recipe in NAMES))
    elif arguments.what == "draw":
        print(*map(draw, NAMES), sep="\n")
    for folder in arguments.folders:
        print(keep(folder, arguments.commit))


if __name__ == "__main__":
    main()
