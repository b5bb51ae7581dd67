"""Compare seven systems on CIFAR-10 and photographs, with equal epochs and with equal time.

SMI with two and with four views, Barlow Twins, VICReg, SimCLR, BYOL and MoCo v2; five seeds each.

    python benchmarks/evidence.py pace cifar10-small --root DATA     on a quiet machine
    python benchmarks/evidence.py run cifar10-small --root DATA --out runs
    python benchmarks/evidence.py run imagenette-small --data DATA/imagenette-sub --out runs
    python benchmarks/evidence.py keep runs/RECIPE   writes results/comparison-RECIPE/,
                                                     without local paths
    python benchmarks/evidence.py run RECIPE --time --out runs      the same of equal time, after
    python benchmarks/evidence.py keep runs/RECIPE --time           those of equal epochs are kept
    python benchmarks/evidence.py show             prints the tables; --time those of equal time
    python benchmarks/evidence.py claims           prints the paper's claims on these runs
    python benchmarks/evidence.py draw             draws docs/comparison-*.png

`run` resumes. Equal epochs are 36,000 images for every system. Equal time is the time that SMI
with two views takes for them: `pace` measures the step of each system on one quiet core, the median
of rounds in which all take turns, and writes results/pace-RECIPE.json. If a step takes as long as
SMI's, within 5 %, the runs of equal epochs are used again. The other systems get fewer or more
steps, with the same schedule. So other work on the machine does not change a result. All runs
compute in bfloat16 and have whole images of the size of views. The settings of each method are
those of its best trial at the same number of images, on held-out training images (`knobs.py
--best`): six to eight trials of learning rate and main hyperparameter, three or four projectors,
and four further settings. SMI with four views has the settings of two. The test images are used
once, after training: --log.probe_every 0 turns the probes during training off.
"""

import argparse
import json
import re
import statistics
import time
from dataclasses import replace
from pathlib import Path

import knobs
from machine import RESULTS, command, footer, stamp, warn_if_dirty
from smi.comparison.comparison import Comparison, Estimate, Row, TrainedRun
from smi.comparison.figure import draw_comparison
from smi.evaluation.results import Result, read_all
from smi.paper.claims import judge_claims
from smi.paper.verdicts import DatasetComparisons

NAMES = {"cifar10-small": "CIFAR-10", "imagenette-small": "Imagenette photographs"}
BUDGETS = {  # 36,000 images; photographs without the fifth that trials hold out
    "cifar10-small": knobs.BUDGETS["cifar10-small"],
    "imagenette-small": {"epochs": 12},
}
ROUNDS, STEPS, UNTIMED = 3, 8, 3
SAME_PACE = 0.05  # steps that differ by less take equally long
METHODS = ("SMI", "BarlowTwins", "VICReg", "SimCLR", "BYOL", "MoCoV2")
SCORES = {"kNN": "kNN", "linear-cached": "linear", "1 label": "1 label", "10 labels": "10 labels"}
SHOWN = {"BarlowTwins": "Barlow Twins", "MoCoV2": "MoCo v2"}


def settings_of(recipe: str) -> dict[str, object]:
    """Return the settings of all runs of a recipe, with the best ones of each method."""
    settings: dict[str, object] = {
        "log.probe_every": 0,
        "precision": "bfloat16",
        "views.input_size": None,
        **BUDGETS[recipe],
    }
    for method, chosen in knobs.best_settings(recipe).items():
        settings |= {f"methods.{method}.{name}": value for name, value in chosen.items()}
    return settings


def run(recipe: str, arguments: argparse.Namespace) -> None:
    """Make the comparison of a recipe, or resume it; then evaluate the floors."""
    import smi

    settings = settings_of(recipe)
    runtime = smi.Runtime(root=arguments.root)
    shared = {"recipe": recipe, "data": arguments.data, "seeds": arguments.seeds}
    if not arguments.time:
        comparison = smi.compare(
            METHODS,
            out=arguments.out / recipe,
            sweep="SMI.views=2,4",
            overrides=settings,
            runtime=runtime,
            **shared,
        )
        smi.evaluate(comparison.rows[0].runs[0].folder, floors=True, runtime=runtime)
        return
    if json.loads(_pace_file(recipe).read_text())["settings"] != settings:
        raise SystemExit(f"{_pace_file(recipe).name} has other settings: measure the pace again")
    for name, num_steps in steps_of_equal_time(recipe).items():
        method, _, views = name.partition(",views=")
        more = {"methods.SMI.views": int(views)} if views else {}
        timed = {**settings, **more, "steps": num_steps}
        del timed["epochs"]
        smi.compare(
            [method],
            out=arguments.out / f"{recipe}-time" / name,
            overrides=timed,
            runtime=runtime,
            **shared,
        )


