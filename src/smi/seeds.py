"""Derive seeds and permutations, as pure functions of a run's seed and a purpose."""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed for one purpose and its numbers, unrelated to the seeds of all others."""
    text = "/".join(map(str, (seed, purpose, *numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def permutation(n: int, seed: int, epoch: int) -> "Tensor":
    """Return the order of n images in an epoch: int64 [n]."""
    import torch

    return torch.randperm(n, generator=torch.Generator().manual_seed(derive(seed, "epoch", epoch)))
