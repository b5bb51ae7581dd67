"""Measure how fast views are ready for a GPU, and how long a GPU of known speed waits for them.

    python benchmarks/feeding.py                makes JPEGs; twenty-five minutes;
                                                writes results/benchmark-feeding.json
    python benchmarks/feeding.py --images DIR   uses the JPEGs of a folder
    python benchmarks/feeding.py --quick        few images, one round: only to see that it runs
    python benchmarks/feeding.py --show         prints the table of the last run

The device only sleeps. Our views are those of training on a GPU: a thread makes two uint8 views of
every image in the buffers from which they are copied. The opponent is torch's DataLoader with
torchvision's v2 transforms as its documentation uses them: uint8 tensors, then float32, normalised
and collated, with as many workers as we have threads. Both are confined to the same cores. "memory"
are decoded images of the training resolution, for both. "files" are JPEGs: the DataLoader decodes
them for every image, we read our cache of them, which is built before the clock starts. Pinned
memory and the copy itself need a GPU and are left out for both.

Every measurement is a new process: some steps to warm up, then a clock around further steps. The
contestants take turns in every round; the table shows medians over rounds, and medians of ratios
within a round.

The speeds of the GPUs are those of ResNet-50 v1.5 at 224 pixels in mixed precision. For training,
NVIDIA publishes 2,470 images a second on an A100 and 16,621 on eight (README of resnet50v1.5 in
DeepLearningExamples/PyTorch, container 21.03). For a T4 it publishes only inference, 1,198 images a
second; a third of it is used here, because a backward pass takes about twice the time of a forward
pass. A step of self-supervised training passes two views of an image forward and backward,
so these are views a second, and half of them images. A real step is slower: it has a projector, a
loss, and for some methods a teacher.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import command, footer, main, stamp
from views import torchvision_tensors

GPUS = {"T4": 1198 / 3, "A100": 2470, "8 × A100": 16_621}  # views a second
POLICIES = {  # policy: side of the views, side of the stored images, batch size
    "cifar10": (32, 32, 256),
    "imagenette": (160, 160, 64),
    "imagenet": (224, 256, 64),
}
OURS, DATALOADER = "smi", "DataLoader"
NUM_IMAGES, ROUNDS, STEPS, WARMUP, THREADS = 512, 5, 16, 6, (1, 2)
QUICK = {"NUM_IMAGES": 16, "ROUNDS": 1, "STEPS": 1, "WARMUP": 1, "THREADS": (1,)}


def run(arguments: argparse.Namespace) -> dict:
    import torch
    import torchvision

    if arguments.quick:
        globals().update(QUICK)
    with tempfile.TemporaryDirectory() as scratch:
        files = arguments.images or photographs(Path(scratch) / "photographs")
        common = {"files": str(files), "cache": f"{scratch}/cache"}
        rounds = [one_round(common, arguments.quick) for _ in range(ROUNDS)]
    versions = {module.__name__: module.__version__ for module in (torch, torchvision)}
    return stamp(f"up to {max(THREADS)} threads", **versions) | {"rounds": rounds}


def one_round(common: dict, quick: bool) -> dict[str, float]:
    """Return images per second of all contestants, and the share of time that a GPU waits."""
    results = {}
    for policy, threads in itertools.product(POLICIES, THREADS):
        for source in ("memory",) if policy == "cifar10" else ("memory", "files"):
            for contestant in (OURS, DATALOADER):
                what = {"policy": policy, "source": source, "contestant": contestant}
                results[f"{contestant} {policy} {source} {threads}"] = call(
                    common | what | {"threads": threads, "quick": quick}
                )
    for gpu, threads in itertools.product(GPUS, THREADS):
        what = {"policy": "imagenet", "source": "files", "contestant": OURS, "gpu": gpu}
        results[f"{gpu} {threads}"] = call(common | what | {"threads": threads, "quick": quick})
    return results


def call(what: dict) -> float:
    """Make one measurement in a new process; a quick one in this process."""
    if what["quick"]:
        return measure(what)
    ran = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps(what)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(ran.stdout)


# ------------------------------------------------------------------------------ in a new process


def measure(what: dict) -> float:
    """Return the images per second of a contestant, or the share of time that a GPU waits."""
    if hasattr(os, "sched_setaffinity") and not what["quick"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: what["threads"]])
    _, _, batch_size = POLICIES[what["policy"]]
    batch_size = min(batch_size, NUM_IMAGES // 2)
    contestant = our_steps if what["contestant"] == OURS else dataloader_steps
    steps = contestant(what, batch_size)
    step_seconds = 2 * batch_size / GPUS[what["gpu"]] if "gpu" in what else 0.0
    for _ in range(WARMUP):
        next(steps)
        time.sleep(step_seconds)
    waited = 0.0
    start = time.perf_counter()
    for _ in range(STEPS):
        before = time.perf_counter()
        next(steps)
        waited += time.perf_counter() - before
        time.sleep(step_seconds)
    seconds = time.perf_counter() - start
    steps.close()
    return waited / seconds if "gpu" in what else STEPS * batch_size / seconds


def our_steps(what: dict, batch_size: int):
    import torch

    from smi.data import Batches, load
    from smi.data.sources import ArraySet
    from smi.data.store import ArrayStore
    from smi.training.feeding import Feeder
    from smi.views import Views, policy

    class ViewsForSleepers(Views):
        def normalise(self, pixels):
            return pixels  # a GPU does this

    side = POLICIES[what["policy"]][1]
    if what["source"] == "memory":
        store = ArrayStore(ArraySet("noise", "pretrain", (pictures(side),)))
    else:
        store = load(what["files"], "pretrain", resolution=side, cache=what["cache"])
    views = ViewsForSleepers(policy(what["policy"]))
    batches = Batches(store, batch_size, seed=0)
    with Feeder(batches, views, torch.device("cpu"), ahead=True) as feeder:
        yield from feeder


def dataloader_steps(what: dict, batch_size: int):
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    paths = sorted(Path(what["files"]).rglob("*.jp*g"))
    images = torch.from_numpy(pictures(POLICIES[what["policy"]][1]))
    from_files = what["source"] == "files"
    transforms = torchvision_views(what["policy"])

    class Views(Dataset):
        def __len__(self):
            return len(paths) if from_files else len(images)

        def __getitem__(self, i):
            image = Image.open(paths[i]).convert("RGB") if from_files else images[i]
            return [transform(image) for transform in transforms]

    loader = DataLoader(
        Views(),
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=what["threads"],
        persistent_workers=True,
    )
    while True:
        yield from loader


def torchvision_views(name: str) -> list:
    from torchvision.transforms import v2 as T

    from smi.views import policy

    chosen = policy(name)
    return [T.Compose([T.ToImage(), torchvision_tensors(view, chosen)]) for view in chosen.views]


def pictures(side: int):
    """Draw smooth noise in all colours: uint8 [n, 3, side, side]."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (NUM_IMAGES, 8, 8, 3), dtype=np.uint8)
    images = [
        np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
        for image in coarse
    ]
    return np.stack(images).transpose(0, 3, 1, 2).copy()


