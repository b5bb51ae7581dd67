"""Measure what large datasets need: seconds and megabytes to list, shuffle, read and resume.

    python benchmarks/scale.py            ImageNet's shape as files, 10 million names, 10^9 images
    python benchmarks/scale.py --files 20000 --names 100000 --shards 1000      a short version
    python benchmarks/scale.py --quick    a shorter one, in one process: only to see that it runs

The files are links to a few small JPEGs, in a thousand folders of a temporary folder (`--folder`
chooses where). Every line is measured in a process of its own. Its megabytes are the memory that
the process has gained at its peak since its imports, without what it maps from files, looked at
every hundredth of a second.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from machine import command, footer, main, stamp

NUM_CLASSES = 1000
NUM_SOURCES = 40  # files that links lead to: a file can have 65,000 of them
BATCH_SIZE = 256
LATE_STEP = 300_000
QUICK = {"files": 5000, "names": 1000, "shards": 100}


def make_tree(folder: Path, num_files: int) -> None:
    """Make a folder with train/CLASS/FILE.JPEG, the last fiftieth of them in val/."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    sources = []
    for i in range(NUM_SOURCES):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        sources.append(folder / f"source-{i}.jpg")
        Image.fromarray(pixels).resize((80, 64)).save(sources[-1])
    for i in range(num_files):
        split = "val" if i >= 0.98 * num_files else "train"
        place = folder / "images" / split / f"n{i % NUM_CLASSES:08}"
        if i < NUM_CLASSES or (split == "val" and not place.is_dir()):
            place.mkdir(parents=True, exist_ok=True)
        os.link(sources[i % NUM_SOURCES], place / f"n{i % NUM_CLASSES:08}_{i}.JPEG")
    for path in (folder / "images").rglob("*"):  # a folder that just changed is not trusted
        if path.is_dir():
            os.utime(path, (0, 0))
    for path in (folder / "images", *(folder / "images").iterdir()):
        os.utime(path, (0, 0))


# ------ measurements, each in a process of its own


def list_files(arguments: argparse.Namespace) -> dict:
    from smi.data.folders import read_folder

    def measure() -> dict:
        folder = read_folder(arguments.folder / "images")
        return {"count": folder.num_images, "labels": len(folder.train.classes or ())}

    return measured(measure)


def read_batch(arguments: argparse.Namespace) -> dict:
    from smi.data import Batches, load

    def measure() -> dict:
        store = load(
            arguments.folder / "images",
            "pretrain",
            resolution=64,
            max_cache_bytes=0,
            num_workers=1,
        )
        batch = Batches(store, BATCH_SIZE, seed=0).batch(arguments.step)
        store.close()
        return {"count": len(batch.index)}

    return measured(measure)


def list_names(arguments: argparse.Namespace) -> dict:
    from smi.data.listing import Entry, Listing

    def measure() -> dict:
        names = (
            Entry(f"n{i % NUM_CLASSES:08}/n{i % NUM_CLASSES:08}_{i}.JPEG", 110_000, i)
            for i in range(arguments.names)
        )
        listing = Listing.of(names)
        return {"count": len(listing), "last": listing[len(listing) - 1].path}

    return measured(measure)


def order_shards(arguments: argparse.Namespace) -> dict:
    import numpy as np

    from smi.data.order import ShardOrder

    def measure() -> dict:
        sizes = 10_000 + np.arange(arguments.shards) % 7 - 3
        order = ShardOrder(sizes, sizes * 100_000, 4096, 0)
        images = order.images(arguments.step, 0, 4096)
        return {"count": int(sizes.sum()), "last": int(images[-1])}

    return measured(measure)


def map_features(arguments: argparse.Namespace) -> dict:
    import torch

    from smi.evaluation import features

    features.MAX_SHARE_OF_MEMORY = 0.0  # as on a machine with less of it

    def batches() -> object:
        for start in range(0, arguments.files, 4096):
            count = min(4096, arguments.files - start)
            yield torch.zeros(count, arguments.dim), torch.arange(start, start + count)

    def measure() -> dict:
        rows, _ = features._collect(batches(), arguments.files)
        return {"count": len(rows)}

    return measured(measure)


def measured(measure: Callable[[], dict]) -> dict:
    """Call a function; return its result with its seconds and megabytes."""
    done = threading.Event()
    sizes = [own_kilobytes()]

    def watch() -> None:
        while not done.wait(0.01):
            sizes.append(own_kilobytes())

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    result = measure()
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    return result | {"seconds": seconds, "megabytes": (max(sizes) - sizes[0]) / 1000}


def own_kilobytes() -> int:
    """Return the memory of this process, without files that it maps."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise ValueError("this system does not tell")


TASKS = {
    function.__name__: function
    for function in (list_files, read_batch, list_names, order_shards, map_features)
}


def run(arguments: argparse.Namespace) -> dict:
    if arguments.quick:
        vars(arguments).update(QUICK)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        folder = Path(scratch)
        if arguments.quick:
            os.environ["SMI_CACHE"] = str(folder / "cache")
        make_tree(folder, arguments.files)
        lines = []

        def add(name: str, task: str, **settings: object) -> None:
            if arguments.quick:
                given = vars(arguments) | settings | {"folder": folder}
                lines.append({"name": name, **TASKS[task](argparse.Namespace(**given))})
                return
            options = [f"--{key}={value}" for key, value in settings.items()]
            ran = subprocess.run(
                [sys.executable, __file__, f"--task={task}", f"--folder={folder}", *options],
                env=os.environ | {"SMI_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            lines.append({"name": name, **json.loads(ran.stdout)})
            print(lines[-1], file=sys.stderr)

        add("list a folder", "list_files")
        add("list it again", "list_files")
        add("list it, read a batch of 256", "read_batch", step=0)
        add("the same at step 300,000", "read_batch", step=LATE_STEP)
        add("features of 2,048 numbers, on disk", "map_features", files=arguments.files, dim=2048)
        add("hold names", "list_names", names=arguments.names)
        add("shards: a batch of 4,096", "order_shards", shards=arguments.shards, step=0)
        add("shards: at step 300,000", "order_shards", shards=arguments.shards, step=LATE_STEP)
    return stamp("1 thread") | {"lines": lines}


def table(results: dict) -> str:
    rows = ["| | images | seconds | MB |", "|---|---:|---:|---:|"]
    rows += [
        f"| {line['name']} | {line['count']:,} | {line['seconds']:.2f} | {line['megabytes']:,.0f} |"
        for line in results["lines"]
    ]
    return "\n".join([*rows, "", footer(results)])


if __name__ == "__main__":
    parser = command(__doc__)
    parser.add_argument("--files", type=int, default=1_281_167)
    parser.add_argument("--names", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--step", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--dim", type=int, default=2048, help=argparse.SUPPRESS)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    if any(word.startswith("--task") for word in sys.argv):
        arguments = parser.parse_args()
        print(json.dumps(TASKS[arguments.task](arguments)))
    else:
        main(parser, "scale", run, table)
