"""Choose learning rate and main hyperparameter of each method, then measure every method.

    python benchmarks/knobs.py cifar10-small --root DIR      DIR holds the folder of the dataset
    python benchmarks/knobs.py imagenette-small --data DIR   DIR holds train/ and val/
    python benchmarks/knobs.py cifar10-small --projectors --root DIR    after these
    python benchmarks/knobs.py cifar10-small --further --root DIR    after the projectors
    python benchmarks/knobs.py cifar10-small --chosen --root DIR    every method as in the recipe
    python benchmarks/knobs.py cifar10-small --show          prints the table of the last run
    python benchmarks/knobs.py cifar10-small --best          the best settings of each method
    python benchmarks/knobs.py cifar10-small --criteria      how criteria without labels agree

The results are written to results/knobs-RECIPE.json, with --projectors to
results/projectors-RECIPE.json, with --further to results/further-RECIPE.json, and with --chosen to
results/methods-RECIPE.json. Trials that are in the file already are not run again.

Every method has six trials with the same budget and seed: four learning rates with the recipe's
value of its hyperparameter, then the two values next to that one with the best rate. On digits
there is one rate, and all four values are tried. --projectors tries the same three projectors for
every method, with the settings of its best trial by kNN. --further repeats the best of those, then
tries four more settings for each method. It trains in bfloat16, as benchmarks/evidence.py does; the
other trials are in float32. Trials are judged on held-out training images: a tenth of them, or a
fifth where there are few. --best prints each method's best settings of all stages, by the mean of
kNN and linear accuracy, which the comparison shows; trials with the same settings are averaged. The
val or test images of the dataset are not used. --chosen measures kNN on those, after the last
epoch.

--criteria prints Kendall's τ between each criterion and accuracy over all trials, with a 95 %
interval of 1,000 bootstrap samples of methods. It also prints what choosing each method's value by
the criterion would lose: the best accuracy minus the chosen one's, as a mean over methods.
"""

import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

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
RATES = (5e-4, 1e-3, 2e-3, 5e-3)
PROJECTORS = ((1024, 1024, 1024), (1024, 1024), (1024, 128))
# 36,000 images, about 100 s of one core: what a run of benchmarks/evidence.py has, too.
BUDGETS = {
    "cifar10-small": {"data.images": 36000, "epochs": 1, "optimizer.warmup_epochs": 0.05},
    "imagenette-small": {"epochs": 15, "data.validation": 0.2},
    "digits": {"epochs": 6},
}
Stage = Literal["values", "projectors", "further", "chosen"]
TRIED = ("knobs", "projectors", "further")  # files of trials that choose settings
FILES: dict[Stage, str] = {
    "values": "knobs",
    "projectors": "projectors",
    "further": "further",
    "chosen": "methods",
}
# Four more trials for each method. A setting in FACTORS is multiplied, any other is replaced.
FACTORS = ("lr", "redundancy_weight", "covariance_weight", "temperature", "queue_size")
FURTHER: dict[str, tuple[dict[str, Any], ...]] = {
    "SMI": (
        {"target": 0.6},
        {"shift": 0.02, "redundancy_weight": 2},
        {"target": 0.6, "shift": 0.02, "redundancy_weight": 2},
        {"target": 0.6, "shift": 0.02, "redundancy_weight": 2, "lr": 1.5},
    ),
    "BarlowTwins": (
        {"lr": 1.4},
        {"lr": 0.7},
        {"redundancy_weight": 0.7},
        {"redundancy_weight": 0.7, "lr": 1.4},
    ),
    "VICReg": (
        {"variance_weight": 40.0},
        {"invariance_weight": 15.0},
        {"invariance_weight": 40.0, "variance_weight": 40.0},
        {"covariance_weight": 0.7, "lr": 1.4},
    ),
    "SimCLR": (
        {"temperature": 0.7},
        {"temperature": 1.4},
        {"last_norm": True},
        {"lr": 1.5},
    ),
    "BYOL": ({"momentum": 0.999}, {"lr": 2}, {"widths": [1024, 512]}, {"widths": [2048, 256]}),
    "MoCoV2": ({"momentum": 0.97}, {"momentum": 0.996}, {"queue_size": 0.25}, {"lr": 1.5}),
}
CHOSEN = {"data.images": 6000, "log.probe_images": 6000}


