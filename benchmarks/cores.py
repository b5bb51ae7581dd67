"""Measure the images per second of `smi pretrain` in two number formats, on one and on two cores.

    python benchmarks/cores.py --root DIR     DIR holds cifar-10-batches-bin; three minutes;
                                              writes results/benchmark-cores.json
    python benchmarks/cores.py --show         prints the table of the last run

The recipe cifar10-small with SMI, everything included. All take turns in every round, each in its
own process: it warms up, then trains some steps. "Two processes" are two independent runs of one
thread at the same time, and their images per second together: what two cores could do if they
never waited for each other. A ratio is the median over rounds of the ratio within a round.

More cores are computed, not measured: by Amdahl's law from the speeds of one and of two threads.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from machine import command, footer, main, stamp

FORMATS = ("float32", "bfloat16")
PLACES = ("one thread", "two threads", "two processes")
COMPUTED_CORES = (4, 8)
ROUNDS, WARM_UP, STEPS, EVERY, BATCH = 3, 4, 12, 4, 256


def run(arguments: Any) -> dict:
    """Measure every format in every place, in turns."""
    import torch

    rounds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for place in PLACES:
            for precision in FORMATS:
                speed = sum(_measure(place, precision, arguments.root))
                rounds.setdefault(f"{precision}, {place}", []).append(speed)
                print(f"{precision}, {place}: {speed:.0f} images/s", file=sys.stderr)
    return stamp(f"{os.cpu_count()} cores", torch=torch.__version__.partition("+")[0]) | {
        "images_per_second": rounds
    }


def _measure(place: str, precision: str, root: str | None) -> list[float]:
    """Return the images per second of each process."""
    num_processes = 2 if place == "two processes" else 1
    threads = "2" if place == "two threads" else "1"
    words = [sys.executable, __file__, "--one", precision, *(["--root", root] if root else [])]
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    processes = [
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(num_processes)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a run failed: its error stands above")
    return [float(output.splitlines()[-1]) for output in outputs]


def one(precision: str, root: str | None) -> float:
    """Train some steps in this process; return the images per second after the warm-up."""
    import smi

    settings = {
        "data.images": BATCH * (WARM_UP + STEPS),
        "epochs": 1,
        "batch_size": BATCH,
        "log.every": EVERY,
        "log.probe_every": 0,
        "precision": precision,
    }
    with tempfile.TemporaryDirectory() as folder:
        made = smi.pretrain(
            "cifar10-small",
            out=f"{folder}/run",
            overrides=settings,
            runtime=smi.Runtime(root=root),
            quiet=True,
        )
        lines = made.metrics()[WARM_UP // EVERY :]
    return 1 / statistics.mean(1 / line["timing"]["images_per_second"] for line in lines)


def table(results: dict) -> str:
    """Format speeds, ratios, and what more cores would give."""
    rounds = results["images_per_second"]
    lines = ["| images/s | float32 | bfloat16 | ratio |", "|---|---:|---:|---:|"]
    for place in PLACES:
        by_format = [rounds[f"{precision}, {place}"] for precision in FORMATS]
        ratio = statistics.median(b / a for a, b in zip(*by_format, strict=True))
        cells = [f"{statistics.median(speeds):,.0f}" for speeds in by_format]
        lines.append(f"| {place} | {' | '.join(cells)} | {ratio:.2f} |")
    for cores in COMPUTED_CORES:
        cells = [f"{_computed(rounds, precision, cores):,.0f}" for precision in FORMATS]
        lines.append(f"| *{cores} threads, computed* | {' | '.join(cells)} | |")
    return "\n".join([*lines, "", footer(results)])


def _computed(rounds: dict[str, list[float]], precision: str, cores: int) -> float:
    """Return the images per second of more threads, if the part that does not scale stays."""
    one_thread, two_threads = (
        statistics.median(rounds[f"{precision}, {place}"]) for place in PLACES[:2]
    )
    fixed = max(0.0, 2 * one_thread / two_threads - 1)  # share of the time of one thread
    return one_thread / (fixed + (1 - fixed) / cores)


if __name__ == "__main__":
    parser = command(__doc__)
    parser.add_argument("--root", help="the folder of named datasets")
    parser.add_argument("--one", help="measure one format in this process (used by the benchmark)")
    if "--one" in sys.argv:
        arguments = parser.parse_args()
        print(one(arguments.one, arguments.root))
    else:
        main(parser, "cores", run, table)
