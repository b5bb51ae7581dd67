"""Measure how fast images are decoded into the cache and read from it.

    python benchmarks/data.py                   makes JPEGs; writes results/benchmark-data.json
    python benchmarks/data.py --images DIR      uses the JPEGs of a folder
    python benchmarks/data.py --cifar10 ROOT    uses the official files, not random bytes
    python benchmarks/data.py --show            prints the table of the last run

The cache is compared with a bare loop: one process per core that opens, decodes and resizes its
share of the files and discards the pixels. The clock of the bare loop starts when all processes are
ready. The clock of the cache runs from the call to the return: listing files, starting workers,
writing, waiting for the disk. Both take turns in every round. The table shows medians; a first
round to warm up is not counted.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from machine import command, footer, main, stamp

NUM_IMAGES, RESOLUTION, ROUNDS = 4000, 224, 5
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(arguments: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        return measure(
            arguments.images or photographs(folder), arguments.cifar10 or cifar10(folder), folder
        )


def measure(images: Path, cifar: Path, scratch: Path) -> dict:
    from smi.data.cache import open_cache
    from smi.data.folders import FileSet
    from smi.data.listing import scan

    entries = scan(images)[0][:NUM_IMAGES]
    files = FileSet("benchmark", "train", images.absolute(), entries)
    paths = [f"{files.root}/{entry.path}" for entry in entries]
    times: dict[str, list[float]] = {"bare loop": [], "cache": [], "second start": []}
    for current in range(1 + ROUNDS):
        cache = scratch / f"cache-{current}"
        seconds = {"bare loop": bare_loop(paths)}
        for name in ("cache", "second start"):
            start = time.perf_counter()
            open_cache(files, RESOLUTION, cache)
            seconds[name] = time.perf_counter() - start
        for name, value in seconds.items():
            if current > 0:
                times[name].append(value)
    # Last, because torch changes how its process and its forks allocate memory.
    times["cifar10"] = [load_cifar10(cifar) for _ in range(1 + ROUNDS)][1:]
    rates = read_rates(files, scratch / f"cache-{ROUNDS}")
    return stamp(f"{CORES} cores", pillow=Image.__version__, numpy=np.__version__) | {
        "images": f"{len(entries):,} JPEGs of {entries.num_bytes / 1e6:.0f} MB",
        "num_images": len(entries),
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "rounds": times,
        "images_per_second": rates,
    }


def bare_loop(paths: list[str]) -> float:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(CORES + 1)
    processes = [
        context.Process(target=decode_share, args=(paths[i::CORES], barrier)) for i in range(CORES)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    for process in processes:
        process.join()
    return time.perf_counter() - start


def decode_share(paths: list[str], barrier) -> None:
    barrier.wait()
    for path in paths:
        with Image.open(path) as image:
            scale = RESOLUTION / min(image.size)
            size = round(scale * image.width), round(scale * image.height)
            image.convert("RGB").resize(size, Image.Resampling.BILINEAR)


def load_cifar10(root: Path) -> float:
    """Time the loading of all 60,000 images as tensors in memory."""
    from smi.data import load

    start = time.perf_counter()
    for split in ("train", "val"):
        load("cifar10", split, root=root)[:]
    return time.perf_counter() - start


def read_rates(files, cache: Path) -> dict[str, float]:
    from smi.data.batches import Batches
    from smi.data.store import CachedStore, StreamingStore

    stores = {
        "cached": CachedStore(files, RESOLUTION, cache),
        "streaming": StreamingStore(files, RESOLUTION),
    }
    rates = {}
    for name, store in stores.items():
        batches = Batches(store, min(256, len(store)), seed=0).starting_at(0)
        next(batches)
        start = time.perf_counter()
        count = sum(len(next(batches).index) for _ in range(8))
        rates[name] = count / (time.perf_counter() - start)
        store.close()
    return rates


def photographs(scratch: Path) -> Path:
    """Write JPEGs of smooth noise that take about as long to decode as photographs on the web."""
    folder = scratch / "photographs"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(NUM_IMAGES):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        noise = random.normal(0, 6, (375, 500, 1))
        pixels = np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:04}.jpg", quality=85)
    return folder


def cifar10(scratch: Path) -> Path:
    folder = scratch / "cifar-10-batches-bin"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        random.integers(0, 10, (10_000, 3073), dtype=np.uint8).tofile(folder / f"{name}.bin")
    return scratch


def table(results: dict) -> str:
    s, rates, n = results["seconds"], results["images_per_second"], results["num_images"]
    speed = s["bare loop"] / s["cache"]
    lines = [
        f"| {results['images']}, {RESOLUTION} px | measured | target |",
        "|---|---:|---:|",
        "| speed of building the cache ÷ speed of a bare loop on all cores "
        f"| {speed:.2f} | ≥ 0.9 |",
        f"| CIFAR-10, 60,000 images from the binary files: seconds | {s['cifar10']:.2f} | < 3 |",
        f"| bare loop: images a second | {n / s['bare loop']:,.0f} | |",
        f"| building the cache: images a second | {n / s['cache']:,.0f} | |",
        f"| opening an existing cache: seconds | {s['second start']:.3f} | |",
        f"| batches of 256 from the cache: images a second | {rates['cached']:,.0f} | |",
        "| batches of 256 streamed from the files: images a second "
        f"| {rates['streaming']:,.0f} | |",
    ]
    return "\n".join([*lines, "", footer(results)])


if __name__ == "__main__":
    parser = command(__doc__)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs")
    parser.add_argument("--cifar10", type=Path, help="a folder that holds cifar-10-batches-bin")
    main(parser, "data", run, table)
