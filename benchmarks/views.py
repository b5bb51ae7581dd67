"""Measure views per second against torchvision, kornia and lightly, and compare the pixels.

    python benchmarks/views.py           about two minutes; writes results/benchmark-views.json
    python benchmarks/views.py --show    prints the table of the last run

All libraries use one thread, the same policy and the same images, which are already in memory in
the form that each library needs: PIL images, uint8 tensors or a batch. Each makes both normalised
float views of every image of a batch. The other libraries are used as their documentation does:
torchvision and lightly image by image, stacked; kornia as a sequence of modules on the batch. All
take turns in every round, after one round to warm up; a ratio is the median over rounds of the
ratio within a round.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from machine import command, footer, main, stamp

ROUNDS = 9
SETTINGS = {  # side of the images in pixels, number of images
    "cifar10": (32, 256),
    "imagenette": (160, 48),
    "imagenet": (256, 32),
}
OURS, PLAIN = "smi", "smi, PyTorch's operations"
PIL, TENSORS, KORNIA, LIGHTLY = (
    "torchvision on PIL",
    "torchvision v2 on tensors",
    "kornia",
    "lightly",
)


def run(_: object) -> dict:
    import kornia
    import lightly
    import torch
    import torchvision

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds, distances = {}, {}
    for name, (pixels, n) in SETTINGS.items():
        images = pictures(n, pixels)
        rounds[name] = turns(contestants(name, images), 2 * n)
        distances[name] = distance(name, images)
    versions = {
        module.__name__: module.__version__ for module in (torch, torchvision, kornia, lightly)
    }
    return stamp("1 thread", **versions) | {
        "compile_seconds": compile_seconds(),
        "views_per_second": rounds,
        "grey_levels": distances,
    }


def contestants(name: str, images) -> dict[str, Callable[[], object]]:
    import torch
    from torchvision.transforms.functional import to_pil_image

    from smi.views import Views, policy

    chosen = policy(name)
    generator = torch.Generator().manual_seed(0)
    ours, plain = Views(chosen, compiled=True), Views(chosen, compiled=False)
    pils = [to_pil_image(image) for image in images]
    pil_views = [torchvision_pil(view, chosen) for view in chosen.views]
    tensor_views = [torchvision_tensors(view, chosen) for view in chosen.views]
    kornia_views = [kornia_batch(view, chosen) for view in chosen.views]
    pair = lightly_pair(chosen)
    return {
        OURS: lambda: ours(images, generator),
        PLAIN: lambda: plain(images, generator),
        PIL: lambda: [torch.stack([view(image) for image in pils]) for view in pil_views],
        TENSORS: lambda: [torch.stack([view(image) for image in images]) for view in tensor_views],
        KORNIA: lambda: [view(images.float() / 255) for view in kornia_views],
        LIGHTLY: lambda: [
            torch.stack(view) for view in zip(*(pair(image) for image in pils), strict=True)
        ],
    }


def torchvision_pil(view, chosen):
    from torchvision import transforms as T

    return T.Compose(
        [
            T.RandomResizedCrop(view.size, view.scale),
            T.RandomHorizontalFlip(view.flip_p),
            T.RandomApply(
                [T.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)],
                view.jitter_p,
            ),
            T.RandomGrayscale(view.gray_p),
            T.RandomApply([T.GaussianBlur(view.blur_kernel, view.sigma)], view.blur_p),
            T.RandomSolarize(128, view.solarize_p),
            T.ToTensor(),
            T.Normalize(chosen.mean, chosen.std),
        ]
    )


def torchvision_tensors(view, chosen):
    import torch
    from torchvision.transforms import v2 as T

    return T.Compose(
        [
            T.RandomResizedCrop(view.size, view.scale, antialias=True),
            T.RandomHorizontalFlip(view.flip_p),
            T.RandomApply(
                [T.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)],
                view.jitter_p,
            ),
            T.RandomGrayscale(view.gray_p),
            T.RandomApply([T.GaussianBlur(view.blur_kernel, view.sigma)], view.blur_p),
            T.RandomSolarize(128, view.solarize_p),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(chosen.mean, chosen.std),
        ]
    )


def kornia_batch(view, chosen):
    import kornia.augmentation as K
    from torch import nn, tensor

    return nn.Sequential(
        K.RandomResizedCrop((view.size, view.size), view.scale),
        K.RandomHorizontalFlip(view.flip_p),
        K.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue, p=view.jitter_p),
        K.RandomGrayscale(p=view.gray_p),
        K.RandomGaussianBlur((view.blur_kernel, view.blur_kernel), view.sigma, p=view.blur_p),
        *([K.RandomSolarize(p=view.solarize_p)] if view.solarize_p else []),
        K.Normalize(tensor(chosen.mean), tensor(chosen.std)),
    )


def lightly_pair(chosen):
    from lightly.transforms.byol_transform import (
        BYOLTransform,
        BYOLView1Transform,
        BYOLView2Transform,
    )

    def numbers(view) -> dict:
        return {
            "input_size": view.size,
            "cj_prob": view.jitter_p,
            "cj_bright": view.brightness,
            "cj_contrast": view.contrast,
            "cj_sat": view.saturation,
            "cj_hue": view.hue,
            "min_scale": view.scale[0],
            "random_gray_scale": view.gray_p,
            "gaussian_blur": view.blur_p,
            "solarization_prob": view.solarize_p,
            "sigmas": view.sigma,
            "hf_prob": view.flip_p,
            "normalize": {"mean": chosen.mean, "std": chosen.std},
        }

    first, second = chosen.views
    return BYOLTransform(
        BYOLView1Transform(**numbers(first)), BYOLView2Transform(**numbers(second))
    )


def turns(contestants: dict[str, Callable[[], object]], num_views: int) -> dict[str, list[float]]:
    """Return the views per second of every round, by name."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for current in range(1 + ROUNDS):
        for name, step in contestants.items():
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
            if current > 0:
                rates[name].append(num_views / seconds)
    return rates


