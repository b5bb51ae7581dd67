"""Which recipe suits some images and a machine, where none is named."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from smi.config.resolve import read_recipe
from smi.data.folders import FileSet
from smi.data.sources import resolve
from smi.errors import UserError

LOOKED_AT = 64  # files whose size is read
SEEN = (
    50_000  # images in all, on a CPU, each as often as that takes: some five minutes on two cores
)


@dataclass(frozen=True)
class Choice:
    recipe: str
    settings: dict[str, Any]
    sentence: str


def choose_recipe(source: str, root: str | Path | None, device: torch.device) -> Choice:
    """By the images' size and the device; batch and epochs follow from how many images there are."""
    images = resolve(source, "pretrain", Path(root) if root is not None else None)
    side = _median_side(images) if isinstance(images, FileSet) else images.parts[0].shape[-1]
    small = device.type == "cpu"
    if side <= 16:
        recipe = "digits"
    elif side <= 64:
        recipe = "cifar10-small" if small else "cifar10"
    else:
        recipe = "imagenette-small" if small else "imagenette"
    settings: dict[str, Any] = {"data.images": None}
    if isinstance(images, FileSet) and side <= 64:
        settings["data.resolution"] = int(
            side
        )  # as they are: larger would be a larger cache, and nothing more to see
    if source == "imagenet" and not small:
        recipe, settings = "imagenet", {}
    elif source == "cifar100":
        settings["views.policy"] = "cifar100"
    count = len(images)
    if count < 16:
        raise UserError(
            f"{source} has {count} images; pretraining compares images with each other and needs 16 or more"
        )
    if recipe != "imagenet":
        batch = read_recipe(recipe)["batch_size"]
        while (
            batch > 16 and count < 8 * batch
        ):  # eight steps an epoch at least, or statistics of the batch repeat themselves
            batch //= 2
        settings["batch_size"] = batch
        if small:
            settings["epochs"] = max(10, min(300, round(SEEN / count)))
    where = "a CPU" if small else device.type.upper()
    details = ", ".join(
        f"{name.removeprefix('data.')} {value}"
        for name, value in settings.items()
        if value is not None
    )
    sentence = f"recipe {recipe} for {count:,} images of {side:,.0f} px on {where}" + (
        f", with {details}" if details else ""
    )
    return Choice(recipe, settings, sentence)


def _median_side(files: FileSet) -> float:
    """Of the shorter sides of some files, spread over the folder."""
    sides = []
    for entry in files.entries[:: max(1, len(files) // LOOKED_AT)]:
        try:
            with Image.open(files.root / entry.path) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue  # what cannot be read is dealt with when it is decoded
    if not sides:
        raise UserError(
            f"none of the first files in {files.root} can be read as an image: run `smi data {files.root}` for the reasons"
        )
    return statistics.median(sides)
