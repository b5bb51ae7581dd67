"""Comparisons with made-up scores, which need no training."""

from collections.abc import Mapping, Sequence
from typing import Any

from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.evaluation.results import Result, Score


def make_result(value: float, *, k: int = 20, **protocol: Any) -> Result:
    """Return the result of a kNN evaluation."""
    return Result(
        {"name": "knn", "data": "digits", "k": k, **protocol},
        "encoder",
        {},
        (Score("kNN", value),),
        "nearest neighbours",
    )


def make_row(name: str, scores: Mapping[int, float], value: Any = None, **protocol: Any) -> Row:
    """Return a row with one run for each seed in `scores`."""
    runs = tuple(
        TrainedRun(seed, "", "", (make_result(score, **protocol),))
        for seed, score in scores.items()
    )
    return Row(name, value, name if value is None else f"{name} {value}", runs)


def make_sweep(values: Sequence[Any], methods: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return a comparison over three seeds: two values of a setting, and a method without it."""
    swept, other = methods

    def scores(first: float) -> dict[int, float]:
        return {seed: first + seed / 100 for seed in range(3)}

    rows = (
        make_row(swept, scores(0.9), values[1]),
        make_row(swept, scores(0.8), values[0]),
        make_row(other, scores(0.7)),
    )
    return Comparison(rows, (0, 1, 2), "key", {})
