"""Gains of an encoder over its start: which results are compared, and their intervals."""

import pytest

from smi.evaluation.results import OFF_THE_SHELF, TRAINED, Result, Score, read_all, stamp, write
from smi.intervals import paired_interval
from smi.reporting.gains import ScoredRun, gain, gain_tables, read_scores, start_results
from smi.runs.run import Run

KNN = {"name": "knn", "data": "digits", "test": {"images": 98}}
FEW = {"name": "fewshot", "data": "digits", "test": {"images": 98}, "draws": 3}


def make_result(protocol, subject, *scores, **details):
    encoder = {"digest": subject, "network": "resnet18"}
    return Result(protocol, subject, encoder, scores, "a sentence", (), details)


def make_run(seed, protocol, before, after, name="kNN", **details):
    """Return a run with one score before and after; details are pairs, too."""
    sides = []
    for i, (subject, value) in enumerate(((OFF_THE_SHELF, before), (TRAINED, after))):
        own = {key: pair[i] for key, pair in details.items()}
        result = make_result(protocol, subject, Score(name, value), **own)
        sides.append({result.stamp: result})
    return ScoredRun(seed, *sides)


def test_the_gain_of_one_run_has_a_binomial_interval():
    run = make_run(0, KNN, 0.5, 0.6)
    result = gain([run], (stamp(KNN), "kNN"))
    # 49 and 58.8 of 98 images are right; one right and one wrong are added to each.
    variances = [(50 / 100) * (50 / 100) / 100, (59.8 / 100) * (40.2 / 100) / 100]
    assert result.difference.mean == pytest.approx(0.1)
    assert result.difference.half == pytest.approx(1.96 * sum(variances) ** 0.5)
    assert "on 98 images. It is unpaired although the images are the same" in result.interval
    assert result.cells == ["50.0%", "60.0%", "+10.0 ± 13.7"]


def test_two_perfect_accuracies_are_not_known_to_be_equal():
    assert gain([make_run(0, KNN, 1.0, 1.0)], (stamp(KNN), "kNN")).difference.half > 0.02


def test_the_gain_with_few_labels_is_paired_by_draw():
    old, new = [0.2, 0.5, 0.8], [0.4, 0.6, 0.9]
    draws = {"draws": ({"5": old}, {"5": new})}
    run = make_run(0, FEW, 0.5, 19 / 30, "5 labels", **draws)
    result = gain([run], (stamp(FEW), "5 labels"))
    expected = paired_interval(new, old, 1 / 98)
    assert (result.difference.mean, result.difference.low, result.difference.high) == expected
    assert "over 3 draws" in result.interval
    assert "paired by draw" in result.interval


def test_the_gain_of_several_seeds_is_paired_by_seed():
    runs = [make_run(0, KNN, 0.5, 0.6), make_run(1, KNN, 0.7, 0.9), make_run(2, KNN, 0.5, 0.8)]
    result = gain(runs, (stamp(KNN), "kNN"))
    expected = paired_interval([0.6, 0.9, 0.8], [0.5, 0.7, 0.5], 1 / 98)
    assert (result.difference.mean, result.difference.low, result.difference.high) == expected
    assert "over 3 seeds" in result.interval
    assert result.cells[:2] == ["56.7%", "76.7%"]


def test_without_a_number_of_images_there_is_no_interval():
    protocol = {"name": "knn", "data": "digits"}
    result = gain([make_run(0, protocol, 0.5, 0.6)], (stamp(protocol), "kNN"))
    assert result.cells == ["50.0%", "60.0%", "+10.0"]
    assert result.interval.startswith("none")


def test_a_table_says_which_interval_each_gain_has():
    few = make_run(0, FEW, 0.2, 0.3, "1 label", draws=({"1": [0.1, 0.3]}, {"1": [0.2, 0.4]}))
    knn = make_run(0, KNN, 0.5, 0.6)
    other = KNN | {"k": 5}
    again = make_run(0, other, 0.4, 0.6)
    elsewhere = make_run(0, KNN | {"data": "b"}, 0.4, 0.6)
    runs = (knn, again, few, elsewhere)
    before = {key: result for run in runs for key, result in run.before.items()}
    after = {key: result for run in runs for key, result in run.after.items()}
    on_b, on_digits = gain_tables([ScoredRun(0, before, after)])
    assert on_b.title == "Accuracy on held-out images of b"
    assert [line[0] for line in on_b.lines] == ["kNN"]
    names = [f"kNN ({stamp(KNN)})", f"kNN ({stamp(other)})"]  # one name, two protocols
    assert [line[0] for line in on_digits.lines] == [*names, "1 label"]
    intervals = [note for note in on_digits.notes if note.startswith("interval of ")]
    assert intervals[0].startswith(f"interval of {names[0]} and {names[1]}: from the binomial ")
    assert intervals[1].startswith("interval of 1 label: Student's, over 2 draws")
    assert len(intervals) == 2
    assert "one run: no interval contains the variation" in " ".join(on_digits.notes)


def test_the_linear_classifier_is_named_after_its_protocol_only_if_there_are_two():
    cached = make_run(0, KNN | {"name": "linear-cached"}, 0.5, 0.6, "linear-cached")
    views = make_run(0, KNN | {"name": "linear"}, 0.5, 0.6, "linear")
    (table,) = gain_tables([cached])
    assert [line[0] for line in table.lines] == ["linear"]
    both = ScoredRun(0, cached.before | views.before, cached.after | views.after)
    (table,) = gain_tables([both])
    assert [line[0] for line in table.lines] == ["linear-cached", "linear"]


# ------------------------------------------------------------------------------ stored results


def test_results_of_both_encoders_are_read_without_top_5(adapted):
    run = Run(adapted)
    scored = read_scores(run, start_results([run]))
    assert list(scored.before) == list(scored.after)
    assert len(scored.after) == 3
    names = [score.name for result in scored.after.values() for score in result.scores]
    assert names == ["kNN", "linear-cached", "1 label", "5 labels", "10 labels"]
    assert {result.subject for result in scored.before.values()} == {OFF_THE_SHELF}
    assert {result.subject for result in scored.after.values()} == {TRAINED}


def test_results_of_earlier_weights_are_left_out(adapted):
    for path in (adapted / "eval").glob("*.json"):
        path.unlink()
    run = Run(adapted)
    assert read_scores(run, start_results([run])).after == {}  # nothing at all
    write(adapted, make_result(KNN, TRAINED, Score("kNN", 0.5)))
    write(adapted, make_result(KNN, OFF_THE_SHELF, Score("kNN", 0.5)))
    assert read_scores(run, start_results([run])).after == {}


def test_one_of_several_runs_stores_the_results_of_their_start(adapted, adapted_once):
    for path in (adapted / "eval").glob("*off-the-shelf*.json"):
        path.unlink()
    run = Run(adapted)
    assert read_scores(run, start_results([run])).before == {}
    starts = start_results([run, Run(adapted_once)])
    assert len(read_scores(run, starts).before) == 3


def test_a_damaged_result_of_another_run_changes_nothing(adapted, adapted_once):
    (adapted / "eval" / "knn.json").write_text("{")
    starts = start_results([Run(adapted), Run(adapted_once)])
    assert len(read_scores(Run(adapted_once), starts).before) == 3
    assert len(read_all(adapted_once)) > 3
