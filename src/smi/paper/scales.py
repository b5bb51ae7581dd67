"""Define the scales of `smi reproduce`: datasets, recipes and comparisons that suit a machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smi.errors import UserError
from smi.terminal import suggest

SEEDS = "seeds"
SWEEP = "sweep"
METHODS = "methods"
TWO_PROCESSES = "two-processes"
KINDS = {  # of comparisons
    SEEDS: "SMI and Barlow Twins, over seeds",
    SWEEP: "SMI at several λ, beside Barlow Twins, over seeds",
    METHODS: "every method, one seed",
    TWO_PROCESSES: "SMI trained by two processes, over seeds",
}


@dataclass(frozen=True)
class DatasetSetup:
    """Describe how to train on a dataset, and which kinds of comparisons to make there.

    source: a dataset's name or a folder. recipe: None chooses one for the images and the machine.
    all_gpus: train with one process per GPU. settings: on top of the recipe.
    """

    source: str
    recipe: str | None
    kinds: tuple[str, ...] = tuple(KINDS)
    all_gpus: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the dataset's name, or that of the folder."""
        from smi.data.sources import dataset_label  # imports numpy, which a listing does not need

        return dataset_label(self.source).removesuffix("/")

    @property
    def folder(self) -> str:
        """Return the name of the folder that holds its runs."""
        return re.sub(r"[^\w.+-]+", "_", self.name) or "data"

    @property
    def sentence(self) -> str:
        """Return the dataset with its recipe and settings."""
        kind = "methods as published" if self.published else "identical settings"
        settings = [
            f"{key} {value}"
            for key, value in self.settings.items()
            if key not in ("data", "published")
        ]
        return f"{self.name} ({', '.join([f'recipe {self.recipe}', *settings, kind])})"

    @property
    def published(self) -> bool:
        """Return whether each method is trained as its authors do, not all of them alike."""
        return bool(self.settings.get("published", False))


@dataclass(frozen=True)
class Scale:
    """Describe one scale.

    weights: the λ of the sweep. linear_epochs: epochs of the curves of linear evaluation; None
    is 100, as in the paper. settings: on top of the recipes.
    one_full_dataset: make all comparisons on the first dataset that exists, and only SMI against
    Barlow Twins on the others. seconds_per_run: on two cores, None if not known.
    """

    name: str
    sentence: str
    datasets: tuple[DatasetSetup, ...]
    weights: tuple[float, ...]
    protocols: tuple[str, ...]
    linear_epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    one_full_dataset: bool = False
    seconds_per_run: float | None = None


SCALES = {
    "minutes": Scale(
        "minutes",
        "the digits dataset of scikit-learn, within 15 minutes on two cores",
        (DatasetSetup("digits", "digits"),),
        (0.001, 0.01, 0.1, 1.0),
        ("knn", "linear-cached"),
        linear_epochs=10,
        settings={"epochs": 4, "log.every": 5, "log.probe_every": 0},
        seconds_per_run=20,
    ),
    "hours": Scale(
        "hours",
        "small encoders on the datasets that were downloaded, some hours on a CPU, less on a GPU",
        (
            # The recipe's λ is for another shift.
            DatasetSetup(
                "cifar10", "cifar10-small", settings={"methods.SMI.redundancy_weight": "auto"}
            ),
            DatasetSetup("imagenette", "imagenette-small"),
        ),
        (0.001, 0.01, 0.1, 1.0),
        ("knn", "linear-cached", "fewshot"),
        linear_epochs=20,
        settings={"methods.SMI.target": 1.0, "methods.SMI.shift": 0.06},  # the paper's loss
        one_full_dataset=True,
    ),
    "paper": Scale(
        "paper",
        "the paper's own recipes, which need its hardware; ImageNet with each method as its "
        "authors publish it, the other datasets with identical settings",
        (
            DatasetSetup("cifar10", "cifar10", (SEEDS, SWEEP, TWO_PROCESSES)),
            DatasetSetup("cifar100", "cifar100", (SEEDS,)),
            DatasetSetup("imagenette", "imagenette", (SEEDS,)),
            DatasetSetup("imagewoof", "imagewoof", (SEEDS,)),
            DatasetSetup(
                "imagenet", "imagenet", (METHODS,), all_gpus=True, settings={"published": True}
            ),
        ),
        (0.0001, 0.001, 0.01, 0.1, 1.0),
        ("knn", "linear"),
    ),
}


def find_scale(name: str) -> Scale:
    """Return the scale of this name."""
    if name not in SCALES:
        raise UserError(f"there is no scale {name!r}: {suggest(name, SCALES)}")
    return SCALES[name]
