"""Measure images per second of `smi pretrain` against lightly and against the network alone.

    python benchmarks/training.py --root DIR    DIR holds cifar-10-batches-bin; about ten minutes;
                                                writes results/benchmark-training.json
    python benchmarks/training.py --show        prints the table of the last run

CIFAR-10, batches of 256, the encoder of the recipe cifar10-small, a projector of 3 x 4096, two
threads. All take turns in every round, each in its own process: it warms up, then trains some
steps. A ratio is the median over rounds of the ratio within a round.

smi: the function of the command with everything: reading, views, forward, backward, AdamW, metrics
(a line every four steps here; every ten in the recipe). lightly: as in its examples of Barlow Twins
and SimCLR on CIFAR-10: its transforms, a DataLoader (with two workers for two cores), its head, its
loss, SGD. Network alone: forward and backward of encoder and projector on prepared tensors.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import command, footer, main, stamp

N, WIDTH = 256, 4096
OURS, ALONE = "smi pretrain, SMI", "network alone"
CONTENDERS = (OURS, ALONE, "lightly, Barlow Twins", "lightly, SimCLR", "smi pretrain, BarlowTwins")
ROUNDS, WARM_UP, STEPS, EVERY = 3, 4, 8, 4


def run(arguments: Any) -> dict:
    import lightly
    import torch

    rounds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    shares = []
    root = ["--root", str(arguments.root)] if arguments.root else []
    for _ in range(ROUNDS):
        for name in CONTENDERS:
            process = subprocess.run(
                [sys.executable, __file__, "--one", name, *root],
                capture_output=True,
                text=True,
                check=True,
            )
            measured = json.loads(process.stdout.splitlines()[-1])
            rounds[name].append(measured["images_per_second"])
            shares += measured["shares"]
            print(f"{name}: {rounds[name][-1]:.1f} images/s", flush=True)
    return stamp("2 threads", torch=torch.__version__, lightly=lightly.__version__) | {
        "images_per_second": rounds,
        "logging_share": statistics.median(shares),
    }


def measure(name: str, root: Path | None) -> dict[str, Any]:
    import torch

    torch.set_num_threads(2)
    if name == ALONE:
        return {"images_per_second": _alone(), "shares": []}
    if name.startswith("lightly"):
        return {"images_per_second": _lightly(name.split(", ")[1], _images(root)), "shares": []}
    parts: dict[str, list[float]] = {"gradient norm": [], "metrics": []}
    speed = _ours(name.split(", ")[1], root, parts)
    # The recipe writes metrics every ten steps.
    metrics = statistics.median(parts["gradient norm"]) + statistics.median(parts["metrics"]) / 10
    return {"images_per_second": speed, "shares": [metrics * speed / N] if name == OURS else []}


def _images(root: Path | None) -> Any:
    from smi.data import load

    return load("cifar10", "pretrain", root=root)[: N * (WARM_UP + STEPS)]


def _ours(method: str, root: Path | None, parts: dict[str, list[float]]) -> float:
    import smi
    import smi.training.journal
    import smi.training.loop
    from smi.device import Runtime

    with (
        tempfile.TemporaryDirectory() as folder,
        _timed(smi.training.loop, "gradient_norm", parts, "gradient norm"),
    ):
        with _timed(smi.training.journal.Journal, "_write_metrics", parts, "metrics"):
            settings = {
                "data.images": N * (WARM_UP + STEPS),
                "log.every": EVERY,
                "log.probe_every": 0,
                "method.widths": [WIDTH] * 3,
                "precision": "float32",
            }
            run = smi.pretrain(
                "cifar10-small",
                out=f"{folder}/run",
                method=method,
                overrides=settings | {"epochs": 1},
                runtime=Runtime(root=root),
            )
        times = [EVERY * N / line["timing"]["images_per_second"] for line in run.metrics()]
    return STEPS * N / sum(times[WARM_UP // EVERY :])


@contextmanager
def _timed(owner: Any, name: str, parts: dict[str, list[float]], part: str) -> Iterator[None]:
    original = getattr(owner, name)

    def timed(*arguments: Any, **more: Any) -> Any:
        start = time.perf_counter()
        result = original(*arguments, **more)
        parts[part].append(time.perf_counter() - start)
        return result

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _network(head: Any) -> Any:
    import torch
    from torch import nn

    from smi.nn import create_encoder

    torch.manual_seed(0)
    encoder = create_encoder("resnet-small", image_size=32, stem="half")
    return nn.Sequential(encoder, head(encoder.dim))


def _alone() -> float:
    import torch

    from smi.nn import mlp

    network = _network(lambda dim: mlp(dim, WIDTH, WIDTH, WIDTH)).to(
        memory_format=torch.channels_last
    )
    views = [torch.randn(N, 3, 32, 32).to(memory_format=torch.channels_last) for _ in range(2)]
    gradient = torch.randn(N, WIDTH)

    def step() -> None:
        torch.autograd.backward([network(x) for x in views], [gradient, gradient])
        for parameter in network.parameters():
            parameter.grad = None

    return _speed(step)


def _lightly(method: str, images: Any) -> float:
    import torch
    from lightly.loss import BarlowTwinsLoss, NTXentLoss
    from lightly.models.modules import BarlowTwinsProjectionHead
    from lightly.transforms import BYOLTransform, SimCLRTransform
    from lightly.transforms.byol_transform import BYOLView1Transform, BYOLView2Transform
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    class Pictures(Dataset):
        """Transform arrays as PIL images, like torchvision's CIFAR10."""

        def __init__(self, transform: Any):
            self.data, self.transform = images.permute(0, 2, 3, 1).numpy(), transform

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, i: int) -> Any:
            return self.transform(Image.fromarray(self.data[i])), 0

    if method == "SimCLR":
        transform, criterion = SimCLRTransform(input_size=32, gaussian_blur=0.0), NTXentLoss()
    else:
        transform = BYOLTransform(
            view_1_transform=BYOLView1Transform(input_size=32, gaussian_blur=0.0),
            view_2_transform=BYOLView2Transform(input_size=32, gaussian_blur=0.0),
        )
        criterion = BarlowTwinsLoss()
    network = _network(lambda dim: BarlowTwinsProjectionHead(dim, WIDTH, WIDTH))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.06)
    loader = DataLoader(
        Pictures(transform), batch_size=N, shuffle=True, drop_last=True, num_workers=2
    )
    start = time.perf_counter()
    for done, batch in enumerate(loader):
        if done == WARM_UP:
            start = time.perf_counter()
        x0, x1 = batch[0]
        loss = criterion(network(x0), network(x1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return STEPS * N / (time.perf_counter() - start)


def _speed(step: Any) -> float:
    for done in range(WARM_UP + STEPS):
        if done == WARM_UP:
            start = time.perf_counter()
        step()
    return STEPS * N / (time.perf_counter() - start)


def ratio(rounds: dict[str, list[float]], faster: str, slower: str) -> float:
    return statistics.median(a / b for a, b in zip(rounds[faster], rounds[slower], strict=True))


def table(results: dict) -> str:
    rounds = results["images_per_second"]
    rows = [
        (
            "`smi pretrain` with SMI ÷ lightly's Barlow Twins",
            ratio(rounds, OURS, "lightly, Barlow Twins"),
            "≥",
            1.5,
        ),
        (
            "`smi pretrain` with SMI ÷ lightly's SimCLR",
            ratio(rounds, OURS, "lightly, SimCLR"),
            "≥",
            1.5,
        ),
        ("`smi pretrain` with SMI ÷ the network alone", ratio(rounds, OURS, ALONE), "≥", 0.9),
        ("share of a step that metrics take", results["logging_share"], "≤", 0.03),
    ]
    lines = ["| ratio | measured | target |", "|---|---:|---:|"]
    lines += [f"| {name} | {value:.3g} | {sign} {target:g} |" for name, value, sign, target in rows]
    lines += ["", "| | images/s, median | rounds |", "|---|---:|---|"]
    lines += [
        f"| {name} | {statistics.median(r):.1f} | {', '.join(f'{x:.1f}' for x in r)} |"
        for name, r in rounds.items()
    ]
    return "\n".join([*lines, "", footer(results)])


if __name__ == "__main__":
    parser = command(__doc__)
    parser.add_argument(
        "--root", type=Path, help="the folder that holds cifar-10-batches-bin (default: smi's own)"
    )
    parser.add_argument("--one", choices=CONTENDERS, help="measure only this, once, and print JSON")
    if (arguments := parser.parse_known_args()[0]).one:
        print(json.dumps(measure(arguments.one, arguments.root)))
    else:
        main(parser, "training", run, table)
