"""Run the view kernel under AddressSanitizer and UndefinedBehaviorSanitizer with hostile input.

    python campaign/sanitizers.py                2,000 batches
    python campaign/sanitizers.py --quick        a short version

The kernel is compiled with the sanitizers and called as training calls it, through
`smi.views.compiled.Kernel`, in a process that has libasan loaded first. A trial survives if the
arguments are refused by a ValueError, or if the view is finite and no sanitizer stops the process.
Trial i of a seed is always the same, so a lost one can be repeated: --first i --count 1.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from record import RESULTS, Record

QUICK_TRIALS = 400
TRIALS = 2_000
SANITIZERS = "address,undefined,float-divide-by-zero,float-cast-overflow"
FLAGS = (f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-g", "-O1")
SIDES = (1, 2, 3, 5, 7, 8, 13, 16, 31, 32, 33, 47, 64, 97, 128, 257)
SIZES = (1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 65, 96, 129)
NUMBERS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-38, 1e38, -1e38, 2.0**31, 1e9)


def why_not() -> str:
    """Return why the kernel cannot be compiled with sanitizers here, or nothing."""
    if sys.platform != "linux":
        return "the sanitizers are loaded first by LD_PRELOAD, which only Linux has"
    if shutil.which("g++") is None:
        return "there is no g++"
    missing = [name for name in ("libasan.so", "libubsan.so") if not Path(library(name)).is_file()]
    return f"g++ has no {missing[0]}" if missing else ""


def library(name: str) -> str:
    """Return the path of a library of g++."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build(folder: Path) -> Path:
    """Compile the kernel with the sanitizers, and with the flags for numbers that it has."""
    from smi.views.compiler import MATH_FLAGS, SOURCE

    target = folder / "views.so"
    flags = ("-std=c++17", "-shared", "-fPIC", "-pthread", *MATH_FLAGS, *FLAGS)
    subprocess.run(["g++", *flags, str(SOURCE), "-o", str(target)], check=True)
    return target


