"""What the paper claims of SMI, beside what was measured here: runs and comparisons in, verdicts out.

for claim in claims([Evidence("cifar10", pair=comparison, sweep=swept)]):
    print(claim.title, [finding.verdict for finding in claim.findings])

Each measure follows from the paper's words and was settled before anything was measured (but for the least width of an interval of a
difference of accuracies, which was added after all seeds of a run on few test images had differed by one). A claim holds where the 95 %
interval of the difference, paired by seed, lies on its side; it does not hold where the interval lies on the other; else nothing can be
said.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.comparison.comparison import Column, Comparison, Estimate, Row, step_of
from smi.errors import UserError
from smi.figures.gradient_norm import WINDOW, per_step, rolling_mean
from smi.figures.scores import PROTOCOLS
from smi.figures.series import series
from smi.paper.cost import costs, giga
from smi.runs.names import SPELT, weight_of
from smi.runs.run import Run

HOLDS, FAILS, OPEN = "holds", "does not hold", "not measurable at this scale"
OURS, RIVAL = "SMI", "BarlowTwins"
COMPARABLE = 0.01  # the paper calls 71.41 % comparable to 72.5 %


@dataclass(frozen=True)
class Finding:
    """What was found on one set of images, or of one kind of measurement."""

    where: str
    verdict: str
    sentence: str
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numbers: dict[str, Any] = field(
        default_factory=dict
    )  # what the verdict follows from, for programs


@dataclass(frozen=True)
class Claim:
    name: str
    title: str
    paper: str  # what the paper says, in our words
    measure: str  # how it is measured here
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Evidence:
    """Of one set of images: SMI and Barlow Twins over seeds, SMI over λ, SMI trained by two processes. What was not made is None."""

    data: str
    pair: Comparison | None = None
    sweep: Comparison | None = None
    split: Comparison | None = None


@dataclass(frozen=True)
class Race:
    """Milliseconds, forward and backward, of losses that took turns in one process: a number for each round."""

    batch: int
    dim: int
    machine: str
    times: Mapping[str, tuple[float, ...]]  # "SMI", "Barlow Twins, K × K", "Barlow Twins, N × N"


def claims(evidence: Sequence[Evidence], race: Race | None = None) -> list[Claim]:
    return [
        *(_logged_claim(kind, evidence) for kind in LOGGED),
        _middle(evidence),
        _accuracy(evidence),
        _cost(evidence, race),
        _no_gather(evidence),
    ]


# --------------------------------------------------------------------------------------------------------------------- verdicts


def judge(difference: Estimate | None, *, side: int, margin: float = 0.0) -> str:
    """side: +1 where the claim is of a larger number, -1 of a smaller. margin: what may be lost to the other side."""
    if difference is None or difference.low is None or difference.high is None:
        return OPEN
    low, high = sorted((side * difference.low + margin, side * difference.high + margin))
    return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def why_open(difference: Estimate | None, of: str = "zero") -> str:
    """Behind numbers that decide nothing."""
    if difference is None:
        return "there are no two runs of one seed to compare"
    if difference.low is None:
        return "one seed gives no interval"
    return f"the interval over {len(difference.seeds)} seeds lies on both sides of {of}"


def _values(row: Row, measure: Callable[[Run], float]) -> dict[int, float]:
    """Seed by seed; runs that failed, or logged too little, are left out."""
    found = {}
    for trained in row.runs:
        if not trained.failed:
            try:
                value = measure(Run(trained.folder))
            except UserError:
                continue
            if math.isfinite(value):
                found[trained.seed] = value
    return found


def _ratio(ours: Mapping[int, float], rival: Mapping[int, float]) -> Estimate | None:
    """Of logarithms, so that half and double weigh the same."""
    both = [seed for seed in ours if ours[seed] > 0 and rival.get(seed, 0) > 0]
    return Estimate.of({seed: math.log(ours[seed]) - math.log(rival[seed]) for seed in both})


def _times(ratio: Estimate | None) -> str:
    """A ratio in words: 0.52 (0.48 to 0.57)."""
    if ratio is None:
        return "-"
    ends = (
        ""
        if ratio.low is None or ratio.high is None
        else f" ({_short(math.exp(ratio.low))} to {_short(math.exp(ratio.high))})"
    )
    return f"{_short(math.exp(ratio.mean))}{ends}"


def _points(difference: Estimate) -> str:
    if difference.low is None or difference.high is None:
        return f"{100 * difference.mean:+.1f} points"
    return f"{100 * difference.mean:+.1f} points (95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def _short(value: float) -> str:
    return f"{value:.3g}" if 1e-4 <= abs(value) < 1e4 else f"{value:.2e}"


def _mean(values: Mapping[int, float]) -> str:
    found = Estimate.of(values)
    return (
        "-"
        if found is None
        else _short(found.mean) + (f" ± {_short(found.half)}" if found.low is not None else "")
    )


def _first(comparison: Comparison, method: str) -> Row | None:
    return next((row for row in comparison.rows if row.method == method), None)


def _numbers(difference: Estimate | None) -> dict[str, Any]:
    return {} if difference is None else asdict(difference)


def _nothing(what: str) -> tuple[Finding, ...]:
    return (Finding("", OPEN, f"{what}: nothing to measure this by."),)


def _plural(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) != 1)}"


# ------------------------------------------------------------------------------------------------------ what was logged over training


def _positive(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found) & (found > 0)]
    if len(found) < 2:
        raise UserError("too little was logged")
    return found


def norm_level(run: Run) -> float:
    """The geometric mean over all steps: the mean height of the curve on a logarithmic axis."""
    return float(np.exp(np.log(_positive(per_step(run)[1])).mean()))


def norm_jumps(run: Run) -> float:
    """The mean of |Δ log norm| from step to step."""
    return float(np.abs(np.diff(np.log(_positive(per_step(run)[1])))).mean())


def norm_spread(run: Run) -> float:
    """The std of norm ÷ its rolling mean."""
    norms = _positive(per_step(run)[1])
    return float((norms / rolling_mean(norms, WINDOW)).std())


def std_level(run: Run) -> float:
    return float(_positive(series(run, "feature_std")[1]).mean())


def std_variation(run: Run) -> float:
    return _variation(series(run, "feature_std")[1])


def ratio_level(run: Run) -> float:
    return float(np.exp(np.log(_positive(series(run, "ratio")[1])).mean()))


def ratio_variation(run: Run) -> float:
    return _variation(series(run, "ratio")[1])


def _variation(values: Sequence[float]) -> float:
    """Std over the logged lines ÷ their mean: drift counts as well as jitter."""
    found = _positive(values)
    return float(found.std() / found.mean())


@dataclass(frozen=True)
class Logged:
    """A claim that SMI has less of something than Barlow Twins. The first measure decides; others stand beside it."""

    name: str
    title: str
    paper: str
    measure: str
    columns: tuple[tuple[str, Callable[[Run], float]], ...]
    notes: tuple[str, ...] = ()


SCALE = (
    "A gradient's norm grows with whatever number its loss is multiplied by: SMI sums over samples, Barlow Twins over coordinates. AdamW "
    "and LARS divide such a number out again, so a lower norm alone says little of how far a step goes."
)
WEIGHTS = "The ratio depends on the weight that each method gives its redundancy, and on how far it was trained; the table has the other λ."
LOGGED = (
    Logged(
        "gradient-norm-lower",
        "The gradient's norm is lower than Barlow Twins'",
        "While pretraining, SMI's gradients stay smaller than those of Barlow Twins throughout (figure of gradient norms, CIFAR-10).",
        "The geometric mean of the norm over all steps, SMI ÷ Barlow Twins, paired by seed.",
        (("norm, geometric mean", norm_level),),
        (SCALE,),
    ),
    Logged(
        "gradient-norm-smoother",
        "The gradient's norm changes more smoothly than Barlow Twins'",
        "The curve of SMI's gradient norm is smoother (same figure, and those of the appendix).",
        "The mean of |Δ log norm| from step to step, SMI ÷ Barlow Twins, paired by seed. The scale of a loss does not change it.",
        (
            ("mean |Δ log norm|", norm_jumps),
            (f"std of norm ÷ rolling mean of {WINDOW}", norm_spread),
        ),
        ("The first column decides.",),
    ),
    Logged(
        "feature-std-steadier",
        "The features' std is steadier than Barlow Twins'",
        "SMI's feature std stays where it is while that of Barlow Twins falls in training (summary of feature std, four data sets).",
        "The std of the logged feature std over training ÷ its mean, SMI ÷ Barlow Twins, paired by seed.",
        (("std ÷ mean over training", std_variation), ("feature std, mean", std_level)),
        ("The first column decides.",),
    ),
    Logged(
        "ratio-lower",
        "Redundancy ÷ alignment is lower than Barlow Twins'",
        "The share of the loss that pushes apart, over the share that aligns, is substantially lower for SMI (CIFAR-10, λ = 0.01).",
        "The geometric mean of the logged ratio over training, SMI ÷ Barlow Twins, paired by seed.",
        (("ratio, geometric mean", ratio_level),),
        (WEIGHTS,),
    ),
    Logged(
        "ratio-steadier",
        "Redundancy ÷ alignment is steadier than Barlow Twins'",
        "The ratio of Barlow Twins rises as training goes on, that of SMI keeps its level (same figure).",
        "The std of the logged ratio over training ÷ its mean, SMI ÷ Barlow Twins, paired by seed.",
        (("std ÷ mean over training", ratio_variation),),
    ),
)


def _logged_claim(kind: Logged, evidence: Sequence[Evidence]) -> Claim:
    found = tuple(finding for known in evidence if (finding := _logged(kind, known)))
    return Claim(
        kind.name,
        kind.title,
        kind.paper,
        kind.measure,
        found or _nothing("SMI and Barlow Twins were not run"),
        kind.notes,
    )


def _logged(kind: Logged, known: Evidence) -> Finding | None:
    if (
        known.pair is None
        or (ours := _first(known.pair, OURS)) is None
        or (rival := _first(known.pair, RIVAL)) is None
    ):
        return None
    _, measure = kind.columns[0]
    mine, theirs = _values(ours, measure), _values(rival, measure)
    ratio = _ratio(mine, theirs)
    verdict = judge(ratio, side=-1)
    if ratio is None:
        sentence = f"No verdict: {why_open(ratio)}."
    else:
        interval = (
            ""
            if ratio.low is None
            else f", 95 % interval {_times(ratio).split('(')[1].rstrip(')')}"
        )
        sentence = (
            f"SMI ({_lambda(ours)}) {_mean(mine)}, Barlow Twins ({_lambda(rival)}) {_mean(theirs)}: ratio "
            f"{_short(math.exp(ratio.mean))}{interval}, {_plural(ratio.seeds)}"
            + (f"; {why_open(ratio, '1')}." if verdict == OPEN else ".")
        )
    headers = ("", *(head for name, _ in kind.columns for head in (name, "÷ Barlow Twins")))
    rows = tuple(_line(name, row, rival, kind) for name, row in _systems(known, ours, rival))
    return Finding(
        known.data,
        verdict,
        sentence,
        headers,
        rows,
        {"log ratio": _numbers(ratio), "seeds": {OURS: mine, RIVAL: theirs}},
    )


def _systems(known: Evidence, ours: Row, rival: Row) -> Iterator[tuple[str, Row]]:
    """Barlow Twins, SMI as the recipe has it, and at the other λ."""
    yield f"Barlow Twins, {_lambda(rival)}", rival
    yield f"SMI, {_lambda(ours)}", ours
    for row in known.sweep.rows if known.sweep else ():
        if row.method == OURS and row.value is not None and f"λ = {row.value:g}" != _lambda(ours):
            yield f"SMI, λ = {row.value:g}", row


def _line(name: str, row: Row, rival: Row, kind: Logged) -> tuple[str, ...]:
    cells = [name]
    for _, measure in kind.columns:
        values = _values(row, measure)
        cells += [
            _mean(values),
            "" if row is rival else _times(_ratio(values, _values(rival, measure))),
        ]
    return tuple(cells)


def _lambda(row: Row) -> str:
    for trained in row.runs:
        try:
            weight = weight_of(Run(trained.folder))
        except UserError:
            continue
        if weight is not None:
            return f"λ = {weight:g}"
    return "λ unknown"


# --------------------------------------------------------------------------------------------------------------------- accuracies


def deciding(comparison: Comparison) -> Column | None:
    """The linear classifier's top-1: as the paper trains it, or else solved on cached features."""
    for protocol in PROTOCOLS:
        for stamp, name in comparison.columns:
            if name == protocol:
                return stamp, name
    return None