def run(
    recipe: str,
    stage: Stage,
    where: dict[str, Any],
    out: Path,
    only: list[str],
    part: tuple[int, int],
) -> None:
    """Run the trials of a stage that are not in the file yet."""
    import torch

    budget = CHOSEN if stage == "chosen" else BUDGETS[recipe]
    common = ({} if stage == "chosen" else {"data.validation": 0.1}) | budget
    precision = "bfloat16" if stage == "further" else "float32"
    common |= {"log.probe_every": 100, "precision": precision, "views.input_size": None}
    earlier = json.loads(out.read_text()) if out.is_file() else {}
    results = (
        earlier
        if earlier.get("budget") == budget
        else {"untrained": untrained(recipe, common, where), "trials": {}}
    )
    methods = [
        method
        for method in (KNOBS if stage in ("values", "chosen") else FURTHER)
        if not only or method in only
    ]
    for method in methods[part[0] :: part[1]]:
        trials = results["trials"].setdefault(method, {})
        for label, settings in trials_to_run(recipe, stage, method, trials):
            if label in trials:
                continue
            trials[label] = train_once(recipe, method, settings, common, where)
            print(f"{method} {settings}: {trials[label]}", flush=True)
            about = stamp(f"{torch.get_num_threads()} thread(s)", torch=torch.__version__)
            about |= {"recipe": recipe, "budget": budget}
            out.write_text(json.dumps(results | about, indent=2) + "\n")


def train_once(
    recipe: str,
    method: str,
    settings: dict[str, Any],
    common: dict[str, Any],
    where: dict[str, Any],
) -> dict[str, Any]:
    """Train a method with these settings; return its scores and losses."""
    import smi

    overrides = {f"method.{name}": value for name, value in settings.items() if name != "lr"}
    if "lr" in settings:
        overrides["optimizer.lr"] = settings["lr"]
    with tempfile.TemporaryDirectory() as folder:
        trained = smi.pretrain(
            recipe,
            out=f"{folder}/run",
            data=where["data"],
            method=method,
            overrides=common | overrides,
            runtime=smi.Runtime(root=where["root"]),
        )
        losses = [line["loss"] for line in trained.metrics()]
        probe = trained.probes()[-1]["probe"]
        return {
            "settings": settings,
            "knn": probe["knn"],
            "linear": linear(trained, where),
            "loss": [losses[0], losses[-1]],
            "label_free": probe["label_free"],
        }


