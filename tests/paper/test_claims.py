"""Check verdicts on made-up runs where every claim holds, fails, or is not decided."""

import json
import math

import numpy as np
import pytest
import scipy.stats

from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.evaluation.results import Result, Score
from smi.paper.claims import judge_claims
from smi.paper.training_claims import norm_jumps, norm_level, ratio_level, std_variation
from smi.paper.verdicts import FAILS, HOLDS, OPEN, DatasetComparisons, LossTimes
from smi.runs.run import Run
from support.made_up import write_run

# SMI's value as a multiple of Barlow Twins' under the same seed.
LESS, MORE, EITHER = (0.5, 0.55, 0.45), (2.0, 2.2, 1.9), (0.5, 2.0, 1.1)
LOGGED = (
    "gradient-norm-lower",
    "gradient-norm-smoother",
    "feature-std-steadier",
    "ratio-lower",
    "ratio-steadier",
)


def result(value: float) -> Result:
    protocol = {"name": "linear-cached", "data": "digits", "test": {"images": 200}}
    return Result(protocol, "encoder", {}, (Score("linear-cached", value),), "a classifier")


def trained(
    folder, method="SMI", *, seed=0, level=1.0, amplitude=0.1, accuracy=0.9, weight=0.01, failed=""
):
    """Write a run with logged numbers of exactly known level and variation."""
    run = write_run(folder, method, seed=seed, weight=weight)
    lines = [line for line in run.lines() if "loss" in line]
    for number, line in enumerate(lines):
        swing = 1 if number % 2 else -1
        steps = range(len(line["per_step"]["gradient_norm"]))
        line["per_step"]["gradient_norm"] = [
            level * math.exp(amplitude * (-1) ** step) for step in steps
        ]
        line["feature_std"] = 0.01 * (1 + amplitude / 10 * swing)
        line["ratio"] = level * math.exp(amplitude / 10 * swing)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrainedRun(seed, str(folder), "", () if failed else (result(accuracy),), failed)


def pair(folder, factors, *, gains=(0.02, 0.03, 0.025), loss_ms=None) -> Comparison:
    """Make seeds that differ a hundredfold, so that only paired differences decide anything."""
    ours, rival = [], []
    for seed, (factor, gain) in enumerate(zip(factors, gains, strict=True)):
        level, amplitude, accuracy = 10.0**seed, 0.05 * 2**seed, 0.6 + seed / 10
        theirs = {
            "seed": seed,
            "level": level,
            "amplitude": amplitude,
            "accuracy": accuracy,
            "weight": 0.005,
        }
        mine = {
            "seed": seed,
            "level": factor * level,
            "amplitude": factor * amplitude,
            "accuracy": accuracy + gain,
        }
        rival.append(trained(folder / f"bt-{seed}", "BarlowTwins", **theirs))
        ours.append(trained(folder / f"smi-{seed}", **mine))
    rows = (
        Row("SMI", None, "SMI", tuple(ours), loss_ms),
        Row("BarlowTwins", None, "BarlowTwins", tuple(rival), loss_ms),
    )
    return Comparison(rows, (0, 1, 2), None, {})


def sweep(folder, accuracies: dict[float, tuple[float, ...]]) -> Comparison:
    rows = []
    for value, scores in accuracies.items():
        runs = tuple(
            trained(folder / f"{value}-{seed}", seed=seed, accuracy=s, weight=value)
            for seed, s in enumerate(scores)
        )
        rows.append(Row("SMI", value, f"SMI, redundancy_weight={value}", runs))
    return Comparison(tuple(rows), tuple(range(3)), "redundancy_weight", {})


def only(found, name):
    (claim,) = [claim for claim in found if claim.name == name]
    return claim


def verdict(found, name):
    (finding,) = only(found, name).findings
    return finding.verdict


@pytest.mark.parametrize(("factors", "expected"), [(LESS, HOLDS), (MORE, FAILS), (EITHER, OPEN)])
def test_claims_about_logged_curves(factors, expected, tmp_path):
    found = judge_claims([DatasetComparisons("digits", pair(tmp_path, factors))])
    assert {name: verdict(found, name) for name in LOGGED} == dict.fromkeys(LOGGED, expected)


def test_the_interval_is_students_of_logarithms_paired_by_seed(tmp_path):
    found = judge_claims([DatasetComparisons("digits", pair(tmp_path, LESS))])
    logs = np.log(LESS)
    low, high = scipy.stats.t.interval(0.95, 2, logs.mean(), logs.std(ddof=1) / math.sqrt(3))
    for name in ("gradient-norm-lower", "gradient-norm-smoother", "ratio-lower"):
        (finding,) = only(found, name).findings
        numbers = finding.numbers["log ratio"]
        assert (numbers["mean"], numbers["low"], numbers["high"]) == pytest.approx(
            (logs.mean(), low, high)
        )
        assert (
            f"{math.exp(logs.mean()):.3g}, 95 % interval {math.exp(low):.3g} to "
            f"{math.exp(high):.3g}, 3 seeds" in finding.sentence
        )


