"""What a loss should be: the least it can be, and its value where embeddings are random.

N samples on each of W devices, K embedding coordinates, V views. The derivations are tested against the losses themselves.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Context:
    """What a run's numbers depend on. Without `epochs` how far a run has come is told by its number of lines."""

    method: str
    batch_size: int  # N, on each device
    embedding_dim: int | None  # K
    feature_dim: int  # F
    num_views: int = 2
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the method; what is missing has the published value
    world_size: int = 1
    epochs: float | None = None


# What a setting is where a run does not say.
PUBLISHED: dict[str, dict[str, float]] = {
    "smi": {"redundancy_weight": 0.01, "target": 1.0, "shift": 0.06, "eps": 1e-6},
    "barlowtwins": {"redundancy_weight": 5.1e-3},
    "vicreg": {"invariance_weight": 25.0, "variance_weight": 25.0, "covariance_weight": 1.0},
    "simclr": {"temperature": 0.5},
    "moco": {"temperature": 0.07},
    "mocov2": {"temperature": 0.2},
    "swav": {"temperature": 0.1},
    "pirl": {"temperature": 0.07},
}


def expected_range(context: Context) -> tuple[float, float] | None:
    """The least the loss can be, and its value where embeddings are random: a run that learns goes from about the second towards the first.

    None where the method is not one of ours, or its settings do not say enough.
    """
    find = _RANGES.get(context.method.lower())
    try:
        found = find(context) if find and context.batch_size >= 1 else None
    except (ArithmeticError, ValueError):  # settings that no loss accepts
        return None
    return found if found and all(map(math.isfinite, found)) and found[0] < found[1] else None


def _smi(c: Context) -> tuple[float, float] | None:
    n, k, v = c.batch_size, c.embedding_dim, c.num_views
    weight, target, shift, eps = _settings(c)
    if k is None or k < 3 or v < 2 or weight < 0:
        return None

    def dependency(rho_squared: float) -> float:
        return -0.5 * math.log(1 - rho_squared + eps)

    def aligned(rho_squared: float) -> float:
        return _logcosh(dependency(rho_squared) - target)

    def redundant(rho_squared: float) -> float:
        return _logcosh(dependency(rho_squared) + shift)

    def least(zero: float) -> float:
        return _logcosh(max(dependency(0), min(zero, dependency(1))) - zero)

    # More samples than directions cannot all be uncorrelated: N unit vectors in K - 1 dimensions have a mean square correlation of at least
    # (N - d) / (d (N - 1)). The redundancy is convex in the square, so it is least where all are the same. Only same-view pairs are bound.
    crowded = max(0.0, (n - (k - 1)) / ((k - 1) * (n - 1))) if n > 1 else 0.0
    same_view = redundant(crowded) if dependency(0) + shift >= 0 else least(-shift)
    pairs, others = v * (v - 1) / 2, n * (n - 1)
    lowest = pairs * n * least(target) + weight * others * (pairs * least(-shift) + v * same_view)
    # Pearson correlations over K coordinates are cosines in K - 1 dimensions.
    cosines = _random_cosines(k - 1)
    alignment = sum(w * aligned(rho * rho) for rho, w in cosines)
    redundancy = sum(w * redundant(rho * rho) for rho, w in cosines)
    random = pairs * n * alignment + weight * others * (pairs + v) * redundancy
    return (lowest / n, random / n) if c.settings.get("reduction") == "mean" else (lowest, random)


def _barlow_twins(c: Context) -> tuple[float, float] | None:
    n, k, (weight,) = c.batch_size * c.world_size, c.embedding_dim, _settings(c)
    if k is None or n < 2 or not 0 <= weight < 1:
        return None
    # The correlation matrix has rank r = N - 1 at most. With a mean d on its diagonal its squares sum to K^2 d^2 / r or more, so the loss
    # is at least K ((1 - d)^2 + b d^2) with b = weight * (K / r - 1), and that is least at d = 1 / (1 + b).
    b = weight * max(0.0, k / (n - 1) - 1)
    # Independent coordinates have correlations of mean 0 and variance 1 / (N - 1).
    return k * b / (1 + b), k * (1 + 1 / (n - 1)) + weight * k * (k - 1) / (n - 1)


def _vicreg(c: Context) -> tuple[float, float] | None:
    n, k, (invariance, variance, covariance) = (
        c.batch_size * c.world_size,
        c.embedding_dim,
        _settings(c),
    )
    if k is None or n < 2 or min(invariance, variance, covariance) < 0:
        return None
    # Independent coordinates of variance 1, at which the variance term is 0: the squared distance is 2, covariances vary by 1 / (N - 1).
    return 0.0, 2 * invariance + 2 * covariance * (k - 1) / (n - 1)


