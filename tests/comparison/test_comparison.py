"""Estimates over seeds, and the tables of a comparison, with made-up scores."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from smi.comparison.comparison import (
    Comparison,
    Estimate,
    OffTheShelf,
    Row,
    TrainedRun,
    step_of,
)
from smi.errors import TrainingError, UserError
from smi.evaluation.results import OFF_THE_SHELF, Result, Score
from support.comparisons import make_result, make_row
from support.made_up import LEAST_CONFIG


def student(values: list[float]) -> tuple[float, float, float]:
    """Compute a mean and its interval as a textbook does."""
    mean = np.mean(values)
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return mean, *scipy.stats.t.interval(0.95, len(values) - 1, mean, error)


def test_intervals_and_differences_match_a_plain_computation():
    a, b = {0: 0.91, 1: 0.88, 2: 0.93, 3: 0.9}, {3: 0.95, 1: 0.9, 0: 0.92}  # one run is missing
    comparison = Comparison((make_row("M0", a), make_row("M1", b)), (0, 1, 2, 3), None, {})
    (column,) = comparison.columns
    for row, values in zip(comparison.rows, (a, b), strict=True):
        score = comparison.score(row, column)
        assert (score.mean, score.low, score.high) == pytest.approx(student(list(values.values())))
    difference = comparison.difference(comparison.rows[1], column)
    assert difference.seeds == (0, 1, 3)
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        student([0.01, 0.02, 0.05])
    )
    assert difference.half < comparison.score(comparison.rows[1], column).half  # pairing helps
    assert "so far 7 of 8 runs" in comparison.text()


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_no_interval_of_a_difference_is_narrower_than_rounding_makes_it(seeds):
    """With 100 test images, one image more under every seed may be an effect of rounding."""
    draws = np.random.default_rng(0).uniform(size=(20_000, 2, seeds))
    rounding = (100 * draws).round() / 100 - draws
    std = (rounding[:, 0] - rounding[:, 1]).std()
    ours, theirs = dict.fromkeys(range(seeds), 0.51), dict.fromkeys(range(seeds), 0.5)
    narrow = Estimate.of_differences(ours, theirs, 1 / 100)
    quantile = scipy.stats.t.ppf(0.975, seeds - 1)
    assert narrow.mean == pytest.approx(0.01)
    assert narrow.half == pytest.approx(quantile * std / seeds**0.5, rel=0.02)
    assert narrow.high - narrow.mean == pytest.approx(narrow.mean - narrow.low)
    spread = {seed: 0.5 + seed / 10 for seed in range(seeds)}
    wide = Estimate.of_differences(spread, theirs, 1 / 100)
    expected = Estimate.of({seed: seed / 10 for seed in range(seeds)})
    assert (wide.low, wide.high) == pytest.approx((expected.low, expected.high))


def test_an_estimate_of_one_seed_has_no_interval():
    one = Estimate.of({3: 0.5})
    assert (one.mean, one.low, one.high, one.seeds, one.half) == (0.5, None, None, (3,), 0.0)
    assert str(one) == "50.0%"
    assert Estimate.of({}) is None
    gap = Estimate.of_differences({0: 0.5, 1: 0.7}, {1: 0.6, 2: 0.9}, 0.01)
    assert (gap.low, gap.seeds, gap.points) == (None, (1,), "+10.0")
    assert Estimate.of_differences({0: 0.5}, {1: 0.6}) is None


@pytest.mark.parametrize(
    ("protocol", "step"),
    [
        ({}, 0.0),
        ({"test": {"images": 50}}, 1 / 50),
        ({"test": {"images": 50}, "draws": 4}, 1 / 200),
    ],
)
def test_neighbouring_scores_differ_by_one_test_image(protocol, step):
    assert step_of(make_result(0.5, **protocol)) == step


def test_scores_of_different_protocols_do_not_share_a_column():
    first, second = make_row("M0", {0: 0.9}), make_row("M1", {0: 0.8})
    other = make_row("M1", {0: 0.8}, k=5)
    assert len(Comparison((first, second), (0,), None, {}).columns) == 1
    comparison = Comparison((first, other), (0,), None, {})
    assert len(comparison.columns) == 2
    assert comparison.difference(other, comparison.columns[1]) is None
    assert "not comparable: runs were evaluated under different knn protocols" in comparison.text()
    headers = comparison.csv().splitlines()[0].split(",")
    assert len(set(headers)) == len(headers)


def costs(step_ms: float, peak_mb: float) -> tuple[TrainedRun, ...]:
    return tuple(
        TrainedRun(seed, "a", "b", (make_result(0.8 + seed / 10),), "", step_ms, peak_mb, "cpu", 9)
        for seed in (0, 1)
    )


@pytest.fixture
def comparison():
    rows = (
        Row("SMI", 0.1, "SMI, weight=0.1", costs(12.345, 900), 1.2345),
        Row("BYOL", None, "BYOL", (TrainedRun(0, "c", "d", (make_result(0.6),)),)),
    )
    return Comparison(rows, (0, 1), "weight", {"recipe": "digits"})


def test_the_text_has_both_tables_and_the_notes(comparison):
    assert comparison.text().splitlines()[:12] == [
        "Both seeds",
        "",
        "                             kNN  ms/step   loss  peak MB",
        "---------------  ---------------  -------  -----  -------",
        "SMI, weight=0.1  80.0% and 90.0%     12.3  10.0%      900",
        "BYOL                       60.0%        -      -        -",
        "",
        "Differences to SMI, weight=0.1 in percentage points, paired by seed",
        "",
        "        kNN",
        "----  -----",
        "BYOL  -20.0",
    ]
    assert comparison.text().splitlines()[13:] == comparison.notes()
    assert comparison.notes()[-1] == "so far 3 of 4 runs"


def test_markdown_has_headings_pipes_and_a_list_of_notes(comparison):
    lines = comparison.markdown().splitlines()
    assert lines[0] == "## Both seeds"
    assert "| SMI, weight=0.1 | 80.0% and 90.0% | 12.3 | 10.0% | 900 |" in lines
    assert "| BYOL | -20.0 |" in lines
    assert lines[-1] == "- so far 3 of 4 runs"


def test_csv_has_plain_numbers_and_empty_cells(comparison):
    first, second = csv.DictReader(io.StringIO(comparison.csv()))
    names = ["mean", "low", "high", "seeds", "difference", "difference low", "difference high"]
    assert list(first) == [
        "name",
        "method",
        "weight",
        *(f"kNN {name}" for name in names),
        "step ms",
        "loss ms",
        "loss share",
        "peak MB",
        "failed",
    ]
    assert float(first["kNN mean"]) == pytest.approx(0.85)
    assert (first["weight"], first["kNN seeds"], first["step ms"]) == ("0.1", "2", "12.345")
    assert float(first["kNN difference"]) == 0
    assert (second["weight"], second["kNN low"], second["step ms"]) == ("", "", "")
    assert float(second["kNN difference"]) == pytest.approx(-0.2)


def test_a_comparison_is_read_as_it_was_written(comparison, tmp_path):
    comparison.write(tmp_path)
    again = Comparison.read(tmp_path)
    assert again == comparison
    assert json.dumps(again.plain(), indent=2) + "\n" == (tmp_path / "comparison.json").read_text()
    assert again.text() == comparison.text()
    assert (tmp_path / "table.md").read_text() == again.markdown()
    assert (tmp_path / "table.csv").read_text() == again.csv()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"protocols": [], "rows": [{}]}'])
def test_a_damaged_file_is_refused(text, tmp_path):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(UserError, match="does not describe a comparison"):
        Comparison.read(tmp_path)


def test_failed_runs_are_noted_and_counted(comparison):
    comparison.raise_if_failed()  # none did
    failed = Row("PIRL", None, "PIRL", (TrainedRun(1, "", "", failed="the loss is NaN"),))
    broken = Comparison((*comparison.rows, failed), (0, 1), None, {})
    assert "failed: PIRL, seed 1: the loss is NaN" in broken.notes()
    with pytest.raises(TrainingError, match="1 of 4 runs failed"):
        broken.raise_if_failed()
    assert list(csv.DictReader(io.StringIO(broken.csv())))[-1]["failed"] == "1"


def test_a_run_whose_batch_did_not_fit_is_noted(tmp_path):
    (tmp_path / "config.yaml").write_text(json.dumps(LEAST_CONFIG))
    (tmp_path / "run.json").write_text('{"requested_batch_size": 64}')
    run = TrainedRun.read(tmp_path, seed=0, command="")
    comparison = Comparison((Row("SMI", None, "SMI", (run,)),), (0,), None, {})
    sentence = "not identical: SMI, seed 0, has a batch of 32, because 64 did not fit"
    assert sentence in comparison.notes()
    assert not TrainedRun.read(tmp_path / "none", seed=0, command="").halved


def test_runs_in_several_number_formats_are_not_identical():
    rows = [
        Row(name, None, name, (TrainedRun(0, "", "", precision=precision),))
        for name, precision in (("SMI", "float32"), ("BYOL", "bfloat16"))
    ]
    sentence = "not identical: runs were computed in bfloat16 and float32, so times are not"
    assert any(sentence in note for note in Comparison(tuple(rows), (0,), None, {}).notes())
    alike = Comparison((rows[0], rows[0]), (0,), None, {})
    assert not any("computed in" in note for note in alike.notes())


def test_runs_on_several_devices_have_times_that_cannot_be_compared():
    rows = [
        Row(name, None, name, (TrainedRun(0, "", "", device=device),))
        for name, device in (("SMI", "this GPU"), ("BYOL", "that GPU"))
    ]
    assert (
        "times and memory are not comparable: runs were made on that GPU; this GPU"
        in Comparison(tuple(rows), (0,), None, {}).notes()
    )


def test_a_dataset_name_that_is_not_text(tmp_path):
    """A name on a disk is bytes, and may hold a line break."""
    protocol = {"name": "knn", "data": "caf\udce9\n/"}
    result = Result(protocol, "encoder", {}, (Score("kNN", 0.5),), "nearest neighbours")
    row = Row("SMI", None, "SMI", (TrainedRun(0, "caf\udce9", "", (result,)),))
    Comparison((row,), (0,), None, {}).write(tmp_path)
    assert "- knn on caf\\udce9\\n/, stamp" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert Comparison.read(tmp_path).rows[0].runs[0].folder == "caf\udce9"


def test_a_comparison_says_whether_methods_were_trained_alike(tmp_path):
    rows = make_row("M0", {0: 0.5, 1: 0.6}), make_row("M1", {0: 0.7, 1: 0.6})
    for about, title, note in (
        ({}, "Both seeds", "identical: "),  # of an earlier version
        ({"published": False}, "Both seeds", "identical: "),
        ({"published": True}, "Both seeds, as published", "published: "),
    ):
        Comparison(rows, (0, 1), None, about).write(tmp_path)
        comparison = Comparison.read(tmp_path)
        assert comparison.tables()[0].title == title
        assert comparison.notes()[0].startswith(note)
        assert f"- {note}" in (tmp_path / "table.md").read_text()


# ------------------------------------------------------------------------ weights off the shelf


@pytest.fixture
def adapted(comparison):
    """Return the comparison with the weights that both methods started from."""
    result = replace(make_result(0.7), subject=OFF_THE_SHELF)
    start = OffTheShelf("/tmp/weights.pth", "resnet18", "0123456789abcdef", (result,))
    return replace(comparison, off_the_shelf=start)


def test_gains_over_the_start_match_a_plain_computation():
    values = {0: 0.91, 1: 0.88, 2: 0.93}
    start = OffTheShelf("timm", "resnet18", "0", (make_result(0.85),))
    comparison = Comparison((make_row("M0", values),), (0, 1, 2), None, {}, start)
    (column,) = comparison.columns
    gain = comparison.gain(comparison.rows[0], column)
    assert (gain.mean, gain.low, gain.high) == pytest.approx(student([0.06, 0.03, 0.08]))
    assert gain.seeds == (0, 1, 2)
    assert comparison.start_score(column) == 0.85
    other = replace(comparison, off_the_shelf=replace(start, results=(make_result(0.85, k=5),)))
    assert other.gain(other.rows[0], column) is None  # under another protocol


def test_no_interval_of_a_gain_is_narrower_than_rounding_makes_it():
    test = {"images": 100}
    start = OffTheShelf("timm", "resnet18", "0", (make_result(0.5, test=test),))
    row = make_row("M0", dict.fromkeys(range(3), 0.51), test=test)
    comparison = Comparison((row,), (0, 1, 2), None, {}, start)
    gain = comparison.gain(row, comparison.columns[0])
    assert gain.half == pytest.approx(scipy.stats.t.ppf(0.975, 2) * 0.01 / 6**0.5 / 3**0.5)


def test_the_text_has_a_row_and_a_table_of_the_start(adapted, comparison):
    lines = adapted.text().splitlines()
    assert lines[4:7] == [
        "SMI, weight=0.1  80.0% and 90.0%     12.3  10.0%      900",
        "BYOL                       60.0%        -      -        -",
        "off the shelf              70.0%        -      -        -",
    ]
    assert lines[14:20] == [
        "Gains over off the shelf in percentage points, both seeds",
        "",
        "                             kNN",
        "---------------  ---------------",
        "SMI, weight=0.1  +10.0 and +20.0",
        "BYOL                       -10.0",
    ]
    assert lines[21:] == adapted.notes()
    (sentence,) = [note for note in adapted.notes() if note not in comparison.notes()]
    assert sentence == (
        "off the shelf: resnet18 with the weights of /tmp/weights.pth (digest 0123456789abcdef), "
        "before the first step; evaluated once, so without an interval"
    )
    one = replace(adapted, seeds=(0,))
    assert one.tables()[-1].title == "Gains over off the shelf in percentage points"


def test_markdown_and_csv_have_the_start(adapted, comparison):
    lines = adapted.markdown().splitlines()
    assert "| off the shelf | 70.0% | - | - | - |" in lines
    assert "| SMI, weight=0.1 | +10.0 and +20.0 |" in lines
    first, second, start = csv.DictReader(io.StringIO(adapted.csv()))
    assert float(first["kNN gain"]) == pytest.approx(0.15)
    assert float(first["kNN gain low"]) < 0 < float(first["kNN gain high"])
    assert (second["kNN gain low"], second["kNN gain high"]) == ("", "")
    assert (start["name"], start["method"], start["kNN mean"]) == ("off the shelf", "", "0.7")
    assert not start["kNN low"]
    assert "gain" not in comparison.csv()


def test_the_start_is_read_as_it_was_written(adapted, comparison, tmp_path):
    adapted.write(tmp_path)
    again = Comparison.read(tmp_path)
    assert again == adapted
    assert json.dumps(again.plain(), indent=2) + "\n" == (tmp_path / "comparison.json").read_text()
    assert again.text() == adapted.text()
    document = again.plain()
    assert document["off_the_shelf"]["results"][0]["value"] == 0.7
    assert document["rows"][0]["gains"][0]["mean"] == pytest.approx(0.15)
    scratch = comparison.plain()
    assert "off_the_shelf" not in scratch
    assert "gains" not in scratch["rows"][0]


def test_a_start_that_could_not_be_evaluated_is_noted(comparison):
    start = OffTheShelf("timm", "resnet18", "0", failed="features are not finite")
    broken = replace(comparison, off_the_shelf=start)
    assert "failed: off the shelf: features are not finite" in broken.notes()
    assert "off the shelf                  -        -      -        -" in broken.text().splitlines()
    broken.raise_if_failed()  # all runs are there