def _middle(evidence: Sequence[Evidence]) -> Claim:
    found = tuple(
        _best_weight(known.data, known.sweep) for known in evidence if known.sweep is not None
    )
    return Claim(
        "lambda-middle",
        "The best λ is in the middle of its range",
        "Accuracy rises with λ up to 0.01 and falls beyond it (feature std and accuracy over λ, CIFAR-10).",
        "Top-1 of a linear classifier. The best λ that is not at an end of the sweep, minus each end, paired by seed; both intervals must "
        "lie above zero. It does not hold where an end beats all others, with its interval to the next above zero.",
        found or _nothing("No sweep of λ was run"),
        (
            "The best inner λ is picked by the seeds it is then judged by, which flatters it a little.",
        )
        if found
        else (),
    )


def _best_weight(data: str, sweep: Comparison) -> Finding:
    column = deciding(sweep)
    rows = sorted(
        (row for row in sweep.rows if row.method == OURS and row.value is not None),
        key=lambda row: float(row.value),
    )
    scored = {float(row.value): sweep.values(row, column) for row in rows} if column else {}
    scored = {value: scores for value, scores in scored.items() if scores}
    shared = set.intersection(*(set(scores) for scores in scored.values())) if scored else set()
    if len(scored) >= 3 and not shared:
        return Finding(
            data, OPEN, "No seed was evaluated at every λ, so that they cannot be compared."
        )
    scored = {
        value: {seed: scores[seed] for seed in sorted(shared)} for value, scores in scored.items()
    }  # the same seeds of each
    if len(scored) < 3:
        return Finding(
            data, OPEN, f"{len(scored)} values of λ were evaluated: a middle takes three or more."
        )
    means = {value: statistics.fmean(scores.values()) for value, scores in scored.items()}
    low, *inner, high = scored
    best = max(inner, key=lambda value: means[value])
    step = step_of(sweep.protocols[column[0]]) if column else 0.0
    gaps = {end: Estimate.of_differences(scored[best], scored[end], step) for end in (low, high)}
    verdicts = [judge(gap, side=+1) for gap in gaps.values()]
    top = max(means, key=lambda value: means[value])
    if all(verdict == HOLDS for verdict in verdicts):
        verdict = HOLDS
    elif top in gaps and judge(gaps[top], side=-1) == HOLDS:
        verdict = FAILS
    else:
        verdict = OPEN
    said = ", ".join(
        f"{'' if gap is None else _points(gap)} over λ = {end:g}" for end, gap in gaps.items()
    )
    overall = f"the best of all is λ = {top:g} ({means[top]:.1%}); " if top != best else ""
    seeds = max(len(scores) for scores in scored.values())
    sentence = (
        f"Best inside the range: λ = {best:g} with {means[best]:.1%}, {said}; {overall}{seeds} seed{'s' * (seeds != 1)}"
        + (
            "; at least one interval lies on both sides."
            if verdict == OPEN and seeds > 1
            else "; one seed gives no interval."
            if seeds == 1
            else "."
        )
    )
    lines = tuple(
        (f"{value:g}", str(Estimate.of(scores)), _minus(scores, scored[best], step))
        for value, scores in scored.items()
    )
    numbers = {
        "best inside": best,
        "best": top,
        "minus ends": {f"{end:g}": _numbers(gap) for end, gap in gaps.items()},
    }
    return Finding(
        data, verdict, sentence, ("λ", "top-1, linear", f"points to λ = {best:g}"), lines, numbers
    )