def run(kernel: Path, *, seed: int, first: int, count: int, record: Record) -> None:
    """Run trials in processes with the sanitizers, a new one after each that is stopped."""
    environment = os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
        "PYTHONMALLOC": "malloc",
    }
    end = first + count
    while first < end:
        words = [f"--seed={seed}", f"--first={first}", f"--count={end - first}"]
        child = subprocess.Popen(
            [sys.executable, __file__, f"--kernel={kernel}", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, error = child.communicate()
        for line in out.splitlines():
            trial = json.loads(line)
            record.add(trial["case"], ok=trial["ok"], detail=trial["detail"])
            first += 1
        if child.returncode != 0:
            reports = [line for line in error.splitlines() if "error" in line.lower()]
            reason = reports[0] if reports else f"exit code {child.returncode}"
            record.add(case_of(first), ok=False, detail=f"{first}: {reason}")
            print(error[-3000:], file=sys.stderr)
            first += 1


# ------ trials, in a process with the sanitizers


def take_trials(path: Path, *, seed: int, first: int, count: int) -> None:
    """Run trials one after another, and print a line of JSON for each."""
    import numpy as np
    import torch

    from smi.views.compiled import Kernel

    kernel = Kernel(path)
    for trial in range(first, first + count):
        case = case_of(trial)
        images, parameters, options = CASES[case](np.random.default_rng([seed, trial]))
        mean = options.get("mean", (0.0, 0.0, 0.0))
        std = options.get("std", (1.0, 1.0, 1.0))
        answer = {"case": case, "ok": True, "detail": ""}
        try:
            out = kernel(images, parameters, mean, std, out=options.get("out"))
            if out.dtype == torch.float32 and not out.isfinite().all():
                answer |= {"ok": False, "detail": f"{trial}: a view is not finite"}
        except ValueError:
            pass
        except Exception as error:
            answer |= {"ok": False, "detail": f"{trial}: {type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def make(draw, *, n=None, pad=None):
    """Return images of different shapes and the parameters of a view of them."""
    import torch

    from smi.data.pictures import Pictures
    from smi.views.draws import Parameters

    n = int(draw.integers(0, 5)) if n is None else n
    shapes = [tuple(map(int, draw.choice(SIDES, 2))) for _ in range(n)]
    images = Pictures.join(
        [torch.from_numpy(draw.integers(0, 256, (3, *shape), dtype="uint8")) for shape in shapes]
    )
    size = int(draw.choice(SIZES))
    pad = int(draw.choice((0, 0, 4, 100))) if pad is None else pad
    boxes = torch.tensor([crop(draw, *shape, pad) for shape in shapes]).reshape(-1, 4)

    def flags(share):
        return torch.from_numpy(draw.random(n) < share)

    parameters = Parameters(
        size=size,
        pad=pad,
        blur_kernel=int(draw.choice([k for k in (1, 3, 5, 23, 63) if k // 2 < size])),
        box=boxes.float(),
        flip=flags(0.5),
        jitter=flags(0.8),
        order=torch.from_numpy(draw.permuted([[0, 1, 2, 3]] * max(n, 1), axis=1)[:n]).long(),
        factors=torch.from_numpy(draw.uniform(-0.5, 2.5, (n, 4))).float(),
        gray=flags(0.3),
        blur=flags(0.5),
        sigma=torch.from_numpy(draw.choice([1e-3, 0.1, 1.0, 2.0, 50.0], n)).float(),
        solarize=flags(0.3),
        bicubic=bool(draw.integers(2)),
    )
    return images, parameters


def crop(draw, height, width, pad):
    """Draw a crop within a padded image: whole, one pixel, a line, next to nothing, at an edge."""
    box = []
    for side in (height, width):
        room = side + 2 * pad
        lengths = (room, 1.0, 1e-6, 1e-30, 0.5 * room, draw.uniform(0, room) + 1e-3)
        length = min(float(draw.choice(lengths)), room)
        start = float(draw.choice((0.0, room - length, draw.uniform(0, room - length))))
        box.append((start - pad, length))
    (top, h), (left, w) = box
    return top, left, h, w


def drawn(draw):
    """Draw a view as training does."""
    import torch

    from smi.views.draws import draw as draw_views
    from smi.views.policies import policy

    images, _ = make(draw, n=3)
    name = str(draw.choice(("cifar10", "imagenette-multicrop", "pirl", "simclr")))
    view = replace(policy(name).views[-1], size=int(draw.choice((7, 16, 33))))
    generator = torch.Generator().manual_seed(int(draw.integers(2**31)))
    return images, draw_views(view, images.shape, generator)[0], {}


def shapes(draw):
    """Draw shapes, crops and sizes that are rare."""
    images, parameters = make(draw)
    return images, parameters, {}


def long_images(draw):
    """Draw an image of one line, and reduce it to a few pixels."""
    import torch

    from smi.data.pictures import Pictures

    _, parameters = make(draw, n=1, pad=0)
    height, width = (1, int(draw.integers(1, 40_000)))
    if draw.integers(2):
        height, width = width, height
    images = Pictures.join([torch.randint(0, 256, (3, height, width), dtype=torch.uint8)])
    box = torch.tensor([crop(draw, height, width, 0)]).float()
    return images, replace(parameters, box=box), {}


def whole_levels(draw):
    """Draw more images than threads, and ask for bytes."""
    import torch

    images, parameters = make(draw, n=int(draw.integers(0, 9)))
    size = parameters.size
    out = torch.empty(
        len(images), 3, size, size, dtype=torch.uint8, memory_format=torch.channels_last
    )
    return images, parameters, {"out": out}


def numbers(draw):
    """Replace one number by one that is NaN, infinite, negative or huge."""
    images, parameters = make(draw, n=2)
    name = str(draw.choice(("box", "factors", "sigma", "mean", "std")))
    value = float(draw.choice(NUMBERS))
    if name in ("mean", "std"):
        return images, parameters, {name: (value, 0.5, 0.5)}
    tensor = getattr(parameters, name).clone()
    tensor.view(-1)[int(draw.integers(tensor.numel()))] = value
    changes = {name: tensor}
    if name == "sigma":
        changes["blur"] = tensor == tensor.clone().fill_(value)
    return images, replace(parameters, **changes), {}


def settings(draw):
    """Replace one setting by one outside its range."""
    import torch

    images, parameters = make(draw, n=2)
    changes = (
        {"size": 0},
        {"blur_kernel": int(draw.choice((-3, -1, 0, 2, 10_001, 2**40)))},
        {"pad": int(draw.choice((-1, 2**31, 2**62)))},
        {"order": torch.full((2, 4), int(draw.choice((-1, 4, 2**40, -(2**63)))))},
        {"order": parameters.order.int()},
        {"box": parameters.box.double()},
        {"flip": parameters.flip[:1]},
        {"factors": parameters.factors.T.contiguous().T[:, :3]},
    )
    return images, replace(parameters, **changes[int(draw.integers(len(changes)))]), {}


def tensors(draw):
    """Replace one tensor by one that does not fit."""
    import torch

    images, parameters = make(draw, n=2, pad=0)
    far = int(draw.choice((1, 2**31, 2**62, 2**63 - 1, -1, -(2**63))))
    side = int(draw.choice((0, -1, 2**20, 2**31, 2**32, 2**33, 2**62, 2**63 - 1)))
    size = parameters.size
    options = (
        (replace(images, start=torch.full((2,), far)), {}),
        (replace(images, shape=torch.full((2, 2), side)), {}),
        (replace(images, start=images.start.int()), {}),
        (replace(images, shape=images.shape[:1]), {}),
        (replace(images, pixels=images.pixels[: int(draw.integers(3))]), {}),
        (replace(images, pixels=images.pixels.float()), {}),
        (replace(images, pixels=images.pixels.repeat_interleave(2)[::2]), {}),
        (torch.zeros(2, 1, 9, 9, dtype=torch.uint8), {}),
        (torch.zeros(1, 3, 9, 9, dtype=torch.uint8).expand(2, 3, 9, 9), {}),
        (images, {"out": torch.empty(2, 3, size, size)}),
        (images, {"out": torch.empty(1, 3, size, size, memory_format=torch.channels_last)}),
        (images, {"out": torch.empty(2, 3, size, size, dtype=torch.float64)}),
    )
    chosen, more = options[int(draw.integers(len(options)))]
    if isinstance(chosen, torch.Tensor):
        parameters = replace(parameters, box=torch.tensor([[0.0, 0.0, 9.0, 9.0]] * 2))
    return chosen, parameters, more


CASES = {
    "views as training draws them": drawn,
    "odd shapes, crops and sizes": shapes,
    "images of one line": long_images,
    "whole grey levels, by several threads": whole_levels,
    "NaN, infinite, negative and huge draws": numbers,
    "sizes, kernels, orders and paddings out of range": settings,
    "images outside their bytes, strides and types": tensors,
}


def case_of(trial: int) -> str:
    """Return the case of a trial: they take turns."""
    return list(CASES)[trial % len(CASES)]


def main() -> None:
    """Compile the kernel, run the trials and write results/campaign-sanitizers.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--count", type=int, help="number of trials")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kernel", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = arguments.count or (QUICK_TRIALS if arguments.quick else TRIALS)
    if arguments.kernel:
        take_trials(
            arguments.kernel, seed=arguments.seed, first=arguments.first, count=arguments.count
        )
        return
    if reason := why_not():
        sys.exit(reason)
    record = Record("sanitizers", seed=arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        kernel = build(Path(folder))
        run(kernel, seed=arguments.seed, first=arguments.first, count=count, record=record)
    print(record.write(arguments.out))
    sys.exit(record.lost > 0)


if __name__ == "__main__":
    main()