def _nt_xent(c: Context) -> tuple[float, float] | None:
    n, (temperature,) = c.batch_size * c.world_size, _settings(c)
    if n < 2:
        return None
    # log(1 + sum exp((negative - positive) / t)) is convex, so least where all negatives are alike. All cosines of 2N unit vectors sum to 0
    # or more; with positives at 1 that leaves the 2N - 2 negatives of each at -1 / (N - 1) on average.
    lowest = math.log1p((2 * n - 2) * math.exp((-1 / (n - 1) - 1) / temperature))
    return lowest, math.log(2 * n - 1) + _log_mean_exp(temperature, c.embedding_dim)


def _info_nce(c: Context) -> tuple[float, float] | None:
    (temperature,), negatives = _settings(c), _count(c, "num_negatives", "queue_size")
    return _choice(negatives + 1, temperature, c.embedding_dim) if negatives else None


def _negative_cosine(c: Context) -> tuple[float, float] | None:
    return -1.0, 0.0


def _squared_distances(c: Context) -> tuple[float, float] | None:
    """BYOL's: of unit vectors, 2 - 2 cosine, in both directions."""
    return 0.0, 4.0


def _swav(c: Context) -> tuple[float, float] | None:
    (temperature,), prototypes = _settings(c), _count(c, "num_prototypes")
    # The code of one view says nothing about the scores of another that is random. Scores are cosines.
    return _choice(prototypes, temperature, c.embedding_dim) if prototypes else None


def _dino(c: Context) -> tuple[float, float] | None:
    outputs = _count(c, "num_outputs") or c.embedding_dim
    return (0.0, math.log(outputs)) if outputs else None  # outputs know no bounds


_RANGES: dict[str, Callable[[Context], tuple[float, float] | None]] = {
    "smi": _smi,
    "barlowtwins": _barlow_twins,
    "vicreg": _vicreg,
    "simclr": _nt_xent,
    "byol": _squared_distances,
    "moco": _info_nce,
    "mocov2": _info_nce,
    "simsiam": _negative_cosine,
    "swav": _swav,
    "dino": _dino,
    "pirl": _info_nce,
}


def _choice(candidates: float, temperature: float, dim: int | None) -> tuple[float, float]:
    """A cross-entropy over cosines: the best is one at 1 and the others at -1, random ones choose evenly."""
    lowest = math.log1p((candidates - 1) * math.exp(-2 / temperature))
    return lowest, math.log(candidates) + _log_mean_exp(temperature, dim)


def _log_mean_exp(temperature: float, dim: int | None) -> float:
    """log E exp(cosine / temperature) of random directions: what their scatter adds to an even choice."""
    if dim is None:
        return 0.0
    cosines = _random_cosines(dim)
    top = max(cosine for cosine, _ in cosines)
    return top / temperature + math.log(
        sum(w * math.exp((cosine - top) / temperature) for cosine, w in cosines)
    )


@cache
def _random_cosines(dim: int, num_points: int = 1001) -> tuple[tuple[float, float], ...]:
    """Cosines between random directions and their probabilities: the angle a from a right one has density cos(a)^(dim - 2)."""
    if dim < 2:
        return (-1.0, 0.5), (1.0, 0.5)
    reach = min(math.pi / 2, 12 / math.sqrt(dim))
    angles = [reach * (2 * i + 1 - num_points) / num_points for i in range(num_points)]
    density = [math.exp((dim - 2) * math.log(math.cos(angle))) for angle in angles]
    total = sum(density)
    return tuple((math.sin(angle), d / total) for angle, d in zip(angles, density, strict=True))


def _logcosh(x: float) -> float:
    return abs(x) + math.log1p(math.exp(-2 * abs(x))) - math.log(2)


def _settings(context: Context) -> list[float]:
    """What the method's range depends on, in the order of `PUBLISHED`."""
    published = PUBLISHED[context.method.lower()]
    return [
        value if (value := number(context.settings, name)) is not None else default
        for name, default in published.items()
    ]


def _count(context: Context, *names: str) -> int | None:
    """The first of these settings that there is; networks are made by them, so none can be taken for granted."""
    counts = [count for name in names if (count := number(context.settings, name)) is not None]
    return int(counts[0]) if counts and counts[0] >= 1 else None


def number(line: Mapping[str, Any], key: str) -> float | None:
    """The value if it is a number, NaN and infinity included."""
    value = line.get(key)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:  # a whole number beyond all floats
        return math.inf if value > 0 else -math.inf