def _minus(ours: Mapping[int, float], other: Mapping[int, float], step: float) -> str:
    gap = Estimate.of_differences(ours, other, step)
    return "-" if gap is None else "" if ours is other else gap.points


def _accuracy(evidence: Sequence[Evidence]) -> Claim:
    found = tuple(
        _against(known.data, known.pair)
        for known in evidence
        if known.pair is not None and _first(known.pair, RIVAL)
    )
    return Claim(
        "accuracy",
        "Accuracy is at least Barlow Twins'",
        "Under identical settings SMI is ahead on all of CIFAR-10 (+0.74 points), CIFAR-100 (+1.11), ImageNette (+2.78) and ImageWoof "
        "(+6.11), and equal on ImageNet (71.41 to 71.4).",
        "Top-1 of a linear classifier on the frozen encoder, SMI − Barlow Twins, paired by seed.",
        found or _nothing("SMI and Barlow Twins were not run"),
    )


def _against(data: str, pair: Comparison) -> Finding:
    ours, rival = _first(pair, OURS), _first(pair, RIVAL)
    if ours is None or rival is None:
        return Finding(data, OPEN, "SMI and Barlow Twins were not both run.")
    return _scored(data, (pair, ours, "SMI"), (pair, rival, "Barlow Twins"), margin=0.0)


