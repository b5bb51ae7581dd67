"""Choose the main hyperparameter of each method on small recipes, then measure every method.

    python benchmarks/knobs.py cifar10-small --root DIR      DIR holds the folder of the dataset
    python benchmarks/knobs.py imagenette-small --data DIR   DIR holds train/ and val/
    python benchmarks/knobs.py cifar10-small --chosen --root DIR    every method as in the recipe
    python benchmarks/knobs.py cifar10-small --show          prints the table of the last run

The results are written to results/knobs-RECIPE.json, and with --chosen to
results/methods-RECIPE.json. Trials that are in the file already are not run again.

Four values are tried for every method, all with the same budget and seed. They are judged on
held-out training images: a tenth of them, or three tenths where there are few. The val or test
images of the dataset are not used. --chosen measures kNN on those, after the last epoch.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from machine import RESULTS, command, footer, stamp, warn_if_dirty

# The hyperparameter of each method and its values.
KNOBS: dict[str, tuple[str, tuple[float, ...]]] = {
    "SMI": ("redundancy_weight", (0.01, 0.03, 0.1, 0.3)),
    "BarlowTwins": ("redundancy_weight", (0.0051, 0.02, 0.04, 0.08)),
    "VICReg": ("covariance_weight", (1.0, 2.0, 4.0, 16.0)),
    "SimCLR": ("temperature", (0.05, 0.1, 0.2, 0.5)),
    "BYOL": ("momentum", (0.9, 0.97, 0.99, 0.996)),
    "MoCo": ("temperature", (0.05, 0.07, 0.1, 0.2)),
    "MoCoV2": ("temperature", (0.05, 0.07, 0.1, 0.2)),
    "SimSiam": ("bottleneck", (64, 256, 512, 1024)),
    "SwAV": ("num_prototypes", (10, 30, 100, 300)),
    "DINO": ("teacher_temperature", (0.02, 0.04, 0.06, 0.08)),
    "PIRL": ("temperature", (0.03, 0.07, 0.2, 0.5)),
}
BUDGETS = {
    "cifar10-small": {"data.images": 3000, "epochs": 6},
    "imagenette-small": {"data.images": 1500, "epochs": 6, "data.validation": 0.3},
    "digits": {"epochs": 6},
}
CHOSEN = {"data.images": 6000, "log.probe_images": 6000}


def run(
    recipe: str,
    chosen: bool,
    where: dict[str, Any],
    out: Path,
    only: list[str],
    part: tuple[int, int],
) -> None:
    import torch

    import smi

    budget = CHOSEN if chosen else BUDGETS[recipe]
    common = ({} if chosen else {"data.validation": 0.1}) | budget | {"log.probe_every": 100}
    results = (
        json.loads(out.read_text())
        if out.is_file()
        else {"untrained": untrained(recipe, common, where), "trials": {}}
    )
    trials: list[tuple[str, str, dict[str, float]]] = []
    for method, (knob, values) in KNOBS.items():
        if not only or method in only:
            trials += (
                [(method, "", {})]
                if chosen
                else [(method, f"{value:g}", {f"method.{knob}": value}) for value in values]
            )
    for method, label, settings in trials[part[0] :: part[1]]:
        trials_of_method = results["trials"].setdefault(method, {})
        if label in trials_of_method:
            continue
        with tempfile.TemporaryDirectory() as folder:
            trained = smi.pretrain(
                recipe,
                out=f"{folder}/run",
                data=where["data"],
                method=method,
                overrides=common | settings,
                runtime=smi.Runtime(root=where["root"]),
            )
            losses = [line["loss"] for line in trained.metrics()]
            trials_of_method[label] = {
                "knn": trained.probes()[-1]["probe"]["knn"],
                "loss": [losses[0], losses[-1]],
            }
        print(f"{method} {settings}: {trials_of_method[label]}", flush=True)
        about = stamp(f"{torch.get_num_threads()} thread(s)", torch=torch.__version__)
        out.write_text(
            json.dumps(results | about | {"recipe": recipe, "budget": budget}, indent=2) + "\n"
        )


def untrained(recipe: str, common: dict[str, Any], where: dict[str, Any]) -> float:
    """Measure kNN on the same images for the encoder that all methods start from."""
    import torch

    from smi.config.resolve import resolve
    from smi.nn import create_encoder
    from smi.seeds import derive
    from smi.training.images import Images
    from smi.views import policy

    data = {"data": str(where["data"])} if where["data"] else {}
    config = resolve(recipe, {**common, **data})
    images = Images.open(config, root=where["root"])
    torch.manual_seed(derive(config.seed, "encoder"))
    encoder = create_encoder(**config.encoder, image_size=config.views.size)
    look = images.probe(policy(config.views.policy, size=config.views.size), config)
    assert look is not None
    return look(encoder)["knn"]


def table(results: dict) -> str:
    chosen = all(list(trials) == [""] for trials in results["trials"].values())
    lines = (
        ["| method | kNN on test images | loss, first and last line |", "|---|---:|---:|"]
        if chosen
        else []
    )
    lines = lines or [
        "| method | hyperparameter | kNN on validation images "
        "| loss of the best, first and last line |",
        "|---|---|---|---:|",
    ]
    for method, trials in results["trials"].items():
        best = max(trials, key=lambda value: trials[value]["knn"])
        first, last = trials[best]["loss"]
        values = ", ".join(
            f"{'**' * (v == best)}{v}: {trial['knn']:.3f}{'**' * (v == best)}"
            for v, trial in trials.items()
        )
        cells = f"{trials[best]['knn']:.3f}" if chosen else f"`{KNOBS[method][0]}` | {values}"
        lines.append(f"| {method} | {cells} | {first:.4g} → {last:.4g} |")
    lines.append(f"| untrained encoder | {'' if chosen else '| '}{results['untrained']:.3f} | |")
    budget = ", ".join(f"`{name}` {value}" for name, value in results["budget"].items())
    return "\n".join(
        [*lines, "", f"Recipe `{results['recipe']}` with {budget}; one seed. {footer(results)}"]
    )


def merged(parts: list[dict]) -> dict:
    """Merge the results of several processes."""
    trials: dict[str, dict[str, Any]] = {}
    for part in parts:
        for method, new_trials in part["trials"].items():
            trials[method] = trials.get(method, {}) | new_trials
    order = {method: [f"{value:g}" for value in values] for method, (_, values) in KNOBS.items()}
    return parts[0] | {
        "trials": {
            m: {v: trials[m][v] for v in ("", *values) if v in trials[m]}
            for m, values in order.items()
            if m in trials
        }
    }


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("recipe", choices=BUDGETS)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--methods", nargs="*", default=[], help="run only these methods")
    parser.add_argument(
        "--part",
        type=int,
        nargs=2,
        default=(0, 1),
        metavar=("I", "OF"),
        help="share the work with other processes",
    )
    parser.add_argument(
        "--chosen", action="store_true", help="run every method once, as in the recipe"
    )
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    out = RESULTS / f"{'methods' if arguments.chosen else 'knobs'}-{arguments.recipe}.json"
    files = (
        [out.with_suffix(f".{i}.json") for i in range(arguments.part[1])]
        if arguments.part[1] > 1
        else [out]
    )
    if not arguments.show:
        warn_if_dirty()
        where = {"root": arguments.root, "data": arguments.data}
        run(
            arguments.recipe,
            arguments.chosen,
            where,
            files[arguments.part[0]],
            arguments.methods,
            tuple(arguments.part),
        )
    parts = [json.loads(file.read_text()) for file in files if file.is_file()]
    results = merged(parts)
    if arguments.part[1] > 1 and arguments.show:
        out.write_text(json.dumps(results, indent=2) + "\n")
        for file in files:
            file.unlink(missing_ok=True)
    print(table(results))


if __name__ == "__main__":
    main()
