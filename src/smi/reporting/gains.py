"""Compare the accuracy of encoders with that of the weights they started from.

starts = start_results(runs)
scored = [read_scores(run, starts) for run in runs]       # runs of one row, which differ by seed
tables = list(gain_tables(scored))

Only results under the same protocol are compared: their stamps are equal.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean

from smi.comparison.comparison import Column, Estimate, step_of
from smi.errors import UserError
from smi.evaluation.results import OFF_THE_SHELF, TRAINED, Result, read_all
from smi.intervals import paired_interval
from smi.reporting.run_blocks import join_words
from smi.runs.encoder import load
from smi.runs.run import Run
from smi.tables import Table

ADAPTED = "adapted"
NORMAL_QUANTILE = 1.96  # of a 95 % interval

Results = dict[str, Result]  # by the stamp of their protocol


@dataclass(frozen=True)
class ScoredRun:
    """Hold the results of a run under the protocols that both of its encoders have results for."""

    seed: int
    before: Results
    after: Results


@dataclass(frozen=True)
class Gain:
    """Hold a score before and after, their difference, and words for its interval.

    Scores of several seeds are means.
    """

    before: float
    after: float
    difference: Estimate
    interval: str

    @property
    def cells(self) -> list[str]:
        """Format both scores and the gain in points."""
        return [f"{self.before:.1%}", f"{self.after:.1%}", self.difference.points]


# ------------------------------------------------------------------------------ stored results


def start_results(runs: Iterable[Run]) -> dict[str, Results]:
    """Read the results of all starts, by the digest of their weights.

    Runs that share their start are evaluated together, and one of them stores its results.
    """
    results: dict[str, Results] = {}
    for run in runs:
        with suppress(UserError):  # the evaluation of the run says what is wrong
            for result in read_all(run.folder):
                if result.subject == OFF_THE_SHELF:
                    results.setdefault(result.encoder["digest"], {})[result.stamp] = result
    return results


def read_scores(run: Run, starts: Mapping[str, Results]) -> ScoredRun:
    """Read the results of a run's present encoder that its start has, too."""
    after = present_results(run) if starts else {}
    if not after:  # nothing to compare, so nothing to load
        return ScoredRun(run.config["seed"], {}, {})
    start = load(run.folder).off_the_shelf()
    before = {} if start is None else starts.get(start.digest(), {})
    common = [stamp for stamp in after if stamp in before]
    return ScoredRun(
        run.config["seed"],
        {stamp: top_1(before[stamp]) for stamp in common},
        {stamp: after[stamp] for stamp in common},
    )


def present_results(run: Run) -> Results:
    """Read the results of a run's present encoder, by stamp and without top-5 accuracies.

    Results of earlier weights of the run stay in its folder and are left out.
    """
    stored = [result for result in read_all(run.folder) if result.subject == TRAINED]
    if not stored:
        return {}
    digest = load(run.folder).digest()
    return {r.stamp: top_1(r) for r in stored if r.encoder["digest"] == digest}


def top_1(result: Result) -> Result:
    """Return a result without its top-5 accuracy."""
    scores = tuple(score for score in result.scores if not score.name.endswith("top-5"))
    return replace(result, scores=scores)


# ------------------------------------------------------------------------------ tables


def gain_tables(scored: Sequence[ScoredRun]) -> Iterator[Table]:
    """Yield a table for each dataset that the runs of a row were evaluated on."""
    datasets = {result.protocol["data"] for run in scored for result in run.after.values()}
    for data in sorted(datasets):
        yield _gain_table([_only_data(run, data) for run in scored], data)


def _only_data(run: ScoredRun, data: str) -> ScoredRun:
    """Leave out results on other datasets."""
    stamps = [stamp for stamp, result in run.after.items() if result.protocol["data"] == data]
    before = {stamp: run.before[stamp] for stamp in stamps}
    return ScoredRun(run.seed, before, {stamp: run.after[stamp] for stamp in stamps})