def _scored(
    data: str,
    one: tuple[Comparison, Row, str],
    other: tuple[Comparison, Row, str],
    *,
    margin: float,
) -> Finding:
    """The first minus the second, by the deciding score; beneath it, by all they share."""
    (ours, mine, name), (theirs, its, rival) = one, other
    column = deciding(ours)
    if column is None:
        return Finding(data, OPEN, "No linear classifier was evaluated.")
    shared = [column, *(c for c in ours.columns if c != column and c in theirs.columns)]
    gap = Estimate.of_differences(
        ours.values(mine, column), theirs.values(its, column), step_of(ours.protocols[column[0]])
    )
    verdict = judge(gap, side=+1, margin=margin)
    both = [(c, theirs.values(its, c), ours.values(mine, c)) for c in shared]
    lines = tuple(
        (
            f"{c[1]}{' (decides)' * (c == column)}",
            _score(before),
            _score(after),
            _minus(after, before, step_of(ours.protocols[c[0]])),
        )
        for c, before, after in both
    )
    if gap is None:
        sentence = f"No verdict: {why_open(gap)}."
    else:
        scores = f"{name} {_score(ours.values(mine, column))}, {rival} {_score(theirs.values(its, column))}"
        undecided = why_open(gap, f"{-100 * margin:+.0f} point" if margin else "zero")
        sentence = f"{scores}: {_points(gap)}, {_plural(gap.seeds)}" + (
            f"; {undecided}." if verdict == OPEN else "."
        )
    test = ours.protocols[column[0]].protocol.get("test", {}).get("images")
    if test:
        sentence += f" One of {test:,} test images is {100 / test:.2g} points."
    return Finding(
        data,
        verdict,
        sentence,
        ("", rival, name, "points"),
        lines,
        {"difference": _numbers(gap), "score": column[1]},
    )


