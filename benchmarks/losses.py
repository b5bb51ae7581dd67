"""Measure time and memory of our losses against their matrix products and against lightly.

    python benchmarks/losses.py           about three minutes; writes results/benchmark-losses.json
    python benchmarks/losses.py --show    prints the table of the last run

Forward and backward on two threads. All losses of one size take turns in every round. In its turn,
each runs to warm up and then several times; the median counts. A ratio is the median over rounds of
the ratio within a round, so that a temporary slowdown of the machine affects both sides. Losses
that take seconds have one round only. lightly is used as its documentation does:
`criterion(z0, z1).backward()`.
"""

import os
import statistics
import time
from collections.abc import Callable, Container

from machine import command, footer, main, stamp

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler that counts memory

N, K = 256, 8192


def run(_: object) -> dict:
    import lightly
    import lightly.loss
    import torch

    from smi import losses
    from smi.paper.timing import peak_bytes

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

    seconds = medians(
        {
            "seven products": products,
            "SMI": step(losses.SMILoss(), zs),
            "lightly NTXentLoss": step(lightly.loss.NTXentLoss(), zs),
            "SMI, plain": step(lambda *z: losses.smi_loss_plain(*z).total, zs),
            "NT-Xent": step(losses.NTXentLoss(), zs),
            "Barlow Twins": step(losses.BarlowTwinsLoss(), zs),
            "VICReg": step(losses.VICRegLoss(), zs),
            "lightly BarlowTwinsLoss": step(lightly.loss.BarlowTwinsLoss(), zs),
            "lightly VICRegLoss": step(lightly.loss.VICRegLoss(), zs),
        },
        slow=("lightly BarlowTwinsLoss", "lightly VICRegLoss"),
    )
    large = {}
    for n, k in [(4096, 256), (4096, 2048), (8192, 256)]:
        zs = embeddings(n, k)
        steps = {
            "SMI": step(losses.SMILoss(), zs),
            "SMI, plain": step(lambda *z: losses.smi_loss_plain(*z).total, zs),
        }
        large[f"{n}x{k}"] = medians(steps, slow=steps)
    zs = embeddings(16384, 256)
    memory = peak_bytes(step(losses.SMILoss(), zs), torch.device("cpu")) - sum(
        z.grad.numel() * 4 for z in zs
    )
    return stamp("2 threads", torch=torch.__version__, lightly=lightly.__version__) | {
        "seconds": seconds,
        "seconds_large": large,
        "memory_16384x256_mb": memory / 1e6,
    }


def medians(
    steps: dict[str, Callable[[], None]], slow: Container[str] = ()
) -> dict[str, list[float]]:
    """Return the median seconds of every round, by name.

    There are seven rounds of eight runs, after two runs to warm up. Slow steps have one round of
    three runs, after one.
    """
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    for current in range(7):
        for name, step in steps.items():
            if name in slow and current > 0:
                continue
            warm_up, repeats = (1, 3) if name in slow else (2, 8)
            times = []
            for _ in range(warm_up + repeats):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            rounds[name].append(statistics.median(times[warm_up:]))
    return rounds


def ratio(rounds: dict[str, list[float]], slower: str, faster: str) -> float:
    """Return the median over rounds of the ratio; with a single round, the ratio of medians."""
    a, b = rounds[slower], rounds[faster]
    if len(a) == len(b):
        return statistics.median(x / y for x, y in zip(a, b, strict=True))
    return statistics.median(a) / statistics.median(b)


def table(results: dict) -> str:
    seconds = results["seconds"]
    rows = [
        (
            f"SMI ÷ the seven {N}×{K}×{N} products it cannot avoid",
            ratio(seconds, "SMI", "seven products"),
            "≤",
            1.25,
        )
    ]
    for opponent, ours, target in (
        ("lightly NTXentLoss", "SMI", 3),
        ("lightly BarlowTwinsLoss", "SMI", 30),
        ("lightly VICRegLoss", "SMI", 100),
        ("lightly NTXentLoss", "NT-Xent", 1.5),
        ("lightly BarlowTwinsLoss", "Barlow Twins", 2.5),
        ("lightly VICRegLoss", "VICReg", 3),
    ):
        rows.append((f"{opponent} ÷ our {ours}", ratio(seconds, opponent, ours), "≥", target))
    for size, large in results["seconds_large"].items():
        rows.append(
            (
                f"plain ÷ fused SMI at {size.replace('x', '×')}",
                ratio(large, "SMI, plain", "SMI"),
                "≥",
                1,
            )
        )
    rows.append(
        (
            "SMI at 16384×256: peak MB beyond inputs and gradients",
            results["memory_16384x256_mb"],
            "<",
            400,
        )
    )
    lines = ["| ratio (forward + backward) | measured | target |", "|---|---:|---:|"]
    lines += [f"| {name} | {value:.3g} | {sign} {target:g} |" for name, value, sign, target in rows]
    lines += ["", f"| at {N}×{K} | milliseconds |", "|---|---:|"]
    lines += [
        f"| {name} | {statistics.median(rounds) * 1e3:.1f} |" for name, rounds in seconds.items()
    ]
    return "\n".join([*lines, "", footer(results)])


if __name__ == "__main__":
    main(command(__doc__), "losses", run, table)