def _gain_table(scored: Sequence[ScoredRun], data: str) -> Table:
    """Make a table with a row for each score, and say which interval a gain has."""
    protocols: Results = {}  # the first result under each
    for run in scored:
        protocols = run.before | protocols
    columns = [(stamp, score.name) for stamp, r in protocols.items() for score in r.scores]
    names = score_names(columns)
    gains = {name: gain(scored, c) for name, c in zip(names, columns, strict=True)}
    stamps = ", ".join(f"{result.protocol['name']} {stamp}" for stamp, result in protocols.items())
    return Table.of(
        ["", OFF_THE_SHELF, ADAPTED, "gain, points"],
        [[name, *gain.cells] for name, gain in gains.items()],
        title=f"Accuracy on held-out images of {data.removesuffix('/')}",
        notes=[
            "gain: adapted minus off the shelf, ± half of its 95 % interval, or of both seeds",
            *_interval_notes(gains),
            f"stamps of the protocols: {stamps}; the tab Evaluation describes them",
        ],
    )


def score_names(columns: Sequence[Column]) -> list[str]:
    """Return a short name for each score; equal names of several protocols get their stamps."""
    names = [name for _, name in columns]
    if "linear" not in names:  # one linear classifier needs no further name
        names = ["linear" if name == "linear-cached" else name for name in names]
    return [
        f"{name} ({stamp})" if names.count(name) > 1 else name
        for name, (stamp, _) in zip(names, columns, strict=True)
    ]


def _interval_notes(gains: Mapping[str, Gain]) -> Iterator[str]:
    """Say which interval stands beside each gain."""
    for interval in dict.fromkeys(gain.interval for gain in gains.values()):
        names = [name for name, gain in gains.items() if gain.interval == interval]
        yield f"interval of {join_words(names)}: {interval}"
    if any(len(gain.difference.seeds) < 2 for gain in gains.values()):
        yield "one run: no interval contains the variation between seeds of the training"


# ------------------------------------------------------------------------------ gains


def gain(scored: Sequence[ScoredRun], column: Column) -> Gain:
    """Return the gain in one score: over seeds, or of one run over draws or test images."""
    stamp, name = column
    runs = [run for run in scored if stamp in run.after]
    before = {run.seed: _value(run.before[stamp], name) for run in runs}
    after = {run.seed: _value(run.after[stamp], name) for run in runs}
    first = runs[0]
    difference = Estimate.of_differences(after, before, step_of(first.after[stamp]))
    if difference is not None and difference.low is not None:
        interval = f"Student's, over {len(runs)} seeds, of differences that are paired by seed"
        if len(runs) == 2:
            interval = "none over 2 seeds: both differences are shown"
    else:
        difference, interval = _difference(first.before[stamp], first.after[stamp], name)
    return Gain(fmean(before.values()), fmean(after.values()), difference, interval)


def _value(result: Result, name: str) -> float:
    """Return a score of a result."""
    return next(score.value for score in result.scores if score.name == name)


def _difference(before: Result, after: Result, name: str) -> tuple[Estimate, str]:
    """Return the difference of one score of one run, and words for its interval."""
    new, old = _draws(after, name), _draws(before, name)
    if len(new) == len(old) > 1:
        step = step_of(after) * len(new)  # of one draw
        interval = f"Student's, over {len(new)} draws of the labels of each class, of "
        interval += "differences that are paired by draw: both encoders get the same labels"
        return Estimate(*paired_interval(new, old, step), ()), interval
    scores = [_value(result, name) for result in (after, before)]
    mean = scores[0] - scores[1]
    count = int(after.protocol.get("test", {}).get("images", 0))
    if not count:
        return Estimate(mean, None, None, ()), "none, because the number of test images is unknown"
    half = NORMAL_QUANTILE * math.sqrt(sum(_variance(score, count) for score in scores))
    interval = f"from the binomial standard errors of two accuracies on {count:,} images. It is "
    interval += "unpaired although the images are the same, so it is too wide"
    return Estimate(mean, mean - half, mean + half, ()), interval


def _draws(result: Result, name: str) -> Sequence[float]:
    """Return the accuracy of each draw of labels; empty if a score is not a mean over draws."""
    shots = name.split(" ", 1)[0]
    draws: Sequence[float] = (result.details.get("draws") or {}).get(shots, ())
    return draws


def _variance(accuracy: float, count: int) -> float:
    """Return the binomial variance of an accuracy on `count` images.

    One right and one wrong image are added, so that it is not 0 where all are right (Agresti and
    Caffo 2000).
    """
    share = (accuracy * count + 1) / (count + 2)
    return share * (1 - share) / (count + 2)