def _score(values: Mapping[int, float]) -> str:
    found = Estimate.of(values)
    return "-" if found is None else str(found)


def _no_gather(evidence: Sequence[Evidence]) -> Claim:
    found = []
    for known in evidence:
        if known.split is None or known.pair is None:
            continue
        one, two = _first(known.pair, OURS), _first(known.split, OURS)
        if one is not None and two is not None:
            found.append(
                _scored(
                    known.data,
                    (known.split, two, "two processes"),
                    (known.pair, one, "one process"),
                    margin=COMPARABLE,
                )
            )
    return Claim(
        "no-gather",
        "Neither gathering nor global batch norm is needed",
        "Trained with losses and batch norms that are local to each of eight devices, SMI reaches accuracies comparable to those of "
        "methods that gather embeddings and synchronise batch norms.",
        "SMI trained by two real processes, each with half of every batch, its own loss and its own batch norm, minus SMI trained by one "
        "process with whole batches, paired by seed: top-1 of a linear classifier. It holds where the interval lies above −1 point, which "
        "is what the paper calls comparable.",
        tuple(found) or _nothing("SMI was not trained by two processes"),
        (
            "Each of the two sees half as many other samples, so the same λ weighs redundancy about half as much.",
        )
        if found
        else (),
    )


# --------------------------------------------------------------------------------------------------------------------- the cost


