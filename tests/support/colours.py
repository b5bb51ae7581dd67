"""Images of which the brightest channel is the class, and views of them."""

import numpy as np

from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.evaluation import light
from smi.views import Policy

UNIT = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def policy(data: str = "digits", size: int = 8) -> Policy:
    """Return crops and flips of unnormalised images."""
    return light(data, size=size, **UNIT)


def colours(n: int = 120, classes: int = 3, side: int = 4) -> ArrayStore:
    """Make noisy images in which the brightest channel is the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    images = rng.integers(0, 60, (n, 3, side, side), dtype=np.uint8)
    images[np.arange(n), labels] += 150
    return ArrayStore(
        ArraySet("colours", "train", (images,), labels, ("red", "green", "blue")[:classes])
    )