def photographs(folder: Path) -> Path:
    """Write JPEGs of smooth noise, of the usual size of ImageNet's."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(NUM_IMAGES):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC))
        noisy = np.clip(pixels + random.normal(0, 6, (375, 500, 1)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{i:04}.jpg", quality=85)
    return folder


# ---------------------------------------------------------------------------------------- results


def table(results: dict) -> str:
    rounds = results["rounds"]
    names = list(rounds[0])
    threads = sorted({name.rsplit(" ", 1)[1] for name in names})
    most = threads[-1]

    def median(name: str) -> float:
        return statistics.median(values[name] for values in rounds)

    def ratio(policy: str, source: str) -> str:
        ours, theirs = (f"{name} {policy} {source} {most}" for name in (OURS, DATALOADER))
        value = statistics.median(values[ours] / values[theirs] for values in rounds)
        return f"{value:.1f}"

    lines = [f"| on {most} threads | measured | target |", "|---|---:|---:|"]
    lines += [
        f"| images a second at 224 px, from {source}: ours ÷ the DataLoader's "
        f"| {ratio('imagenet', source)} | ≥ 8 |"
        for source in ("memory", "files")
    ]
    lines += [
        f"| share of its time that a GPU as fast as {gpu} waits, 224 px, our cache "
        f"| {100 * median(f'{gpu} {most}'):.1f} % | {'≤ 2 %' if gpu == 'A100' else ''} |"
        for gpu in GPUS
    ]
    heads = " | ".join(f"{count} threads" for count in threads)
    lines += ["", f"| views ready for upload, a second | {heads} |"]
    lines += [f"|---|{'---:|' * len(threads)}"]
    rows = dict.fromkeys(name.rsplit(" ", 1)[0] for name in names if name.startswith((OURS, "D")))
    for row in rows:
        contestant, policy, source = row.split(" ")
        cells = " | ".join(f"{2 * median(f'{row} {count}'):,.0f}" for count in threads)
        lines.append(f"| {contestant}, {POLICIES[policy][0]} px, {source} | {cells} |")
    needed = ", ".join(f"{gpu} {speed:,.0f}" for gpu, speed in GPUS.items())
    return "\n".join([*lines, "", f"Views a second that a GPU needs: {needed}.", footer(results)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(json.loads(sys.argv[2])))
        sys.exit()
    parser = command(__doc__)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs")
    parser.add_argument("--quick", action="store_true", help="few images, one round")
    main(parser, "feeding", run, table)
