"""Compute the values a loss can take: helpers for the `loss_range` of each method.

A range holds the lowest possible loss and the loss of random embeddings. The loss of a run that
learns falls from about the second towards the first. This module does not need torch.
"""

import math
from functools import cache


def valid_range(limits: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the range if both limits are finite and in order, else None."""
    if limits is None or not all(map(math.isfinite, limits)) or limits[0] >= limits[1]:
        return None
    return limits


def cross_entropy_range(
    num_candidates: float, temperature: float, dim: int | None
) -> tuple[float, float]:
    """Return the range of a cross-entropy over cosines / temperature.

    The minimum has one cosine at 1 and the others at -1. Random embeddings choose evenly.
    """
    lowest = math.log1p((num_candidates - 1) * math.exp(-2 / temperature))
    return lowest, math.log(num_candidates) + log_mean_exp_of_cosine(temperature, dim)


def log_mean_exp_of_cosine(temperature: float, dim: int | None) -> float:
    """Return log E exp(cosine / temperature) for random directions in `dim` dimensions.

    Their scatter adds this to the cross-entropy of an even choice. It is ignored if `dim` is None.
    """
    if dim is None:
        return 0.0
    cosines = random_cosines(dim)
    top = max(cosine for cosine, _ in cosines)
    return top / temperature + math.log(
        sum(weight * math.exp((cosine - top) / temperature) for cosine, weight in cosines)
    )


@cache
def random_cosines(dim: int, num_points: int = 1001) -> tuple[tuple[float, float], ...]:
    """Return cosines between random directions in `dim` dimensions, with their probabilities.

    The angle from a right angle has density cos(angle)^(dim - 2).
    """
    if dim < 2:
        return (-1.0, 0.5), (1.0, 0.5)
    reach = min(math.pi / 2, 12 / math.sqrt(dim))
    angles = [reach * (2 * i + 1 - num_points) / num_points for i in range(num_points)]
    density = [math.exp((dim - 2) * math.log(math.cos(angle))) for angle in angles]
    total = sum(density)
    return tuple((math.sin(angle), d / total) for angle, d in zip(angles, density, strict=True))


def scalar_logcosh(x: float) -> float:
    """Return log(cosh(x)) without overflow."""
    return abs(x) + math.log1p(math.exp(-2 * abs(x))) - math.log(2)