def distance(name: str, images) -> dict[str, dict[str, float]]:
    """Compare our views with torchvision's for the same images and parameters, in grey levels."""
    import torch
    from torchvision.transforms.functional import to_pil_image

    from smi.views import Policy, Views, policy

    views = Views(Policy("bare", policy(name).views, (0, 0, 0), (1, 1, 1)), compiled=True)
    images = images[:24]
    distances: dict[str, list[torch.Tensor]] = {
        "float tensors": [],
        "uint8 tensors": [],
        "PIL images": [],
    }
    for parameters in views.draw(images, torch.Generator().manual_seed(0)):
        ours = views.apply(images, parameters) * 255
        for i, image in enumerate(images):
            for kind, start, unit in (
                ("float tensors", image.float() / 255, 255),
                ("uint8 tensors", image, 1),
                ("PIL images", to_pil_image(image), 1),
            ):
                theirs = unit * follow(start, parameters, i)
                distances[kind].append((ours[i] - theirs).abs().flatten())
    joined = {kind: torch.cat(values) for kind, values in distances.items()}
    return {
        kind: {"mean": all_.mean().item(), "within_1": (all_ <= 1).float().mean().item()}
        for kind, all_ in joined.items()
    }


def follow(image, p, i: int):
    """Apply torchvision's functions with our parameters; return float or uint8 [3, S, S]."""
    import PIL.Image
    from torchvision.transforms.v2 import functional as F

    top, left, height, width = (int(side) for side in p.box[i])
    image = F.resized_crop(image, top, left, height, width, [p.size, p.size], antialias=True)
    if p.flip[i]:
        image = F.horizontal_flip(image)
    if p.jitter[i]:
        jitters = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        for kind in p.order[i].tolist():
            image = jitters[kind](image, p.factors[i, kind].item())
    if p.gray[i]:
        image = F.rgb_to_grayscale(image, 3)
    if p.blur[i]:
        image = F.gaussian_blur(image, [p.blur_kernel] * 2, [p.sigma[i].item()])
    is_float = not isinstance(image, PIL.Image.Image) and image.is_floating_point()
    if p.solarize[i]:
        image = F.solarize(image, 0.5 if is_float else 128)
    return F.pil_to_tensor(image) if isinstance(image, PIL.Image.Image) else image


def compile_seconds() -> list[float]:
    """Time compiling the kernel three times, each in a new process with an empty cache."""
    code = (
        "import time; from smi.views import compiled; t = time.perf_counter(); "
        "compiled.find_kernel(); print(time.perf_counter() - t)"
    )
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as scratch:
            ran = subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "SMI_CACHE": scratch},
                capture_output=True,
                text=True,
                check=True,
            )
        seconds.append(float(ran.stdout))
    return seconds


def pictures(n: int, pixels: int):
    """Draw smooth noise in all colours; the content of an image hardly changes the time."""
    import torch

    x = torch.nn.functional.interpolate(
        torch.rand(n, 3, 8, 8) * 1.4 - 0.2, (pixels, pixels), mode="bicubic"
    )
    return ((x + 0.03 * torch.randn(x.shape)).clamp(0, 1) * 255).byte()


def ratio(rates: dict[str, list[float]], opponent: str) -> float:
    return statistics.median(
        ours / theirs for ours, theirs in zip(rates[OURS], rates[opponent], strict=True)
    )


def table(results: dict) -> str:
    rates = results["views_per_second"]
    opponents = (PIL, TENSORS, KORNIA, LIGHTLY)
    rows = [("cifar10, 32 px", "cifar10", PIL, 8), ("cifar10, 32 px", "cifar10", KORNIA, 4)]
    for label, name, target in (
        ("imagenette, 160 px", "imagenette", 4),
        ("imagenet, 224 px of 256", "imagenet", 3),
    ):
        fastest = min(opponents, key=lambda opponent: ratio(rates[name], opponent))
        rows.append((label, name, fastest, target))
    lines = ["| views a second: ours ÷ theirs | measured | target |", "|---|---:|---:|"]
    for label, name, opponent, target in rows:
        fastest = " (the fastest opponent)" if target in (4, 3) and name != "cifar10" else ""
        lines.append(
            f"| {label} ÷ {opponent}{fastest} | {ratio(rates[name], opponent):.1f} | ≥ {target} |"
        )
    lines += ["", f"| views a second | {' | '.join(rates)} |", f"|---|{'---:|' * len(rates)}"]
    for contestant in rates["cifar10"]:
        cells = " | ".join(f"{statistics.median(rates[name][contestant]):,.0f}" for name in rates)
        lines.append(f"| {contestant} | {cells} |")
    lines += [
        "",
        f"| our pixels against torchvision's, same parameters | {' | '.join(rates)} |",
        f"|---|{'---:|' * len(rates)}",
    ]
    for kind in results["grey_levels"]["cifar10"]:
        levels = [results["grey_levels"][name][kind] for name in rates]
        cells = " | ".join(
            f"{level['mean']:.2g} ({100 * level['within_1']:.3g} %)" for level in levels
        )
        lines.append(f"| on {kind}: mean difference in grey levels (share within 1) | {cells} |")
    seconds = statistics.median(results["compile_seconds"])
    compiling = f"Compiling the kernel, once on a machine: {seconds:.1f} s."
    return "\n".join([*lines, "", compiling, "", footer(results)])


if __name__ == "__main__":
    main(command(__doc__), "views", run, table)
