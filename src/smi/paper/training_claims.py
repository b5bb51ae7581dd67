"""Judge the claims about curves that were logged in training: gradient norm, feature std, ratio."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smi.comparison.comparison import Estimate, Row
from smi.errors import UserError
from smi.figures.gradient_norm import WINDOW, per_step, rolling_mean
from smi.figures.series import series
from smi.paper.estimates import (
    BARLOW_TWINS_NAME,
    SMI_NAME,
    count_seeds,
    format_interval,
    format_number,
    format_ratio,
    format_values,
    judge,
    log_ratio,
    plain_estimate,
    row_of,
    why_open,
)
from smi.paper.numbers import BARLOW_TWINS, SMI
from smi.paper.verdicts import OPEN, Claim, DatasetComparisons, Finding, not_measured
from smi.runs.names import redundancy_weight_of
from smi.runs.run import Run

# ------------------------------------------------------------------------------------ measures


def norm_level(run: Run) -> float:
    """Return the geometric mean of the gradient norm: the curve's mean height on a log axis."""
    return float(np.exp(np.log(_positive(per_step(run)[1])).mean()))


def norm_jumps(run: Run) -> float:
    """Return the mean of |Δ log norm| from step to step."""
    return float(np.abs(np.diff(np.log(_positive(per_step(run)[1])))).mean())


def norm_spread(run: Run) -> float:
    """Return the std of the norm ÷ its rolling mean."""
    norms = _positive(per_step(run)[1])
    return float((norms / rolling_mean(norms, WINDOW)).std())


def std_level(run: Run) -> float:
    """Return the mean of the logged feature std."""
    return float(_positive(series(run, "feature_std")[1]).mean())


def std_variation(run: Run) -> float:
    """Return the variation of the feature std over training."""
    return _variation(series(run, "feature_std")[1])


def ratio_level(run: Run) -> float:
    """Return the geometric mean of redundancy ÷ alignment."""
    return float(np.exp(np.log(_positive(series(run, "ratio")[1])).mean()))


def ratio_variation(run: Run) -> float:
    """Return the variation of redundancy ÷ alignment over training."""
    return _variation(series(run, "ratio")[1])


def _variation(values: Sequence[float]) -> float:
    """Return std ÷ mean over the logged lines: drift counts as well as jitter."""
    positive = _positive(values)
    return float(positive.std() / positive.mean())


