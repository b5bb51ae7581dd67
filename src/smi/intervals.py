"""Compute Student's 95 % confidence intervals of means and of paired differences."""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and both ends of its interval."""
    mean = statistics.fmean(values)
    half = half_interval(statistics.stdev(values) if len(values) > 1 else math.nan, len(values))
    return mean, mean - half, mean + half


def half_interval(std: float, count: int) -> float:
    """Return half the width of the interval of a mean of `count` values with this sample std."""
    from scipy.special import stdtrit  # slow to import

    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return quantile * std / math.sqrt(count)


def paired_interval(
    ours: Sequence[float], theirs: Sequence[float], step: float = 0.0
) -> tuple[float, float, float]:
    """Return the mean of the differences ours - theirs and both ends of its interval.

    step: the distance between two neighbouring values, where values are rounded; 0 if unknown.
    The interval is never narrower than rounding alone would make it.
    """
    mean, _, high = interval([a - b for a, b in zip(ours, theirs, strict=True)])
    # a rounded value has variance step² / 12, and a difference of two has twice that
    rounding = half_interval(step * (1 / 6) ** 0.5, len(ours))
    half = max(high - mean, rounding)
    return mean, mean - half, mean + half
