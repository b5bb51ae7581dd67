"""Describe the measurements that the paper's claims are judged by, and the verdicts on them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from smi.comparison.comparison import Comparison

Verdict = Literal["holds", "does not hold", "not measurable at this scale"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not measurable at this scale"


@dataclass(frozen=True)
class DatasetComparisons:
    """Hold the comparisons made on one dataset; None if a comparison was not made.

    pair: SMI and Barlow Twins over seeds. sweep: SMI over λ. two_processes: SMI trained by two
    processes, over seeds.
    """

    data: str
    pair: Comparison | None = None
    sweep: Comparison | None = None
    two_processes: Comparison | None = None


@dataclass(frozen=True)
class LossTimes:
    """Hold milliseconds, forward and backward, of losses that took turns in one process.

    times: one number for each round of "SMI", "Barlow Twins, K × K" and "Barlow Twins, N × N".
    """

    batch: int
    dim: int
    machine: str
    times: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Finding:
    """Hold the verdict on a claim for one dataset, or for one kind of measurement.

    headers, rows: a table of the measured numbers. numbers: the values behind the verdict, for
    programs.
    """

    where: str
    verdict: Verdict
    sentence: str
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Hold a claim of the paper in our words, how we measure it, and the findings."""

    name: str
    title: str
    paper: str
    measure: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def not_measured(reason: str) -> tuple[Finding, ...]:
    """Return the finding of a claim without measurements."""
    return (Finding("", OPEN, f"{reason}, so this cannot be measured."),)
