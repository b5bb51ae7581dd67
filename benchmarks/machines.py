"""Measure bytes per step between two machines, time lost to a slow network, and rarer averages.

    python benchmarks/machines.py          as root, an hour;
                                           writes results/benchmark-machines.json
    python benchmarks/machines.py --show   prints the tables of the last run

Two network namespaces of this machine are two machines, with a process on each (gloo, one thread).
They train on digits with the recipe's network. All take turns in every round, each with a fast
cable and with a slow one (10 ms in each direction, 100 Mbit/s).

Bytes: those that a machine sends, read from its network interface after warm-up, with all headers.
Time: of a step, with the slow cable divided by the fast one in the same round; the median of
rounds. The second table trains the whole recipe by two processes, with three seeds.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import command, footer, main, stamp
from slow_cable import slow_cable

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.two_machines import CABLE, fast_cable, two_machines, why_not

CONTENDERS: dict[str, dict[str, Any]] = {
    "SMI": {},
    "SMI, average_every 4": {"average_every": 4},
    "SMI, average_every 16": {"average_every": 16},
    "SimCLR": {"method": "SimCLR"},
    "SimCLR, batch norm not synchronised": {"method": "SimCLR", "sync_batch_norm": False},
    "Barlow Twins": {"method": "BarlowTwins"},
    "Barlow Twins, batch norm not synchronised": {
        "method": "BarlowTwins",
        "sync_batch_norm": False,
    },
}
DELAY, RATE = 0.01, 100e6  # seconds, bits per second
CABLES = {"fast": fast_cable, "slow": slow_cable(DELAY, RATE)}
INTERVALS, SEEDS = (1, 4, 16), 3
ROUNDS, STEPS = 3, 16  # as many steps to warm up; a multiple of each interval
QUICK = 2  # contenders
BATCH = 64  # that of the recipe
PORT = 29500


def run(arguments: Any) -> dict:
    import torch

    if reason := why_not():
        sys.exit(f"two machines cannot be made here: {reason}")
    contenders = dict(list(CONTENDERS.items())[: QUICK if arguments.quick else None])
    measured: dict[str, dict[str, list]] = {
        name: {"bytes": [], "fast": [], "slow": []} for name in contenders
    }
    for _ in range(1 if arguments.quick else ROUNDS):
        for name, settings in contenders.items():
            for cable in CABLES:
                seconds, sent = measure_steps(settings, cable)
                measured[name][cable].append(seconds)
                if cable == "fast":
                    measured[name]["bytes"].append(sent)
                print(f"{name}, {cable}: {1000 * seconds:.0f} ms and {sent:,.0f} bytes a step")
    accuracies: dict[str, list[float]] = {}
    epochs = {"epochs": 1} if arguments.quick else {}
    for every in INTERVALS[: QUICK if arguments.quick else None]:
        for seed in range(1 if arguments.quick else SEEDS):
            settings = {"average_every": every, "seed": seed, **epochs}
            accuracies.setdefault(str(every), []).append(measure_knn(settings))
            print(f"average_every {every}, seed {seed}: kNN {accuracies[str(every)][-1]:.3f}")
    return stamp("2 processes of 1 thread", torch=torch.__version__) | {
        "steps": measured,
        "knn": accuracies,
    }


def measure_steps(settings: dict[str, Any], cable: str) -> tuple[float, float]:
    """Return the seconds of a step, and the bytes that a machine sends in it."""
    limits = {
        "epochs": 2,
        "data.images": BATCH * STEPS,
        "batch_size": BATCH,
        "log.probe_every": 0,
        "log.save_every": 1000,
    }
    results = train({**settings, **limits}, cable)
    seconds = statistics.mean(result["seconds"] for result in results)
    return seconds, statistics.mean(result["bytes"] for result in results)


def measure_knn(settings: dict[str, Any]) -> float:
    """Return the accuracy of the last probe, on held-out images."""
    return train(settings, "fast")[0]["knn"]


def train(settings: dict[str, Any], cable: str) -> list[dict[str, Any]]:
    """Train by one process on each of two machines; return what both measure."""
    with (
        tempfile.TemporaryDirectory() as folder,
        two_machines(Path(folder), CABLES[cable]) as machines,
    ):
        shared = {"MASTER_ADDR": machines[0].address, "MASTER_PORT": str(PORT), "WORLD_SIZE": "2"}
        words = [sys.executable, __file__, "--one", json.dumps(settings)]
        processes = [
            machine.start(*words, **shared, RANK=str(rank), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
            for rank, machine in enumerate(machines)
        ]
        outputs = [process.communicate() for process in processes]
        for process, (_, errors) in zip(processes, outputs, strict=True):
            if process.returncode:
                sys.exit(errors)
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def train_one(settings: dict[str, Any]) -> dict[str, Any]:
    """Train as one of two processes; return the time and bytes of a step and the last probe."""
    import smi
    from smi.training import loop

    times: list[float] = []
    sent: list[int] = []
    counter = Path(f"/sys/class/net/{CABLE}/statistics/tx_bytes")

    class Measured(loop.Step):
        def __call__(self, *words: Any) -> Any:
            taken = super().__call__(*words)
            times.append(time.perf_counter())
            sent.append(int(counter.read_text()))
            return taken

    loop.Step = Measured  # type: ignore[misc]
    smi.pretrain("digits", out="run", overrides=settings, quiet=True)
    probes = smi.Run("run").probes() if os.environ["RANK"] == "0" else []
    count = len(times) - STEPS
    return {
        "seconds": (times[-1] - times[STEPS - 1]) / count,
        "bytes": (sent[-1] - sent[STEPS - 1]) / count,
        "knn": probes[-1]["probe"]["knn"] if probes else None,
    }


def table(results: dict) -> str:
    steps = results["steps"]
    least = statistics.median(steps["SMI"]["bytes"])
    lines = [
        "| | MB sent per step | ÷ SMI | ms per step, fast network | slow network | slow ÷ fast |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, measured in steps.items():
        sent = statistics.median(measured["bytes"])
        pairs = zip(measured["slow"], measured["fast"], strict=True)
        ratio = statistics.median(slow / fast for slow, fast in pairs)
        fast, slow = (1000 * statistics.median(measured[cable]) for cable in ("fast", "slow"))
        lines.append(
            f"| {name} | {sent / 1e6:.2f} | {sent / least:.2f} | {fast:.0f} | {slow:,.0f} "
            f"| {ratio:.1f} |"
        )
    lines += ["", "| SMI on digits, two processes | kNN, mean | each seed |", "|---|---:|---|"]
    for every, accuracies in results["knn"].items():
        each = ", ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies)
        mean = 100 * statistics.mean(accuracies)
        lines.append(f"| `average_every` {every} | {mean:.1f} | {each} |")
    return "\n".join([*lines, "", footer(results)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(train_one(json.loads(sys.argv[2]))))
    else:
        parser = command(__doc__)
        parser.add_argument(
            "--quick", action="store_true", help="one round of two settings, and one epoch"
        )
        main(parser, "machines", run, table)
