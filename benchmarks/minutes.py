"""Measure the accuracy that `smi pretrain --data … --time 7m` reaches on this machine.

    python benchmarks/minutes.py run cifar10 7m --root DATA --out runs          on a quiet machine
    python benchmarks/minutes.py run DATA/imagenette-sub 7m --out runs
    python benchmarks/minutes.py show                                      prints the table

The recipe, the encoder and the epochs are those that the command chooses. The runs are made one
after another. There are no probes: the test images are used once, after the training. `run` adds
its runs to results/minutes.json, where it replaces those of the same dataset, time and seed.
"""

import argparse
import json
import time
from pathlib import Path

from machine import RESULTS, command, footer, stamp, warn_if_dirty
from smi.intervals import interval

NAMES = {"cifar10": "CIFAR-10", "imagenette-sub": "Imagenette photographs"}
SCORES = ("kNN", "linear-cached")


def run(data: str, length: str, seed: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Train for a time, and evaluate."""
    import torch

    import smi

    runtime = smi.Runtime(root=arguments.root)
    name = Path(data).name
    begin = time.perf_counter()
    trained = smi.pretrain(
        data=data,
        out=arguments.out / f"{name}-{length}-seed-{seed}",
        time=length,
        overrides={"seed": seed, "log.probe_every": 0},
        runtime=runtime,
        fresh=True,
    )
    seconds = time.perf_counter() - begin
    if trained.init_source is not None:
        raise SystemExit("weights of timm are in the cache, so this run did not start from scratch")
    evaluation = smi.evaluate(trained, protocols=["knn", "linear-cached"], runtime=runtime)
    print(evaluation.text(), flush=True)
    scores = {s.name: s.value for result in evaluation.rows[0].results for s in result.scores}
    config = trained.resolve()
    threads = torch.get_num_threads()
    return {
        "data": name,
        "time": length,
        "seed": seed,
        "seconds": round(seconds, 1),
        **{score: scores[score] for score in SCORES},
        "images": trained.facts.steps * config.batch_size,
        "epochs": config.epochs,
        "precision": trained.facts.precision,
        "encoder": config.encoder,
        "method": config.method,
        **stamp(f"{threads} threads", torch=torch.__version__.partition("+")[0]),
    }


def keep(made: dict[str, object], path: Path) -> None:
    """Add a run to the results, in place of that of the same dataset, time and seed."""
    runs = json.loads(path.read_text())["runs"] if path.is_file() else []
    key = ("data", "time", "seed")
    runs = [other for other in runs if any(other[name] != made[name] for name in key)]
    path.write_text(json.dumps({"runs": [*runs, made]}, indent=1) + "\n")


def show(path: Path) -> str:
    """Format the runs as Markdown, one line for each dataset and time."""
    rows: dict[tuple[str, str], list[dict]] = {}
    for made in json.loads(path.read_text())["runs"]:
        rows.setdefault((made["data"], made["time"]), []).append(made)
    heads = "| | time | it took | kNN | linear | images seen | number format | seeds |"
    lines = [heads, "|---|---:|---:|---:|---:|---:|---|---:|"]
    for (data, length), runs in rows.items():
        scores = [_score([made[score] for made in runs]) for score in SCORES]
        images = sum(made["images"] for made in runs) / len(runs)
        formats = " and ".join(sorted({made["precision"] for made in runs}))
        seconds = [made["seconds"] for made in runs]
        taken = f"{min(seconds):.0f} to {max(seconds):.0f} s"
        cells = [NAMES.get(data, data), length, taken, *scores]
        cells += [f"{images:,.0f}", formats, str(len(runs))]
        lines.append(f"| {' | '.join(cells)} |")
    measured: dict[str, list[str]] = {}  # the rows of each footer
    for (data, length), runs in rows.items():
        for text in dict.fromkeys(map(footer, runs)):
            measured.setdefault(text, []).append(f"{NAMES.get(data, data)} {length}")
    if len(measured) == 1:
        return "\n".join([*lines, "", *measured])
    footers = [f"{', '.join(names)}: {text}" for text, names in measured.items()]
    return "\n".join([*lines, "", "\n\n".join(footers)])


def _score(values: list[float]) -> str:
    """Format the mean of accuracies in per cent, and its 95 % interval from three seeds on."""
    mean, _, high = interval(values)
    half = f" ± {100 * (high - mean):.1f}" if len(values) > 2 else ""
    return f"{100 * mean:.1f}{half}"


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("action", choices=("run", "show"))
    parser.add_argument("data", nargs="?", help="a dataset, or an image folder")
    parser.add_argument("time", nargs="?", help="of each run, such as 7m")
    parser.add_argument("--root", type=Path, help="the folder of named datasets")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=RESULTS / "minutes.json")
    arguments = parser.parse_args()
    if arguments.action == "run":
        if arguments.time is None:
            parser.error("run needs a dataset and a time")
        warn_if_dirty()
        for seed in arguments.seeds:
            keep(run(arguments.data, arguments.time, seed, arguments), arguments.results)
    print(show(arguments.results))


if __name__ == "__main__":
    main()