def steps_of_equal_time(recipe: str) -> dict[str, int]:
    """Return the steps of the systems whose step does not take as long as SMI's."""
    seconds = _seconds_of_steps(recipe)
    ratios = {name: seconds["SMI"] / value for name, value in seconds.items()}
    return {
        name: round(_steps_of_equal_epochs(recipe) * ratio)
        for name, ratio in ratios.items()
        if abs(ratio - 1) > SAME_PACE
    }


def _seconds_of_steps(recipe: str) -> dict[str, float]:
    """Return the seconds that a step of each system takes."""
    seconds: dict[str, float] = json.loads(_pace_file(recipe).read_text())["seconds"]
    return seconds


def _steps_of_equal_epochs(recipe: str) -> int:
    """Return the steps of each run of the comparison with equal epochs, which is kept."""
    return Comparison.read(_home(recipe, timed=False)).rows[0].runs[0].steps


def _pace_file(recipe: str) -> Path:
    return RESULTS / f"pace-{recipe}.json"


def measure_pace(recipe: str, arguments: argparse.Namespace) -> None:
    """Measure the seconds of a step of each system, on one core, taking turns."""
    import torch

    import smi
    from smi.config.resolve import resolve
    from smi.training.build import build_job, open_images
    from smi.training.feeding import Feeder
    from smi.training.step import Step

    torch.set_num_threads(1)
    device = torch.device("cpu")
    times: dict[str, list[float]] = {}
    overrides = settings_of(recipe) | ({"data": arguments.data} if arguments.data else {})
    for _ in range(ROUNDS):
        for name in ("SMI", "SMI,views=4", *METHODS[1:]):
            method, _, views = name.partition(",views=")
            more = {"method.views": int(views)} if views else {}
            config = resolve(recipe, {**overrides, "method": method, **more})
            runtime = smi.Runtime(root=arguments.root)
            with open_images(config, runtime) as (images, batches):
                job = build_job(config, images, batches, device, compiled=False, weights=None)
                take = Step(job)
                with Feeder(job.batches, job.views, job.device) as feeder:
                    for step in range(UNTIMED + STEPS):
                        if step == UNTIMED:
                            start = time.perf_counter()
                        batch, x = next(feeder)
                        take(step, x, batch)
                    seconds = (time.perf_counter() - start) / STEPS
            times.setdefault(name, []).append(seconds)
            print(f"{name}: {1000 * seconds:.0f} ms", flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    document = stamp("1 thread", torch=torch.__version__)
    document |= {"settings": settings_of(recipe), "seconds": medians, "rounds": times}
    _pace_file(recipe).write_text(json.dumps(document, indent=1) + "\n")


def keep(folder: Path, commit: str, *, timed: bool) -> list[Path]:
    """Write the comparison of a recipe, without local paths.

    The paper's claims are judged on the runs of equal epochs only.
    """
    if timed:
        comparison = of_equal_time(folder)
        return [_write("comparison", comparison, comparison.plain(), folder, commit)]
    comparison = Comparison.read(folder)
    name = NAMES[comparison.about["recipe"]]
    measured_claims = [
        claim.plain()
        for claim in judge_claims([DatasetComparisons(name, pair=comparison)])
        if _measured(claim.name)
    ]
    return [
        _write(file, comparison, document, folder, commit)
        for file, document in (
            ("comparison", comparison.plain() | {"floors": floors_of(comparison)}),
            ("claims", {"claims": measured_claims}),
        )
    ]


def of_equal_time(folder: Path) -> Comparison:
    """Replace the rows of equal epochs whose steps take longer or less long than SMI's."""
    recipe = folder.name
    comparison = Comparison.read(_home(recipe, timed=False))
    steps = steps_of_equal_time(recipe)
    rows = []
    for row in comparison.rows:
        name = row.name.replace(", ", ",")
        if name in steps:
            timed = Comparison.read(folder.with_name(f"{recipe}-time") / name)
            row = replace(timed.rows[0], name=row.name, value=row.value)
        rows.append(row)
    seconds = round(_seconds_of_steps(recipe)["SMI"] * _steps_of_equal_epochs(recipe))
    equal_epochs = footer(comparison.about)  # some rows are those of equal epochs
    about = {**comparison.about, "seconds": seconds, "steps": steps, "equal_epochs": equal_epochs}
    return replace(comparison, rows=tuple(rows), about=about)


def floors_of(comparison: Comparison) -> dict[str, dict[str, float]]:
    """Return the scores of an untrained encoder and of pixels, under the same protocols."""
    floors: dict[str, dict[str, float]] = {}
    for result in read_all(Path(comparison.rows[0].runs[0].folder)):
        if result.subject != "encoder" and result.stamp in comparison.protocols:
            floors.setdefault(result.subject, {}).update(
                {score.name: score.value for score in result.scores}
            )
    return floors


def _write(
    name: str, comparison: Comparison, document: dict[str, object], folder: Path, commit: str
) -> Path:
    """Write a document about a comparison, with the machine and the commit."""
    out = _home(comparison.about["recipe"], timed=comparison.seconds is not None)
    out.mkdir(parents=True, exist_ok=True)
    about = stamp(
        comparison.about["device"].split(", ")[1], torch=comparison.about["versions"]["torch"]
    )
    about |= {"commit": commit} if commit else {}
    text = json.dumps(document | about, indent=1, ensure_ascii=False)
    text = re.sub(r"(?<=--root=)[^ \"]+|(?<=data=)/[^ \"]+(?=/)", "DATA", text).replace(
        f"{folder.parent}/", "runs/"
    )
    path = out / f"{name}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _home(recipe: str, *, timed: bool) -> Path:
    return RESULTS / f"comparison-{recipe}{'-time' if timed else ''}"


def _measured(name: str) -> bool:
    return name not in ("lambda-middle", "cost", "no-gather")  # these runs do not measure them


def show(recipe: str, *, timed: bool) -> str:
    """Format the methods as Markdown."""
    comparison = Comparison.read(_home(recipe, timed=timed))
    columns = {
        name: column for column in comparison.columns for name in [column[1]] if name in SCORES
    }
    methods = comparison.rows
    steps = comparison.about.get("steps", {})
    budget = "36,000 images"
    if timed:
        budget = f"the time of SMI, about {comparison.seconds:.0f} s of one core,"
    lines = [f"**{NAMES[recipe]}**, {budget} for each run", ""]
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
    images = comparison.protocols[columns["kNN"][0]].protocol
    lines += [
        "",
        f"{images['train']['images']:,} labelled images, {images['test']['images']:,} test images, "
        f"{len(comparison.seeds)} seeds.",
    ]
    if timed:
        kept = [_called(row) for row in methods if row.name.replace(", ", ",") not in steps]
        lines += ["", f"{', '.join(kept)}: {comparison.about['equal_epochs']} The others:"]
    return "\n".join([*lines, "", footer(comparison.about)])


def draw(recipe: str) -> Path:
    """Draw the scores of nearest neighbours and of the linear classifier for the docs."""
    whole = Comparison.read(_home(recipe, timed=False))

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

    # Two and four views of SMI are two systems here, not the ends of a sweep.
    rows = [
        replace(
            row,
            name=_called(row),
            method=_called(row),
            value=None,
            runs=tuple(map(kept, row.runs)),
        )
        for row in whole.rows
    ]
    drawn = draw_comparison(
        replace(whole, rows=tuple(rows), swept=None), costs=False
    )  # the times of runs beside other work do not count
    out = RESULTS.parent / "docs" / f"comparison-{recipe.removesuffix('-small')}.png"
    out.write_bytes(drawn.to_image(format="png", scale=1.4))
    return out


def show_claims() -> str:
    """Format each claim and its verdict on each dataset as Markdown."""
    documents = {
        recipe: json.loads((_home(recipe, timed=False) / "claims.json").read_text())
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
    name = SHOWN.get(row.method, row.method)
    return f"{name}, four views" if row.value == 4 else name


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
    parser.add_argument("action", choices=("pace", "run", "keep", "show", "claims", "draw"))
    parser.add_argument("names", nargs="*", help="a recipe to run, or folders to keep")
    parser.add_argument("--root", type=Path, help="the folder of named datasets")
    parser.add_argument("--data", help="an image folder instead of a named dataset")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time", action="store_true", help="equal time instead of equal epochs")
    parser.add_argument(
        "--commit", default="", help="the commit of the code that made the runs (default: this one)"
    )
    arguments = parser.parse_args()
    if arguments.action == "pace":
        warn_if_dirty()
        for recipe in arguments.names:
            measure_pace(recipe, arguments)
    elif arguments.action == "run":
        warn_if_dirty()
        for recipe in arguments.names:
            run(recipe, arguments)
    elif arguments.action == "claims":
        print(show_claims())
    elif arguments.action == "show":
        print("\n\n".join(show(recipe, timed=arguments.time) for recipe in NAMES))
    elif arguments.action == "draw":
        print(*map(draw, NAMES), sep="\n")
    else:
        for folder in arguments.names:
            print(*keep(Path(folder), arguments.commit, timed=arguments.time), sep="\n")


if __name__ == "__main__":
    main()