def _cost(evidence: Sequence[Evidence], race: Race | None) -> Claim:
    by_name = {row.loss: row for row in costs()}
    smi, rival = by_name[OURS], by_name[SPELT[RIVAL]]
    share = smi.paper_macs / rival.paper_macs
    counted = Finding(
        "counted, at the paper's setting",
        HOLDS,
        f"{giga(smi.paper_macs)} against {giga(rival.paper_macs)} × 10⁹ multiply-accumulates: {share:.1%} (256 samples on each of 8 "
        "devices, 8192 coordinates). Exact, so without an interval.",
        ("loss", "GMACs, as the paper counts", "GMACs here, per device"),
        tuple((row.loss, giga(row.paper_macs), giga(row.device_macs)) for row in costs()),
        {"share": share},
    )
    measured = _measured(race) if race else _nothing("The losses were not timed")
    return Claim(
        "cost",
        "The loss costs a fraction of Barlow Twins'",
        "12.88 against 137.43 × 10⁹ operations of the forward pass (Table 2).",
        "Counted by formula; and timed, forward and backward, in one process where the losses take turns: the ratio of each round's times. "
        "Barlow Twins is published with a matrix of K × K coordinates; this package finds the same number by two of N × N samples.",
        (counted, *measured),
        tuple(note for known in evidence if (note := _share_of_step(known))),
    )


def _measured(race: Race) -> tuple[Finding, ...]:
    """Against Barlow Twins as its authors write it, and as this package computes the same number."""
    ours = dict(enumerate(race.times[OURS]))
    found = []
    for name, times in race.times.items():
        if name == OURS:
            continue
        ratio = _ratio(ours, dict(enumerate(times)))
        verdict = judge(ratio, side=-1)
        said = f"SMI {_ms(statistics.median(race.times[OURS]))} ms, {name} {_ms(statistics.median(times))} ms: {_times(ratio)} of the time"
        sentence = (
            f"{said}, {race.batch} × {race.dim} embeddings, {len(times)} rounds, {race.machine}."
        )
        found.append(
            Finding(
                f"timed, against {name}",
                verdict,
                sentence,
                (),
                (),
                {"log ratio": _numbers(ratio), "ms": dict(race.times)},
            )
        )
    headers = ("loss", "ms, median", "ms, all rounds")
    rows = tuple(
        (name, _ms(statistics.median(times)), ", ".join(map(_ms, times)))
        for name, times in race.times.items()
    )
    return (*found[:-1], replace(found[-1], headers=headers, rows=rows)) if found else ()


def _ms(time: float) -> str:
    return f"{time:.3g}" if time < 1000 else f"{time:,.0f}"


def _share_of_step(known: Evidence) -> str:
    rows = [
        row
        for method in (OURS, RIVAL)
        if known.pair and (row := _first(known.pair, method)) and row.loss_share is not None
    ]
    said = [
        f"{row.loss_share:.1%} of a step of {SPELT.get(row.method, row.method)} ({row.loss_ms:.2g} ms)"
        for row in rows
    ]
    return f"In the runs on {known.data} the loss took {' and '.join(said)}." if said else ""