def _positive(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    array = array[np.isfinite(array) & (array > 0)]
    if len(array) < 2:
        raise UserError("too little was logged")
    return array


# ------------------------------------------------------------------------------------ the claims


@dataclass(frozen=True)
class CurveClaim:
    """Describe a claim that a measure is lower for SMI than for Barlow Twins.

    columns: names and measures; the first decides, the others are shown beside it.
    """

    name: str
    title: str
    paper: str
    measure: str
    columns: tuple[tuple[str, Callable[[Run], float]], ...]
    notes: tuple[str, ...] = ()


SCALE_NOTE = (
    "A gradient's norm grows with any factor that multiplies its loss: SMI sums over samples, "
    "Barlow Twins over coordinates. AdamW and LARS divide such a factor out again, so a lower norm "
    "alone says little about the size of a step."
)
WEIGHTS_NOTE = (
    "The ratio depends on the redundancy weight of each method and on the length of training. "
    "The table shows the other λ."
)
FIRST_COLUMN_NOTE = "The first column decides."
CURVE_CLAIMS = (
    CurveClaim(
        "gradient-norm-lower",
        "The gradient's norm is lower than Barlow Twins'",
        "During pretraining, SMI's gradients stay smaller than those of Barlow Twins throughout "
        "(figure of gradient norms, CIFAR-10).",
        "The geometric mean of the norm over all steps, SMI ÷ Barlow Twins, paired by seed.",
        (("norm, geometric mean", norm_level),),
        (SCALE_NOTE,),
    ),
    CurveClaim(
        "gradient-norm-smoother",
        "The gradient's norm changes more smoothly than Barlow Twins'",
        "The curve of SMI's gradient norm is smoother (same figure, and those of the appendix).",
        "The mean of |Δ log norm| from step to step, SMI ÷ Barlow Twins, paired by seed. "
        "The scale of a loss does not change it.",
        (
            ("mean |Δ log norm|", norm_jumps),
            (f"std of norm ÷ rolling mean of {WINDOW}", norm_spread),
        ),
        (FIRST_COLUMN_NOTE,),
    ),
    CurveClaim(
        "feature-std-steadier",
        "The features' std is steadier than Barlow Twins'",
        "SMI's feature std keeps its level while that of Barlow Twins falls during training "
        "(summary of feature std, four datasets).",
        "The std of the logged feature std over training ÷ its mean, SMI ÷ Barlow Twins, "
        "paired by seed.",
        (("std ÷ mean over training", std_variation), ("feature std, mean", std_level)),
        (FIRST_COLUMN_NOTE,),
    ),
    CurveClaim(
        "ratio-lower",
        "Redundancy ÷ alignment is lower than Barlow Twins'",
        "The loss's redundancy term divided by its alignment term is substantially lower for SMI "
        "(CIFAR-10, λ = 0.01).",
        "The geometric mean of the logged ratio over training, SMI ÷ Barlow Twins, paired by seed.",
        (("ratio, geometric mean", ratio_level),),
        (WEIGHTS_NOTE,),
    ),
    CurveClaim(
        "ratio-steadier",
        "Redundancy ÷ alignment is steadier than Barlow Twins'",
        "The ratio of Barlow Twins rises during training; that of SMI keeps its level "
        "(same figure).",
        "The std of the logged ratio over training ÷ its mean, SMI ÷ Barlow Twins, paired by seed.",
        (("std ÷ mean over training", ratio_variation),),
    ),
)


def training_claims(datasets: Sequence[DatasetComparisons]) -> list[Claim]:
    """Judge each claim about logged curves on each dataset."""
    return [_judge(claim, datasets) for claim in CURVE_CLAIMS]


def _judge(claim: CurveClaim, datasets: Sequence[DatasetComparisons]) -> Claim:
    findings = tuple(finding for dataset in datasets if (finding := _finding(claim, dataset)))
    return Claim(
        claim.name,
        claim.title,
        claim.paper,
        claim.measure,
        findings or not_measured("SMI and Barlow Twins were not run"),
        claim.notes,
    )


def _finding(claim: CurveClaim, dataset: DatasetComparisons) -> Finding | None:
    if dataset.pair is None:
        return None
    smi = row_of(dataset.pair, SMI)
    barlow_twins = row_of(dataset.pair, BARLOW_TWINS)
    if smi is None or barlow_twins is None:
        return None
    _, measure = claim.columns[0]
    smi_values = _by_seed(smi, measure)
    barlow_twins_values = _by_seed(barlow_twins, measure)
    ratio = log_ratio(smi_values, barlow_twins_values)
    verdict = judge(ratio, larger=False)
    if ratio is None:
        sentence = f"No verdict: {why_open(ratio)}."
    else:
        sentence = (
            f"{SMI_NAME} ({_weight(smi)}) {format_values(smi_values)}, "
            f"{BARLOW_TWINS_NAME} ({_weight(barlow_twins)}) {format_values(barlow_twins_values)}: "
            + _ratio_sentence(ratio, undecided=verdict == OPEN)
        )
    headers = ["", *(head for name, _ in claim.columns for head in (name, "÷ Barlow Twins"))]
    rows = [
        (name, *_cells(row, barlow_twins, claim))
        for name, row in _named_rows(dataset, smi, barlow_twins)
    ]
    numbers = {
        "log ratio": plain_estimate(ratio),
        "seeds": {SMI: smi_values, BARLOW_TWINS: barlow_twins_values},
    }
    return Finding(dataset.data, verdict, sentence, tuple(headers), tuple(rows), numbers)


def _ratio_sentence(ratio: Estimate, *, undecided: bool) -> str:
    interval = format_interval(ratio)
    return (
        f"ratio {format_number(math.exp(ratio.mean))}"
        + (f", 95 % interval {interval}" if interval else "")
        + f", {count_seeds(ratio.seeds)}"
        + (f"; {why_open(ratio, '1')}." if undecided else ".")
    )


def _named_rows(
    dataset: DatasetComparisons, smi: Row, barlow_twins: Row
) -> Iterator[tuple[str, Row]]:
    """Yield Barlow Twins, SMI as in the recipe, and SMI at the other λ of the sweep."""
    yield f"{BARLOW_TWINS_NAME}, {_weight(barlow_twins)}", barlow_twins
    yield f"{SMI_NAME}, {_weight(smi)}", smi
    for row in dataset.sweep.rows if dataset.sweep else ():
        is_number = row.method == SMI and isinstance(row.value, float)
        if is_number and f"λ = {row.value:g}" != _weight(smi):
            yield f"{SMI_NAME}, λ = {row.value:g}", row


def _cells(row: Row, barlow_twins: Row, claim: CurveClaim) -> list[str]:
    cells = []
    for _, measure in claim.columns:
        values = _by_seed(row, measure)
        ratio = format_ratio(log_ratio(values, _by_seed(barlow_twins, measure)))
        cells += [format_values(values), "" if row is barlow_twins else ratio]
    return cells


def _by_seed(row: Row, measure: Callable[[Run], float]) -> dict[int, float]:
    """Measure each run; runs that failed or logged too little are left out."""
    values = {}
    for trained in row.runs:
        if trained.failed:
            continue
        try:
            value = measure(Run(trained.folder))
        except UserError:
            continue
        if math.isfinite(value):
            values[trained.seed] = value
    return values


def _weight(row: Row) -> str:
    """Return the λ of a row's runs in words."""
    for trained in row.runs:
        try:
            weight = redundancy_weight_of(Run(trained.folder))
        except UserError:
            continue
        if weight is not None:
            return f"λ = {weight:g}"
    return "λ unknown"
