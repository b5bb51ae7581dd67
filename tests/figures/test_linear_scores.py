"""Test figures of accuracies: their numbers, and which results they refuse to mix."""

import re
import shutil

import numpy as np
import pytest
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.std_summary import _label
from support.figures import draw, trace
from support.made_up import write_result, write_run


def test_results_on_a_folder_are_found(tmp_path):
    """Results store the name of a folder with a slash at its end."""
    runs = [
        write_run(tmp_path / str(weight), data="/elsewhere/photos", weight=weight)
        for weight in (0.1, 1.0)
    ]
    for run in runs:
        write_result(run, 0.5, data="photos/")
    assert list(trace(draw("accuracy-std", runs), "SMI").y) == pytest.approx([50, 50])


def test_accuracy_against_std(pair, tmp_path):
    sweep = [
        write_run(tmp_path / str(weight), weight=weight, level=weight * 50)
        for weight in (0.1, 0.001)
    ]
    for run, top1 in zip([*pair, *sweep], (0.8, 0.7, 0.75, 0.6), strict=True):
        write_result(run, top1)
    figure = draw("accuracy-std", [*pair, *sweep])
    ours = trace(figure, "SMI")
    assert list(ours.text) == ["λ = 0.001", "λ = 0.01", "λ = 0.1"]
    assert list(ours.y) == pytest.approx([60, 80, 75])
    last = [line["feature_std"] for line in pair[0].metrics() if line["epoch"] > 2]
    assert ours.x[1] == pytest.approx(np.mean(last))
    assert list(trace(figure, "Barlow Twins").y) == pytest.approx([70])


def test_only_numbers_of_one_protocol_share_a_figure(pair):
    first, second = pair
    with pytest.raises(
        UserError, match=re.escape(f"`smi evaluate {first.folder} --protocol linear`")
    ):
        draw("accuracy-std", pair)
    write_result(first, 0.9, protocol="linear")
    write_result(first, 0.8, protocol="linear-cached")
    write_result(second, 0.7, protocol="linear-cached")
    figure = draw("accuracy-std", pair)
    assert list(trace(figure, "SMI").y) == pytest.approx([80])  # only linear-cached exists for both
    shutil.rmtree(second.folder / "eval")
    write_result(second, 0.7, protocol="linear", epochs=9)
    with pytest.raises(UserError, match="different protocols"):
        draw("accuracy-std", pair)
    with pytest.raises(UserError, match="no linear or linear-cached results on cifar10"):
        draw("accuracy-std", pair, data="cifar10")
    with pytest.raises(UserError, match="two runs or more"):
        draw("accuracy-std", [first])


def test_results_of_older_weights_are_ignored(pair):
    for run in pair:
        write_result(run, 0.5, protocol="linear", step=60)
        write_result(run, 0.6, protocol="linear-cached", step=120)
    assert list(trace(draw("accuracy-std", pair), "SMI").y) == pytest.approx([60])


def test_older_accuracies_of_a_resumed_run_are_ignored(pair):
    for run in pair:
        write_result(run, 0.5, step=60)
    with pytest.raises(UserError, match="has no linear or linear-cached results yet"):
        draw("accuracy-std", pair)


def test_std_summary_has_a_row_for_each_dataset(pair, tmp_path):
    others = [write_run(tmp_path / m, m, data="cifar10", level=2) for m in ("SMI", "BarlowTwins")]
    for number, run in enumerate([*pair, *others]):
        write_result(run, 0.5 + number / 10)
    figure = draw("std-summary", [*pair, *others])
    bars = [t for t in figure.data if isinstance(t, go.Bar)]
    assert [list(bar.y) for bar in bars] == [pytest.approx([50, 60]), pytest.approx([70, 80])]
    lines = [t for t in figure.data if isinstance(t, go.Scatter)]
    assert [t.showlegend for t in lines] == [True, True, False, False]
    assert list(lines[2].y) == [line["feature_std"] for line in others[0].metrics()]


def test_linear_curves(pair):
    for run in pair:
        write_result(run, 0.8)
    figure = draw("linear-curves", pair)
    held_out = trace(figure, "SMI")
    assert list(held_out.y) == pytest.approx([8, 16, 24, 32])
    training = next(t for t in figure.data if t.name == "SMI" and t.showlegend is False)
    assert list(training.y) == pytest.approx([40] * 4)
    assert training.line.width < held_out.line.width
    assert training.line.dash == held_out.line.dash
    for run in pair:
        shutil.rmtree(run.folder / "eval")
        write_result(run, 0.8, protocol="linear-cached")
    with pytest.raises(
        UserError, match=r"has no linear results yet: run `smi evaluate .* --protocol linear`$"
    ):
        draw("linear-curves", pair)


def test_accuracies_of_seeds_are_means_with_intervals(seeds):
    figure = draw("accuracy-std", seeds)
    point = trace(figure, "SMI")
    assert list(point.y) == pytest.approx([81])
    assert point.x[0] == pytest.approx(
        np.mean(
            [
                np.mean([m["feature_std"] for m in run.metrics() if m["epoch"] > 2])
                for run in seeds[:3]
            ]
        )
    )
    (bar,) = [t for t in draw("std-summary", seeds).data if isinstance(t, go.Bar)]
    assert list(bar.y) == pytest.approx([81, 71])
    assert list(bar.error_y.array) == pytest.approx([4.3027 / 3**0.5] * 2, rel=1e-3)  # Student's t
    curve = trace(draw("linear-curves", seeds), "SMI")
    assert list(curve.y) == pytest.approx([8.1, 16.2, 24.3, 32.4])


def test_labels_of_bars_are_short_lines():
    assert _label("Barlow Twins, λ = 0.01") == "Barlow<br>Twins<br>λ = 0.01"
    assert _label("MoCo v2, resnet-small") == "MoCo v2<br>resnet-small"
    assert _label("<b>") == "&lt;b&gt;"
