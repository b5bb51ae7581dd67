"""Judge a claim by the interval of a difference or ratio, and write these numbers in sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from smi.comparison.comparison import Comparison, Estimate, Row
from smi.paper.numbers import BARLOW_TWINS, SMI
from smi.paper.verdicts import FAILS, HOLDS, OPEN, Verdict
from smi.runs.names import display_name
from smi.terminal import counted

SMI_NAME = display_name(SMI)
BARLOW_TWINS_NAME = display_name(BARLOW_TWINS)


# ------------------------------------------------------------------------------------ verdicts


def judge(difference: Estimate | None, *, larger: bool, margin: float = 0.0) -> Verdict:
    """Return whether the 95 % interval of a difference lies on the side that a claim says.

    larger: whether the claim says that the difference is above zero, or else below. margin: how far
    the difference may lie on the other side of zero and still support the claim.
    """
    if difference is None or difference.low is None or difference.high is None:
        return OPEN
    low, high = difference.low, difference.high
    if not larger:
        low, high = -high, -low
    if low + margin > 0:
        return HOLDS
    return FAILS if high + margin < 0 else OPEN


def why_open(difference: Estimate | None, threshold: str = "zero") -> str:
    """Explain why a difference decides nothing."""
    if difference is None:
        return "there are no two runs of one seed to compare"
    if difference.low is None:
        return "one seed gives no interval"
    return f"the interval over {len(difference.seeds)} seeds lies on both sides of {threshold}"


def log_ratio(values: Mapping[int, float], others: Mapping[int, float]) -> Estimate | None:
    """Estimate the logarithm of a ratio, paired by seed, so that half and double weigh the same."""
    seeds = [seed for seed in values if values[seed] > 0 and others.get(seed, 0) > 0]
    return Estimate.of({seed: math.log(values[seed]) - math.log(others[seed]) for seed in seeds})


def row_of(comparison: Comparison, method: str) -> Row | None:
    """Return the first row of a method."""
    return next((row for row in comparison.rows if row.method == method), None)


# ------------------------------------------------------------------------------------ words


def format_number(value: float) -> str:
    """Format a number with three digits."""
    return f"{value:.3g}" if 1e-4 <= abs(value) < 1e4 else f"{value:.2e}"


def format_values(values: Mapping[int, float]) -> str:
    """Format the mean over seeds with half of its interval: 0.52 ± 0.04."""
    estimate = Estimate.of(values)
    if estimate is None:
        return "-"
    half = f" ± {format_number(estimate.half)}" if estimate.low is not None else ""
    return format_number(estimate.mean) + half


def format_interval(ratio: Estimate) -> str:
    """Format the interval of a ratio given by its logarithm, 0.48 to 0.57; empty if it has none."""
    if ratio.low is None or ratio.high is None:
        return ""
    return f"{format_number(math.exp(ratio.low))} to {format_number(math.exp(ratio.high))}"


def format_ratio(ratio: Estimate | None) -> str:
    """Format a ratio given by its logarithm: 0.52 (0.48 to 0.57)."""
    if ratio is None:
        return "-"
    interval = format_interval(ratio)
    return format_number(math.exp(ratio.mean)) + (f" ({interval})" if interval else "")


def format_points(difference: Estimate | None) -> str:
    """Format a difference of accuracies in percentage points, with its interval."""
    if difference is None:
        return "-"
    mean = f"{100 * difference.mean:+.1f} points"
    if difference.low is None or difference.high is None:
        return mean
    return f"{mean} (95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def format_score(values: Mapping[int, float]) -> str:
    """Format an accuracy as its mean over seeds, with its interval."""
    estimate = Estimate.of(values)
    return "-" if estimate is None else str(estimate)


def count_seeds(seeds: Sequence[int]) -> str:
    """Return "1 seed" or "3 seeds"."""
    return counted(len(seeds), "seed")


def plain_estimate(estimate: Estimate | None) -> dict[str, Any]:
    """Return an estimate for JSON; empty if there is none."""
    return {} if estimate is None else asdict(estimate)
