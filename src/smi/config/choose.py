"""Choose a recipe for a dataset and a device when the user does not name one."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from smi.config.resolve import read_recipe
from smi.data.decoder import source_of
from smi.data.folders import FileSet
from smi.data.remote import LostError
from smi.data.shards import ShardSet
from smi.data.sources import ArraySet, resolve_source
from smi.errors import UserError
from smi.nn.weights import is_cached

NUM_SAMPLED_FILES = 64  # to estimate the size of the images
CPU_IMAGES = 200_000  # in all epochs together: three to six minutes on two cores
MIN_CPU_EPOCHS, MAX_CPU_EPOCHS = 10, 300
MIN_IMAGES = 16
MAX_TINY_SIDE = 16  # pixels
MIN_STEPS_PER_EPOCH = 8  # with fewer, batch statistics repeat themselves

LARGE_RECIPES = ("cifar10", "imagenette", "imagenet")  # for a GPU
SMALL_RECIPES = ("cifar10-small", "imagenette-small")
# Small strong networks, whose weights are used if they are in the cache of timm's hub.
CPU_NETWORK = "tf_efficientnet_lite0.in1k"
GPU_NETWORK = "resnet50.a1_in1k"
CPU_ADAPTED_IMAGES = 18_000  # in all epochs together: about five minutes on two cores


@dataclass(frozen=True)
class Choice:
    """Name a recipe, the settings to change in it, and the reason in one sentence."""

    recipe: str
    settings: dict[str, Any]
    sentence: str


def choose_recipe(
    source: str,
    root: str | Path | None,
    device: torch.device,
    *,
    adapt: bool | None = None,
    timed: bool = False,
    large: bool | None = None,
    min_images: int = MIN_IMAGES,
) -> Choice:
    """Choose a recipe by image size and device; batch size and epochs follow the image count.

    adapt: start from weights that exist; None does so if they are in the cache of timm's hub, and
    images are not tiny. timed: a time decides the epochs. large: take a recipe with a large
    encoder; None does so on a GPU. min_images: fewer are refused.
    """
    images = resolve_source(source, "pretrain", Path(root) if root is not None else None)
    is_folder = not isinstance(images, ArraySet)
    side = images.parts[0].shape[-1] if isinstance(images, ArraySet) else _median_side(images)
    count = len(images)
    settings: dict[str, Any]
    if count < min_images:
        raise UserError(
            f"{source} has {count} images; "
            f"pretraining compares images with each other and needs {min_images} or more"
        )
    on_cpu = device.type == "cpu"
    large = not on_cpu if large is None else large
    network = CPU_NETWORK if on_cpu else GPU_NETWORK
    hint = ""
    if adapt is None and side > MAX_TINY_SIDE:
        adapt = is_cached(network)
        hint = f"; `smi pretrain adapt` would start from the weights of {network}, a download"
    if adapt:
        settings = {"encoder": network, "batch_size": _batch_size("adapt", count)}
        if on_cpu and not timed:
            settings["epochs"] = max(1, min(100, round(CPU_ADAPTED_IMAGES / count)))
        scratch = f"`smi pretrain {_recipe_for(side, large)}` starts from scratch"
        sentence = _sentence("adapt", settings, count, side, device)
        return Choice("adapt", settings, f"{sentence}; {scratch}")
    if source == "imagenet" and large:
        recipe = "imagenet"
        settings = {}
    else:
        recipe = _recipe_for(side, large)
        settings = {"data.images": None}
        if is_folder and side <= 64:  # a larger cache would not hold more detail
            settings["data.resolution"] = int(side)
        if source == "cifar100":
            settings["views.policy"] = "cifar100"
        settings["batch_size"] = _batch_size(recipe, count)
        smaller_batch = settings["batch_size"] < read_recipe(recipe)["batch_size"]
        if recipe in SMALL_RECIPES and smaller_batch:
            settings["methods.SMI.redundancy_weight"] = "auto"  # a number is for one batch size
        if on_cpu and not timed:
            epochs = round(CPU_IMAGES / count)
            settings["epochs"] = max(MIN_CPU_EPOCHS, min(MAX_CPU_EPOCHS, epochs))
    return Choice(recipe, settings, _sentence(recipe, settings, count, side, device) + hint)


def _recipe_for(side: float, large: bool) -> str:
    if side <= MAX_TINY_SIDE:
        return "digits"
    if side <= 64:
        return "cifar10" if large else "cifar10-small"
    return "imagenette" if large else "imagenette-small"


def _batch_size(recipe: str, count: int) -> int:
    """Halve the recipe's batch size until an epoch has enough steps."""
    batch_size: int = read_recipe(recipe)["batch_size"]
    while batch_size > 16 and count < MIN_STEPS_PER_EPOCH * batch_size:
        batch_size //= 2
    return batch_size


def _sentence(
    recipe: str, settings: dict[str, Any], count: int, side: float, device: torch.device
) -> str:
    where = "a CPU" if device.type == "cpu" else device.type.upper()
    details = ", ".join(
        f"{name.removeprefix('data.')} {value}"
        for name, value in settings.items()
        if value is not None
    )
    changes = f", with {details}" if details else ""
    return f"recipe {recipe} for {count:,} images of {side:,.0f} px on {where}{changes}"


def _median_side(files: FileSet | ShardSet) -> float:
    """Return the median shorter side of a sample of files, spread over the folder."""
    sides = []
    for target in files.sample(NUM_SAMPLED_FILES):
        try:
            with Image.open(source_of(target)) as image:
                sides.append(min(image.size))
        except (OSError, LostError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue  # unreadable files are reported when they are decoded
    if not sides:
        raise UserError(
            f"none of the sampled files in {files.root} can be read as an image: "
            f"run `smi data {files.root}` for the reasons"
        )
    return statistics.median(sides)
