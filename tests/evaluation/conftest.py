from collections.abc import Callable

import numpy as np
import pytest
import torch

from smi.data.sources import ArraySet
from smi.data.store import ArrayStore

Clusters = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def store() -> ArrayStore:
    """Eleven images of 8 x 8, no two alike."""
    images = np.random.default_rng(0).integers(0, 256, (11, 3, 8, 8), dtype=np.uint8)
    return ArrayStore(ArraySet("eleven", "train", (images,), np.arange(11) % 3, ("a", "b", "c")))


@pytest.fixture
def clusters() -> Clusters:
    """Features around one centre for each class, and their labels: `clusters(n, f, classes)`."""

    def make(
        n: int, f: int = 16, classes: int = 4, spread: float = 1.0, seed: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        centers = torch.randn(classes, f, generator=torch.Generator().manual_seed(99))
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(classes, (n,), generator=generator)
        labels[:classes] = torch.arange(classes)
        return centers[labels] + spread * torch.randn(n, f, generator=generator), labels

    return make
