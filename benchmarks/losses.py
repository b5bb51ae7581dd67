"""Time and memory of our losses against what they cannot avoid and against lightly's.

    python benchmarks/losses.py                 about three minutes; prints the table, writes results/benchmark-losses.json
    python benchmarks/losses.py --show          prints the table of that file again

Forward and backward on two threads. Everything at one size takes turns, round after round, so that a busy moment of the machine falls on
all; in its turn each runs a few times to warm up and then for the record, and the median of all records counts. Opponents are used as their
documentation does: `criterion(z0, z1).backward()`.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Container
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler that counts memory speaks on the terminal otherwise

RESULTS = Path(__file__).parent.parent / "results" / "benchmark-losses.json"
N, K = 256, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the table of the last run instead of running")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.show:
        results = run()
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(table(json.loads(arguments.out.read_text())))


def run() -> dict:
    import lightly
    import lightly.loss
    import torch

    from smi import losses
    from smi.analysis.cost import peak_bytes

    torch.set_num_threads(2)

    def embeddings(n: int, k: int) -> list[torch.Tensor]:
        return [torch.randn(n, k, requires_grad=True) for _ in range(2)]

    def step(criterion: Callable, zs: list[torch.Tensor]) -> Callable[[], None]:
        def run_step() -> None:
            for z in zs:
                z.grad = None
            criterion(*zs).backward()

        return run_step

    torch.manual_seed(0)
    zs = embeddings(N, K)
    a, b = (z.detach() for z in zs)
    w = torch.randn(N, N)

    def products() -> None:
        for _ in range(3):
            a @ b.T
        for _ in range(4):
            w @ a

    seconds = median_seconds(
        {
            "seven products": products,
            "SMI": step(losses.SMILoss(), zs),
            "SMI, plain": step(lambda *z: losses.smi_loss_plain(*z).total, zs),
            "NT-Xent": step(losses.NTXentLoss(), zs),
            "Barlow Twins": step(losses.BarlowTwinsLoss(), zs),
            "VICReg": step(losses.VICRegLoss(), zs),
            "lightly NTXentLoss": step(lightly.loss.NTXentLoss(), zs),
            "lightly BarlowTwinsLoss": step(lightly.loss.BarlowTwinsLoss(), zs),
            "lightly VICRegLoss": step(lightly.loss.VICRegLoss(), zs),
        },
        slow=("lightly BarlowTwinsLoss", "lightly VICRegLoss"),
    )
    large = {}
    for n, k in [(4096, 256), (4096, 2048), (8192, 256)]:
        zs = embeddings(n, k)
        steps = {"SMI": step(losses.SMILoss(), zs), "SMI, plain": step(lambda *z: losses.smi_loss_plain(*z).total, zs)}
        large[f"{n}x{k}"] = median_seconds(steps, slow=steps)
    zs = embeddings(16384, 256)
    memory = peak_bytes(step(losses.SMILoss(), zs), torch.device("cpu")) - sum(z.grad.numel() * 4 for z in zs)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "hardware": f"{processor()}, 2 threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "lightly": lightly.__version__},
        "seconds": seconds,
        "seconds_large": large,
        "memory_16384x256_mb": memory / 1e6,
    }


def median_seconds(steps: dict[str, Callable[[], None]], slow: Container[str] = ()) -> dict[str, float]:
    """The median of three rounds of ten, each after three to warm up; for the slow, of one round of three after one."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for current in range(3):
        for name, step in steps.items():
            if name in slow and current > 0:
                continue
            warm_up, repeats = (1, 3) if name in slow else (3, 10)
            for repeat in range(warm_up + repeats):
                start = time.perf_counter()
                step()
                if repeat >= warm_up:
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(results: dict) -> str:
    s = results["seconds"]
    smi = s["SMI"]
    rows = [(f"SMI ÷ the seven {N}×{K}×{N} products it cannot avoid", smi / s["seven products"], "≤", 1.25)]
    rows += [
        (f"{opponent} ÷ SMI", s[opponent] / smi, "≥", target)
        for opponent, target in (("lightly NTXentLoss", 3), ("lightly BarlowTwinsLoss", 30), ("lightly VICRegLoss", 100))
    ]
    rows += [
        (f"lightly {name} ÷ our {ours}", s[f"lightly {name}"] / s[ours], "≥", target)
        for name, ours, target in (("NTXentLoss", "NT-Xent", 1.5), ("BarlowTwinsLoss", "Barlow Twins", 2.5), ("VICRegLoss", "VICReg", 3))
    ]
    rows += [
        (f"plain ÷ fused SMI at {size.replace('x', '×')}", timed["SMI, plain"] / timed["SMI"], "≥", 1)
        for size, timed in results["seconds_large"].items()
    ]
    rows.append(("SMI at 16384×256: peak MB beyond inputs and gradients", results["memory_16384x256_mb"], "<", 400))
    lines = ["| ratio (forward + backward) | measured | asked for |", "|---|---:|---:|"]
    lines += [f"| {name} | {value:.3g} | {sign} {target:g} |" for name, value, sign, target in rows]
    lines += ["", f"| at {N}×{K} | milliseconds |", "|---|---:|"]
    lines += [f"| {name} | {value * 1e3:.1f} |" for name, value in s.items()]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join([*lines, "", f"{results['date']}, commit {results['commit']}, {results['hardware']}, {versions}."])


if __name__ == "__main__":
    main()
