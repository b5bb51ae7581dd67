"""Test lines over training: logged values, means over seeds, and names of runs."""

import json

import numpy as np
import pytest

from smi.errors import UserError
from smi.figures.curves import loss, probe
from smi.figures.series import MAX_LINE_POINTS, thinned
from smi.runs.names import name_runs
from smi.runs.run import Run
from support.figures import caption, draw, trace
from support.made_up import write_run


def test_feature_std_and_ratio_are_the_logged_values(pair):
    for name, key in (("feature-std", "feature_std"), ("ratio", "ratio")):
        found = trace(draw(name, pair), "SMI")
        assert list(found.y) == [line[key] for line in pair[0].metrics()]
        assert list(found.x) == [line["epoch"] for line in pair[0].metrics()]


def test_feature_std_begins_at_zero(pair):
    low, high = draw("feature-std", pair).layout.yaxis.range
    assert low == 0
    assert high > max(line["feature_std"] for run in pair for line in run.metrics())


def test_knn_curves_have_the_untrained_encoder_and_end_at_100_percent(pair):
    for run, knn in zip(pair, (0.9, 0.94), strict=True):
        start = {"step": 0, "epoch": 0.0, "probe": {"knn": knn}}
        last = {"step": 120, "epoch": 3.0, "probe": {"knn": 0.999}}
        (run.folder / "metrics.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(last)}\n")
    figure = probe(name_runs([Run(run.folder) for run in pair]))
    untrained = trace(figure, "untrained")
    assert list(untrained.y) == pytest.approx([92, 92])  # the mean of both
    assert untrained.x[0] == 0
    low, high = figure.layout.yaxis.range
    assert (low < 90, high) == (True, 100)


def test_a_ratio_takes_two_terms(pair, tmp_path):
    alone = write_run(tmp_path / "c", "SimCLR", weight=None, ratio=False)
    figure = draw("ratio", [*pair, alone])
    assert [t.name for t in figure.data] == ["SMI", "Barlow Twins"]
    assert "SimCLR" in caption(figure)
    with pytest.raises(UserError, match="only one term"):
        draw("ratio", [alone])


def test_a_run_that_logged_nothing(pair, tmp_path):
    (pair[0].folder / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has logged nothing yet"):
        draw("feature-std", pair)
    lines = [json.dumps({"step": 10, "epoch": 1.0, "loss": 1.0})]
    (pair[0].folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="no gradient norm of every step"):
        draw("gradient-norm", pair)


@pytest.mark.parametrize("name", ["gradient-norm", "feature-std", "ratio"])
def test_seeds_are_thin_lines_and_their_mean_with_one_legend_entry(seeds, name):
    figure = draw(name, seeds)
    listed = [t for t in figure.data if t.showlegend]
    assert [t.name for t in listed] == ["SMI", "Barlow Twins"]
    thin = [
        t for t in figure.data if t.showlegend is False and t.line.color == listed[0].line.color
    ]
    assert [t.name for t in thin] == ["SMI, seed 0", "SMI, seed 1", "SMI, seed 2"]
    assert all(t.line.width < listed[0].line.width for t in thin)
    np.testing.assert_allclose(listed[0].y, np.mean([t.y for t in thin], axis=0))
    assert "(3 seeds)" in caption(figure)


def test_the_loss_of_one_row_is_unscaled_and_that_of_several_rows_is_scaled(seeds):
    alone = loss(name_runs(seeds[:3]))
    mean = trace(alone, "SMI")
    np.testing.assert_allclose(
        mean.y, np.mean([[line["loss"] for line in run.metrics()] for run in seeds[:3]], axis=0)
    )
    assert alone.layout.yaxis.title.text == "loss"
    both = loss(name_runs(seeds))
    assert [t.name for t in both.data if t.showlegend] == ["SMI", "Barlow Twins"]
    thin = [t for t in both.data if t.showlegend is False]
    assert len(thin) == 6
    for t, run in zip(thin, seeds, strict=True):
        first, *_ = values = [line["loss"] for line in run.metrics()]
        low = min(values)
        high = first if low < first else max(values)
        np.testing.assert_allclose(t.y, [(v - low) / (high - low) for v in values])
        assert list(t.customdata) == values  # hovering shows the loss itself


def test_a_swept_setting_tells_runs_apart(tmp_path):
    runs = []
    for value in (0.1, 0.5):
        for seed in (0, 1):
            runs.append(
                write_run(tmp_path / f"{value}" / f"seed-{seed}", "SimCLR", seed=seed, weight=None)
            )
            config = runs[-1].folder / "config.yaml"
            config.write_text(
                config.read_text().replace("name: SimCLR", f"name: SimCLR\n  temperature: {value}")
            )
    runs = [Run(run.folder) for run in runs]
    assert list(name_runs(runs))[:2] == [
        "SimCLR, temperature=0.1, seed 0",
        "SimCLR, temperature=0.1, seed 1",
    ]
    assert [t.name for t in draw("feature-std", runs).data if t.showlegend] == [
        "SimCLR, temperature=0.1",
        "SimCLR, temperature=0.5",
    ]


def test_the_mean_ends_with_the_shortest_seed(tmp_path):
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    lines = (runs[1].folder / "metrics.jsonl").read_text().splitlines()
    (runs[1].folder / "metrics.jsonl").write_text("\n".join(lines[:8]) + "\n")
    assert trace(draw("feature-std", runs), "SMI").x[-1] == 1.0


def test_only_runs_that_differ_by_seed_alone_are_averaged(tmp_path):
    runs = [
        write_run(tmp_path / "a", seed=0),
        write_run(tmp_path / "b", seed=1, epochs=2),
        write_run(tmp_path / "c", seed=1),
    ]
    again = write_run(tmp_path / "d", seed=1)
    assert [t.name for t in draw("ratio", runs).data if t.showlegend] == [
        "SMI, 3 epochs",
        "SMI, 2 epochs",
    ]
    assert (
        len([t for t in draw("ratio", [runs[0], runs[2], again]).data if t.showlegend]) == 3
    )  # one seed twice is not two seeds


@pytest.mark.parametrize("count", [0, 1, 2000, 2001, 4000, 4001, 100_000])
def test_a_line_has_at_most_as_many_points_as_can_be_seen(count):
    values = list(range(count))
    shown = list(thinned(values))
    assert len(shown) <= MAX_LINE_POINTS + 1
    assert shown[:1] == values[:1]
    assert shown[-1:] == values[-1:]
    assert shown == sorted(set(shown))
    if count <= MAX_LINE_POINTS:
        assert shown == values
