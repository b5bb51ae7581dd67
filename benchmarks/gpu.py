"""Check and measure what only a machine with a GPU can show: docs/first-gpu-run.md explains it.

    python benchmarks/gpu.py syncs     where the host waits for the GPU while it trains
    python benchmarks/gpu.py views     views made on the GPU against views made on the CPU
    python benchmarks/gpu.py memory    peak memory and speed of ResNet-50 at 256 x 224 px

--device cpu tries the script without a GPU; its numbers mean nothing there.
"""

import gc
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import smi
from machine import command, commit
from smi.device import Runtime, describe_device
from smi.methods import METHOD_NAMES
from smi.tables import Table
from smi.views import RECIPES, Views, policy

STEPS, LOG_EVERY = 40, 10
SIZES = {"num_images": 1024, "side": 256, "batch": 256, "encoder": "resnet50", "width": 8192}
TINY_SIZES = {"num_images": 16, "side": 40, "batch": 8, "encoder": "resnet-small", "width": 64}
MEMORY_CASES: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "bfloat16, --accumulate 4": {"precision": "bfloat16", "accumulate": 4},
    "bfloat16, --checkpoint-activations": {"precision": "bfloat16", "checkpoint_activations": True},
}


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("check", choices=("syncs", "views", "memory"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "mps", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this machine has no GPU that PyTorch can use")
    check = {"syncs": syncs, "views": views, "memory": memory}[arguments.check]
    print(check(arguments.device, arguments.tiny).text())


def syncs(device: str, tiny: bool) -> Table:
    """Train each method on digits, and count the lines of code at which the host waited."""
    rows = []
    n = 4 if tiny else 32
    for method in METHOD_NAMES[:2] if tiny else METHOD_NAMES:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("warn")
            try:
                _pretrain(
                    "digits", folder, device, method, {"data.images": STEPS * n, "batch_size": n}
                )
            finally:
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
        waits = [w for w in found if "synchroniz" in str(w.message)]
        places = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in waits)
        detail = ", ".join(f"{place} × {count}" for place, count in places.most_common())
        rows.append([method, str(len(waits)), detail or "none"])
    return _table(
        ["Method", f"Waits in {STEPS} steps", "Where"],
        rows,
        device,
        f"Expected: only at the {STEPS // LOG_EVERY} lines of metrics (journal.py, metrics.py), at "
        "the checkpoint and in the first step. A place with one wait per step is a bug.",
    )


def views(device: str, tiny: bool) -> Table:
    """Make the same views by the kernel on the CPU and by PyTorch operations on the device."""
    rows = []
    for name in RECIPES:
        images = torch.randint(256, (8 if tiny else 64, 3, 64, 80), dtype=torch.uint8)
        maker = Views(policy(name, size=32))
        host = maker(images, torch.Generator().manual_seed(0))
        other = maker(images.to(device), torch.Generator().manual_seed(0))
        std = torch.tensor(maker.policy.std)[:, None, None]
        levels = [((a - b.cpu()).abs() * std * 255) for a, b in zip(host, other, strict=True)]
        largest = max(x.max().item() for x in levels)
        mean = sum(x.mean().item() for x in levels) / len(levels)
        rows.append([name, f"{mean:.4f}", f"{largest:.3f}"])
    return _table(
        ["Policy", "Mean difference", "Largest difference"],
        rows,
        device,
        "In grey levels of 255. Expected: a mean below 0.01. Single pixels may differ more where a "
        "value lies at the threshold of solarize.",
    )


def memory(device: str, tiny: bool) -> Table:
    """Train some steps of ResNet-50, and read peak memory and speed from the metrics."""
    rows = []
    sizes = TINY_SIZES if tiny else SIZES
    cases = {"float32": MEMORY_CASES["float32"]} if tiny else MEMORY_CASES
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _write_noise(folder / "images", int(sizes["num_images"]), int(sizes["side"]))
        for name, settings in cases.items():
            gc.collect()  # the network of the case before
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            run = _pretrain(
                str(folder / "images"),
                str(folder / name),
                device,
                "SMI",
                {
                    "batch_size": sizes["batch"],
                    "encoder": sizes["encoder"],
                    "data.resolution": sizes["side"],
                    "views.size": round(sizes["side"] * 7 / 8),
                    "method.widths": [sizes["width"]] * 3,
                    "log.every": 1,
                    **settings,
                },
                recipe="imagenet",
            )
            timing = run.metrics()[-1]["timing"]
            cells = (timing["peak_memory_mb"] / 1e3, timing["images_per_second"], timing["waiting"])
            rows.append([name, f"{cells[0]:.1f}", f"{cells[1]:,.0f}", f"{cells[2]:.1%}"])
    return _table(
        ["Setting", "Peak memory, GB", "Images/s", "Waiting for data"],
        rows,
        device,
        f"{sizes['encoder']}, SMI, {sizes['batch']} images a step. Nobody has measured these yet: "
        "please report them.",
    )


def _pretrain(
    data: str,
    out: str,
    device: str,
    method: str,
    overrides: dict[str, Any],
    recipe: str = "digits",
) -> smi.Run:
    settings = {
        "epochs": 1,
        "log.every": LOG_EVERY,
        "log.probe_every": 0,
        "optimizer.warmup_epochs": 0,
    }
    return smi.pretrain(
        recipe,
        out=Path(out) / "run",
        data=data,
        method=method,
        overrides=settings | overrides,
        runtime=Runtime(device=device),
        quiet=True,
    )


def _write_noise(folder: Path, count: int, side: int) -> None:
    """Write photographs of noise, wider than they are high."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        small = torch.randint(256, (side // 8, side // 6, 3), generator=generator)
        image = Image.fromarray(small.to(torch.uint8).numpy())
        image.resize((side * 4 // 3, side)).save(folder / f"{i:04d}.jpg")


def _table(headers: list[str], rows: list[list[str]], device: str, note: str) -> Table:
    machine = describe_device(torch.device(device))
    return Table.of(headers, rows, notes=[note, f"{machine}, commit {commit()}."])


if __name__ == "__main__":
    main()