def test_measures_against_plain_numbers(tmp_path):
    run = Run(trained(tmp_path / "a", level=7.0, amplitude=0.3).folder)
    assert norm_level(run) == pytest.approx(7)
    assert norm_jumps(run) == pytest.approx(0.6)  # from exp(0.3) to exp(-0.3) and back
    assert std_variation(run) == pytest.approx(0.03)
    assert ratio_level(run) == pytest.approx(7)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((0.02, 0.03, 0.025), HOLDS),
        ((-0.02, -0.03, -0.025), FAILS),
        ((0.02, -0.03, 0.01), OPEN),
        ((0, 0, 0), OPEN),
        ((0.005, 0.005, 0.005), OPEN),  # one of 200 images each time may be rounding
        ((0.01, 0.01, 0.01), HOLDS),
    ],
)
def test_accuracy(gains, expected, tmp_path):
    found = judge_claims([DatasetComparisons("digits", pair(tmp_path, LESS, gains=gains))])
    assert verdict(found, "accuracy") == expected
    (finding,) = only(found, "accuracy").findings
    assert f"{100 * np.mean(gains):+.1f} points" in finding.sentence
    assert "One of 200 test images is 0.5 points" in finding.sentence
    (points,) = [cells[-1] for cells in finding.rows if "decides" in cells[0]]
    numbers = finding.numbers["difference"]
    # The table has the numbers of the sentence.
    assert points == f"{100 * numbers['mean']:+.1f} ± {50 * (numbers['high'] - numbers['low']):.1f}"


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ({0.001: (0.80, 0.81, 0.79), 0.01: (0.90, 0.92, 0.89), 0.1: (0.85, 0.86, 0.84)}, HOLDS),
        (
            {0.1: (0.85, 0.86, 0.84), 0.001: (0.80, 0.81, 0.79), 0.01: (0.90, 0.92, 0.89)},
            HOLDS,
        ),  # in any order
        (
            {0.001: (0.80, 0.81, 0.79), 0.01: (0.83, 0.84, 0.82), 0.1: (0.95, 0.96, 0.94)},
            FAILS,
        ),  # the largest λ is best
        (
            {0.001: (0.80, 0.81, 0.79), 0.01: (0.90, 0.92, 0.89), 0.1: (0.88, 0.93, 0.87)},
            OPEN,
        ),  # the interval to one end is on both sides of zero
        ({0.001: (0.80, 0.81, 0.79), 0.01: (0.90, 0.92, 0.89)}, OPEN),  # no middle
        ({0.001: (0.80,), 0.01: (0.90,), 0.1: (0.8,)}, OPEN),  # one seed
    ],
)
def test_the_best_weight_is_in_the_middle(accuracies, expected, tmp_path):
    assert (
        verdict(
            judge_claims([DatasetComparisons("digits", sweep=sweep(tmp_path, accuracies))]),
            "lambda-middle",
        )
        == expected
    )


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((-0.002, -0.003, -0.004), HOLDS),
        ((-0.03, -0.031, -0.029), FAILS),
        ((-0.05, 0.04, 0.0), OPEN),
    ],
)
def test_two_processes_may_lose_a_point(losses, expected, tmp_path):
    one = pair(tmp_path / "one", LESS)
    (column,) = one.columns
    whole = one.values(one.rows[0], column)
    runs = tuple(
        trained(tmp_path / f"two-{s}", seed=s, accuracy=whole[s] + loss)
        for s, loss in enumerate(losses)
    )
    two = Comparison((Row("SMI", None, "SMI", runs),), (0, 1, 2), None, {})
    assert (
        verdict(judge_claims([DatasetComparisons("digits", one, two_processes=two)]), "no-gather")
        == expected
    )


def test_the_cost_is_counted_and_timed(tmp_path):
    times = {
        "SMI": (10.0, 11.0, 10.5),
        "Barlow Twins, K × K": (100.0, 120.0, 90.0),
        "Barlow Twins, N × N": (9.0, 9.5, 9.2),
    }
    known = DatasetComparisons("digits", pair(tmp_path, LESS, loss_ms=0.5))
    counted, published, ours = only(
        judge_claims([known], LossTimes(256, 8192, "a machine", times)), "cost"
    ).findings
    assert counted.verdict == HOLDS
    assert "12.88 against 137.43" in counted.sentence
    assert (published.verdict, ours.verdict) == (HOLDS, FAILS)
    assert "256 × 8192" in published.sentence
    assert [row[1] for row in ours.rows] == ["10.5", "100", "9.2"]
    counted, timed = only(judge_claims([known]), "cost").findings
    assert timed.verdict == OPEN


def test_claims_without_runs_are_not_judged(tmp_path):
    found = judge_claims([])
    assert all(
        finding.verdict == OPEN
        for claim in found
        for finding in claim.findings
        if not finding.where.startswith("counted")
    )
    full = pair(tmp_path, LESS)
    alone = Comparison(
        tuple(Row(r.method, None, r.name, r.runs[:1]) for r in full.rows), (0,), None, {}
    )
    found = judge_claims([DatasetComparisons("digits", alone)])
    assert {verdict(found, name) for name in (*LOGGED, "accuracy")} == {OPEN}
    assert "one seed gives no interval" in only(found, "accuracy").findings[0].sentence


def test_a_run_that_failed_leaves_its_seed_out(tmp_path):
    full = pair(tmp_path, LESS)
    ours, rival = full.rows
    broken = trained(
        tmp_path / "broken", seed=1, level=1e6, failed="the loss is no longer a number"
    )
    ours = Row("SMI", None, "SMI", (ours.runs[0], broken, ours.runs[2]))
    (finding,) = only(
        judge_claims(
            [DatasetComparisons("digits", Comparison((ours, rival), (0, 1, 2), None, {}))]
        ),
        "gradient-norm-lower",
    ).findings
    assert finding.numbers["log ratio"]["seeds"] == (0, 2)


def test_each_dataset_has_its_own_finding(tmp_path):
    found = judge_claims(
        [
            DatasetComparisons("one", pair(tmp_path / "1", LESS)),
            DatasetComparisons("two", pair(tmp_path / "2", MORE)),
        ]
    )
    assert [(f.where, f.verdict) for f in only(found, "ratio-lower").findings] == [
        ("one", HOLDS),
        ("two", FAILS),
    ]
