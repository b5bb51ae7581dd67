"""Choose a recipe for the images, the device and the time of a run.

    recipe, settings = choose_recipe_for({"data": "~/photos"}, None, device)

The rules by which images and devices choose are those of `smi.config.choose`.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from smi.config.choose import LARGE_RECIPES, SMALL_RECIPES, choose_recipe
from smi.config.schema import SHORT
from smi.device import release_memory
from smi.errors import UserError
from smi.runs.run import Run, has_steps
from smi.terminal import say
from smi.training.budget import ENOUGH_STEPS, require_same_time, steps_within, time_text
from smi.training.configure import configure


def choose_for_run(
    requested: Mapping[str, Any],
    root: str | Path | None,
    device: torch.device,
    seconds: float | None,
    folder: Path,
    fresh: bool,
) -> tuple[str, dict[str, Any]]:
    """Choose a recipe for a new run; a run that is resumed keeps its own.

    seconds: the time of the run; None if none is given.
    """
    timed = seconds is not None
    if fresh or not has_steps(folder):
        return choose_recipe_for(requested, root, device, adapt=None, timed=timed, seconds=seconds)
    run = Run(folder)
    require_same_time(run, seconds)
    large = None  # earlier versions did not record the recipe
    if run.facts.recipe in LARGE_RECIPES + SMALL_RECIPES:
        large = run.facts.recipe in LARGE_RECIPES
    adapt = run.init_source is not None
    recipe, settings = choose_recipe_for(
        requested, root, device, adapt=adapt, timed=timed, large=large
    )
    # Another version or device may choose other epochs, and other weights to start from.
    if not timed:
        settings["epochs"] = run.config["epochs"]
    if "encoder" in settings:
        settings["encoder"] = run.config["encoder"]["name"]
    return recipe, settings


def choose_recipe_for(
    overrides: Mapping[str, Any],
    root: str | Path | None,
    device: torch.device,
    *,
    adapt: bool | None = False,
    timed: bool = False,
    large: bool | None = None,
    seconds: float | None = None,
) -> tuple[str, dict[str, Any]]:
    """Choose a recipe for the images, and settings to change in it, and print the choice.

    adapt, timed, large: as `choose_recipe` has them. Requested weights decide `adapt`.
    seconds: if too few steps of the large encoder fit into this time, a small recipe is chosen. A
    comparison does not give it: its methods and processes differ in speed.
    """
    source = overrides.get("data") or overrides.get("data.source")
    if source is None:
        raise UserError(
            "name a recipe (`smi pretrain cifar10-small`) or a folder of images (`--data DIR`)"
        )
    names = {SHORT.get(name, name) for name, value in overrides.items() if value is not None}
    if "init.source" in names:
        adapt = True
    elif "encoder.name" in names:  # nobody asked for weights of that network
        adapt = False
    choose = partial(choose_recipe, str(source), root, device, adapt=adapt, timed=timed)
    choice = choose(large=large)
    published = overrides.get("published")  # small recipes have no published settings
    if seconds is not None and choice.recipe in LARGE_RECIPES and not published:
        settings = {**choice.settings, **overrides}
        config = configure(choice.recipe, settings, folder=Path(os.devnull), device=device).config
        steps = int(steps_within(config, seconds, device))
        release_memory(device)
        fits = f"{time_text(seconds)}: about {steps:,} steps of recipe {choice.recipe} fit"
        if steps >= ENOUGH_STEPS:
            say(fits)
        else:
            say(f"{fits}, and it needs {ENOUGH_STEPS:,}: a smaller one is taken")
            choice = choose(large=False)
    say(f"chose {choice.sentence}")
    settings = dict(choice.settings)
    if "init.source" in names:
        settings.pop("encoder", None)  # the weights may name their network
    return choice.recipe, settings