def trials_to_run(
    recipe: str, stage: Stage, method: str, trials: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the label and the settings of each trial; trials: those of this stage so far."""
    if stage == "chosen":
        yield "", {}
    elif stage == "values":
        yield from _values(recipe, method, trials)
    elif stage == "projectors":
        before = _best_by_knn(recipe, "knobs", method)
        own = tuple(_settings_in_recipe(recipe, method)["widths"])
        for widths in dict.fromkeys((*PROJECTORS, own)):
            yield " ".join(map(str, widths)), before | {"widths": list(widths)}
    else:
        before = _best_by_knn(recipe, "projectors", method)
        in_recipe = _settings_in_recipe(recipe, method)
        for changes in ({}, *FURTHER[method]):
            yield json.dumps(changes), changed_settings(before, changes, in_recipe)


def _values(
    recipe: str, method: str, trials: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield learning rates, then values of the main hyperparameter with the best rate."""
    knob, values = KNOBS[method]
    if recipe == "digits":
        for value in values:
            yield f"{value:g}", {knob: value}
        return
    in_recipe = _settings_in_recipe(recipe, method)
    own = {name: in_recipe[name] for name in (knob, "widths") if name in in_recipe}
    for rate in RATES:
        yield f"lr {rate:g}", own | {"lr": rate}
    rate = max(RATES, key=lambda rate: trials[f"lr {rate:g}"]["knn"])
    for value in beside(values, own[knob]):
        yield f"{value:g}, lr {rate:g}", own | {knob: value, "lr": rate}


def _settings_in_recipe(recipe: str, method: str) -> dict[str, Any]:
    """Return the settings of a method in a recipe, with a number instead of "auto"."""
    from smi.config.resolve import resolve
    from smi.losses.smi import weight_in_batch

    config = resolve(recipe, {"method": method})
    return {
        name: weight_in_batch(value, config.batch_size) if value == "auto" else value
        for name, value in config.method.items()
        if name != "name"
    }


def changed_settings(
    before: dict[str, Any], changes: dict[str, Any], in_recipe: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings with changes: those in FACTORS are multiplied, the others replaced.

    in_recipe: the settings of the recipe, for those that are not among the others.
    """
    settings = dict(before)
    for name, value in changes.items():
        if name in FACTORS:
            product = (in_recipe | before)[name] * value
            value = round(product) if name == "queue_size" else float(f"{product:.3g}")
        settings[name] = value
    return settings


def beside(values: tuple[float, ...], value: float) -> tuple[float, ...]:
    """Return two neighbours of a value: one on each side, or two on one if it is at an end."""
    at = min(range(len(values)), key=lambda i: abs(math.log(values[i] / value)))
    first = min(max(at - 1, 0), len(values) - 3)
    return tuple(v for v in values[first : first + 3] if v != values[at])


def best_settings(recipe: str) -> dict[str, dict[str, Any]]:
    """Return each method's best settings."""
    return {
        method: max(trials, key=mean_score)["settings"]
        for method, trials in tried_settings(recipe).items()
    }


def tried_settings(recipe: str) -> dict[str, list[dict[str, Any]]]:
    """Return the settings of each method that had trials, with the mean scores of these."""
    trials: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for kind in TRIED:
        for method, of_method in trials_of(recipe, kind).items():
            for trial in of_method.values():
                name = json.dumps(trial["settings"], sort_keys=True)
                trials.setdefault(method, {}).setdefault(name, []).append(trial)
    return {
        method: [
            {"settings": same[0]["settings"]}
            | {score: statistics.mean(t[score] for t in same) for score in ("knn", "linear")}
            for same in of_method.values()
        ]
        for method, of_method in trials.items()
    }


def mean_score(trial: dict[str, Any]) -> float:
    """Return the mean of kNN and the linear classifier, which the comparison shows."""
    return (trial["knn"] + trial["linear"]) / 2


def trials_of(recipe: str, kind: str) -> dict[str, dict[str, Any]]:
    """Return the stored trials of each method, by label."""
    document = json.loads((RESULTS / f"{kind}-{recipe}.json").read_text())
    trials: dict[str, dict[str, Any]] = document["trials"]
    return trials


def best(trials: dict[str, Any]) -> str:
    """Return the label of the best trial by kNN."""
    return max(trials, key=lambda label: trials[label]["knn"])


def _best_by_knn(recipe: str, kind: str, method: str) -> dict[str, Any]:
    """Return the settings of a method's best trial by kNN."""
    trials = trials_of(recipe, kind)[method]
    settings: dict[str, Any] = trials[best(trials)]["settings"]
    return settings


def linear(run: Any, where: dict[str, Any]) -> float:
    """Fit a linear classifier on the images of the kNN probe."""
    import smi
    from smi.evaluation import extract_labelled, linear_accuracy
    from smi.training.images import Images

    config, encoder = run.resolve(), smi.load(run.folder)
    images = Images.open(config, root=where["root"])
    assert images.bank is not None
    assert images.held_out is not None
    settings = {"mean": encoder.mean, "std": encoder.std, "size": encoder.image_size}
    rows = [
        tensor
        for store in (images.bank, images.held_out)
        for tensor in extract_labelled(encoder, store, **settings)
    ]
    images.close()
    return linear_accuracy(*rows, grid=(1e-2, 1e-3)).top1


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


def table(results: dict, stage: Stage) -> str:
    """Format the trials of each method as Markdown."""
    chosen = stage == "chosen"
    if chosen:
        lines = ["| method | kNN on test images | loss, first and last line |", "|---|---:|---:|"]
    else:
        lines = [
            "| method | hyperparameter | kNN on validation images "
            "| loss of the best, first and last line |",
            "|---|---|---|---:|",
        ]
    for method, trials in results["trials"].items():
        chosen_label = best(trials)
        first, last = trials[chosen_label]["loss"]
        values = ", ".join(
            f"{'**' * (v == chosen_label)}{v}: {trial['knn']:.3f}{'**' * (v == chosen_label)}"
            for v, trial in trials.items()
        )
        name = "widths" if stage == "projectors" else KNOBS[method][0]
        cells = f"{trials[chosen_label]['knn']:.3f}" if chosen else f"`{name}` | {values}"
        lines.append(f"| {method} | {cells} | {first:.4g} → {last:.4g} |")
    lines.append(f"| untrained encoder | {'' if chosen else '| '}{results['untrained']:.3f} | |")
    budget = ", ".join(f"`{name}` {value}" for name, value in results["budget"].items())
    return "\n".join(
        [*lines, "", f"Recipe `{results['recipe']}` with {budget}; one seed. {footer(results)}"]
    )


def further_table(results: dict) -> str:
    """Format the trials of --further as Markdown, one line each."""
    lines = ["| method | changed | kNN | linear |", "|---|---|---:|---:|"]
    for method, trials in results["trials"].items():
        for label, trial in trials.items():
            settings = trial["settings"]
            changed = ", ".join(f"`{name}` {settings[name]}" for name in json.loads(label))
            scores = (f"{100 * trial[score]:.1f}" for score in ("knn", "linear"))
            lines.append(f"| {method} | {changed or 'nothing'} | {' | '.join(scores)} |")
    return "\n".join([*lines, "", f"One seed. {footer(results)}"])


def choice_table(recipe: str) -> str:
    """Format the best settings of each method, and how many had trials, as Markdown."""
    lines = ["| method | best settings | kNN | linear | tried |", "|---|---|---:|---:|---:|"]
    for method, trials in tried_settings(recipe).items():
        trial = max(trials, key=mean_score)
        settings = ", ".join(f"`{name}` {_short(x)}" for name, x in trial["settings"].items())
        scores = (f"{100 * trial[score]:.1f}" for score in ("knn", "linear"))
        lines.append(f"| {method} | {settings} | {' | '.join(scores)} | {len(trials)} |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


NUM_SAMPLES = 1000  # of the bootstrap
CRITERIA = {
    "retrieval of views": lambda trial: trial["label_free"]["retrieval"],
    "RankMe": lambda trial: trial["label_free"]["rank_me"],
    "LiDAR": lambda trial: trial["label_free"]["lidar"] or 0.0,
    "α-ReQ, near 1": lambda trial: -abs((trial["label_free"]["alpha_req"] or 0.0) - 1),
    "cluster learnability": lambda trial: trial["label_free"]["learnability"],
}


def kendall(a: list[float], b: list[float]) -> float:
    """Return Kendall's τ-b of two lists."""
    import numpy as np

    # each pair twice: 1 if the first value is larger, -1 if the second is
    x, y = (np.greater.outer(v, v) - np.less.outer(v, v).astype(int) for v in (a, b))
    total, untied = int((x * y).sum()), int((x != 0).sum()) * int((y != 0).sum())
    return total / untied**0.5 if untied else 0.0


def tau_cell(methods: list[dict], of: Any, score: str) -> str:
    """Format τ with the interval of a bootstrap over methods, whose trials are alike."""

    def tau(chosen: list[dict]) -> float:
        trials = [trial for of_method in chosen for trial in of_method.values()]
        return kendall([of(trial) for trial in trials], [trial[score] for trial in trials])

    draw = random.Random(0)
    taus = sorted(tau(draw.choices(methods, k=len(methods))) for _ in range(NUM_SAMPLES))
    end = NUM_SAMPLES // 40
    return f"{tau(methods):.2f} ({taus[end]:.2f} to {taus[-end - 1]:.2f})"


def criteria_table(results: dict) -> str:
    """Format how criteria without labels agree with accuracy, over all trials and per method."""
    methods = list(results["trials"].values())
    trials = [trial for of_method in methods for trial in of_method.values()]
    lines = [
        "| criterion | τ with kNN | τ with linear | loses, kNN points | loses, linear points |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, of in CRITERIA.items():
        cells = [tau_cell(methods, of, score) for score in ("knn", "linear")]
        cells += [loss_cell(methods, score, of) for score in ("knn", "linear")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name, of in (("kNN itself", lambda t: t["knn"]), ("a random value", None)):
        cells = [loss_cell(methods, score, of) for score in ("knn", "linear")]
        lines.append(f"| *{name}* | | | {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", f"{len(trials)} trials of `{results['recipe']}`. {footer(results)}"]
    )


def loss_cell(methods: list[dict], score: str, of: Any) -> str:
    """Format the mean loss of choosing by a function of a trial; None chooses at random."""
    losses = []
    for trials in (list(of_method.values()) for of_method in methods):
        scores = [trial[score] for trial in trials]
        chosen = sum(scores) / len(scores) if of is None else max(trials, key=of)[score]
        losses.append(100 * (max(scores) - chosen))
    return f"{sum(losses) / len(losses):.1f}"


def merged(parts: list[dict]) -> dict:
    """Merge the results of several processes."""
    trials: dict[str, dict[str, Any]] = {}
    for part in parts:
        for method, new_trials in part["trials"].items():
            trials[method] = trials.get(method, {}) | new_trials
    return parts[0] | {"trials": {method: trials[method] for method in KNOBS if method in trials}}


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
    stages = parser.add_mutually_exclusive_group()
    for name, meaning in (
        ("projectors", "run three projectors with the best settings"),
        ("further", "run four more settings with the best projector"),
        ("chosen", "run every method once, as in the recipe"),
    ):
        stages.add_argument(
            f"--{name}",
            dest="stage",
            action="store_const",
            const=name,
            default="values",
            help=meaning,
        )
    parser.add_argument("--show", action="store_true", help="print the trials")
    parser.add_argument("--best", action="store_true", help="print the best settings")
    parser.add_argument("--criteria", action="store_true", help="print how criteria agree")
    arguments = parser.parse_args()
    stage: Stage = arguments.stage
    if arguments.recipe == "digits" and (stage in ("projectors", "further") or arguments.best):
        parser.error("digits have values of one hyperparameter only")
    if arguments.best:
        print(choice_table(arguments.recipe))
        return
    out = RESULTS / f"{FILES[stage]}-{arguments.recipe}.json"
    files = (
        [out.with_suffix(f".{i}.json") for i in range(arguments.part[1])]
        if arguments.part[1] > 1
        else [out]
    )
    if not (arguments.show or arguments.criteria):
        warn_if_dirty()
        where = {"root": arguments.root, "data": arguments.data}
        run(
            arguments.recipe,
            stage,
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
    if arguments.criteria:
        print(criteria_table(results))
    elif stage == "further":
        print(further_table(results))
    else:
        print(table(results, stage))


if __name__ == "__main__":
    main()
