"""Measure images per second of `smi pretrain` against lightly and against the network alone.

    python benchmarks/training.py --root DIR    DIR holds cifar-10-batches-bin; twenty minutes;
                                                writes results/benchmark-training.json
    python benchmarks/training.py --show        prints the table of the last run

CIFAR-10, batches of 256, the encoder of the recipe cifar10-small, two threads, a projector of
3 x 4096 (the paper's) and one of 3 x 1024 (the recipe's). All take turns in every round, each in
its own process: it warms up, then trains some steps. A ratio is the median over rounds of the ratio
within a round.

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

N = 256
WIDTH, RECIPE_WIDTH = 4096, 1024
OURS, ALONE = "smi pretrain, SMI", "network alone"
SIMCLR = "lightly, SimCLR"
CONTENDERS = (OURS, ALONE, "lightly, Barlow Twins", SIMCLR, "smi pretrain, BarlowTwins")
NARROW_CONTENDERS = (OURS, ALONE, SIMCLR)
HEAD = "head alone"
ROUNDS, WARM_UP, STEPS, EVERY = 5, 4, 8, 4


def run(arguments: Any) -> dict:
    import lightly
    import torch

    rounds: dict[str, list[float]] = {name: [] for name in (*CONTENDERS, HEAD)}
    narrow: dict[str, list[float]] = {name: [] for name in NARROW_CONTENDERS}
    shares = []
    root = ["--root", str(arguments.root)] if arguments.root else []
    for _ in range(ROUNDS):
        for width, speeds in ((WIDTH, rounds), (RECIPE_WIDTH, narrow)):
            for name in speeds:
                process = subprocess.run(
                    [sys.executable, __file__, "--one", name, "--width", str(width), *root],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                measured = json.loads(process.stdout.splitlines()[-1])
                speeds[name].append(measured["images_per_second"])
                shares += measured["shares"] if width == WIDTH else []
                print(f"{name}, 3 x {width}: {speeds[name][-1]:.1f} images/s", flush=True)
    return stamp("2 threads", torch=torch.__version__, lightly=lightly.__version__) | {
        "images_per_second": rounds,
        "images_per_second_narrow": narrow,
        "logging_share": statistics.median(shares),
    }


def measure(name: str, width: int, root: Path | None) -> dict[str, Any]:
    import torch

    torch.set_num_threads(2)
    if name in (ALONE, HEAD):
        return {"images_per_second": _alone(width, with_encoder=name == ALONE), "shares": []}
    if name.startswith("lightly"):
        speed = _lightly(name.split(", ")[1], width, _images(root))
        return {"images_per_second": speed, "shares": []}
    parts: dict[str, list[float]] = {"gradient norm": [], "metrics": []}
    speed = _ours(name.split(", ")[1], width, root, parts)
    # The recipe writes metrics every ten steps.
    metrics = statistics.median(parts["gradient norm"]) + statistics.median(parts["metrics"]) / 10
    return {"images_per_second": speed, "shares": [metrics * speed / N] if name == OURS else []}


def _images(root: Path | None) -> Any:
    from smi.data import load

    return load("cifar10", "pretrain", root=root)[: N * (WARM_UP + STEPS)]


def _ours(method: str, width: int, root: Path | None, parts: dict[str, list[float]]) -> float:
    import smi
    import smi.training.journal
    import smi.training.step
    from smi.device import Runtime

    with (
        tempfile.TemporaryDirectory() as folder,
        _timed(smi.training.step, "gradient_norm", parts, "gradient norm"),
    ):
        with _timed(smi.training.journal.Journal, "_write_metrics", parts, "metrics"):
            settings = {
                "data.images": N * (WARM_UP + STEPS),
                "log.every": EVERY,
                "log.probe_every": 0,
                "method.widths": [width] * 3,
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


def _alone(width: int, *, with_encoder: bool) -> float:
    import torch

    from smi.nn import mlp

    network = _network(lambda dim: mlp(dim, width, width, width)).to(
        memory_format=torch.channels_last
    )
    views = [torch.randn(N, 3, 32, 32).to(memory_format=torch.channels_last) for _ in range(2)]
    if not with_encoder:
        views = [network[0](x).detach().requires_grad_() for x in views]
        network = network[1]
    gradient = torch.randn(N, width)

    def step() -> None:
        torch.autograd.backward([network(x) for x in views], [gradient, gradient])
        for parameter in network.parameters():
            parameter.grad = None

    return _speed(step)


def _lightly(method: str, width: int, images: Any) -> float:
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
    network = _network(lambda dim: BarlowTwinsProjectionHead(dim, width, width))
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
    rounds, narrow = results["images_per_second"], results["images_per_second_narrow"]
    rows = [
        (
            "`smi pretrain` with SMI ÷ lightly's Barlow Twins",
            ratio(rounds, OURS, "lightly, Barlow Twins"),
            "≥",
            1.5,
        ),
        (
            "`smi pretrain` with SMI ÷ lightly's SimCLR",
            ratio(rounds, OURS, SIMCLR),
            "≥",
            1.5,
        ),
        (
            "the same with the recipe's projector, 3 × 1024",
            ratio(narrow, OURS, SIMCLR),
            "≥",
            1.5,
        ),
        ("`smi pretrain` with SMI ÷ the network alone", ratio(rounds, OURS, ALONE), "≥", 1.0),
        ("the same with 3 × 1024", ratio(narrow, OURS, ALONE), "≥", 1.0),
        ("share of a step that metrics take", results["logging_share"], "≤", 0.03),
    ]
    lines = ["| ratio | measured | target |", "|---|---:|---:|"]
    lines += [f"| {name} | {value:.3g} | {sign} {target:g} |" for name, value, sign, target in rows]
    share = ratio(rounds, OURS, HEAD)
    lines += [f"| share of a step that the products of the 3 × 4096 head take | {share:.2f} | |"]
    lines += ["", "| | images/s, median | rounds |", "|---|---:|---|"]
    for width, speeds in ((WIDTH, rounds), (RECIPE_WIDTH, narrow)):
        lines += [
            f"| {name}, 3 × {width} | {statistics.median(r):.1f} "
            f"| {', '.join(f'{x:.1f}' for x in r)} |"
            for name, r in speeds.items()
        ]
    return "\n".join([*lines, "", footer(results)])


if __name__ == "__main__":
    parser = command(__doc__)
    parser.add_argument(
        "--root", type=Path, help="the folder that holds cifar-10-batches-bin (default: smi's own)"
    )
    parser.add_argument(
        "--one", choices=(*CONTENDERS, HEAD), help="measure only this, once, and print JSON"
    )
    parser.add_argument("--width", type=int, default=WIDTH, help="of the projector, with --one")
    if (arguments := parser.parse_known_args()[0]).one:
        print(json.dumps(measure(arguments.one, arguments.width, arguments.root)))
    else:
        main(parser, "training", run, table)
