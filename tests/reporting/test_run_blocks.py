"""Words and numbers of a report that need no training."""

import json
from dataclasses import replace

import pytest
import torch
import yaml

from smi.comparison.comparison import Comparison, OffTheShelf
from smi.evaluation.results import Result, Score
from smi.reporting.data_urls import picture_url
from smi.reporting.run_blocks import (
    as_sentence,
    comparison_plot,
    criteria_table,
    join_words,
    runs_table,
    training_seconds,
)
from smi.runs.run import Run
from support.comparisons import make_sweep
from support.made_up import LEAST_CONFIG


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("the loss is NaN", "The loss is NaN."),
        ("Already one.", "Already one."),
        ("runs/smi has no checkpoint", "runs/smi has no checkpoint."),
        ("run `smi doctor`", "Run `smi doctor`"),
    ],
)
def test_words_become_a_sentence(words, sentence):
    assert as_sentence(words) == sentence


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c")]
)
def test_words_are_joined(words, text):
    assert join_words(words) == text


def test_the_training_time_is_the_sum_over_logged_speeds(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(LEAST_CONFIG | {"batch_size": 10}))
    assert training_seconds(Run(tmp_path)) is None
    lines = [
        {"step": 4, "loss": 1.0, "timing": {"images_per_second": 20}},
        {"step": 6, "loss": 1.0},  # without a speed
        {"step": 9, "loss": 1.0, "timing": {"images_per_second": 5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert training_seconds(Run(tmp_path)) == pytest.approx(4 * 10 / 20 + 3 * 10 / 5)


def test_runs_without_labels_have_no_column_of_knn(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(LEAST_CONFIG | {"batch_size": 10}))
    runs = {"SMI": Run(tmp_path)}
    for probe, has_knn in (({"retrieval": 0.5}, False), ({"knn": 0.5}, True)):
        line = json.dumps({"step": 4, "epoch": 1, "probe": probe})
        (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
        assert ("kNN" in runs_table(runs).table.headers) is has_knn


def test_what_probes_measure_without_labels_has_a_table(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(LEAST_CONFIG | {"batch_size": 10}))
    runs = {"SMI": Run(tmp_path)}
    found = {"rank_me": 12.34, "lidar": 5.0, "alpha_req": None, "num_images": 9}
    for probe, cells in (
        ({"knn": 0.5}, None),
        ({"knn": 0.5, "label_free": found}, [["SMI", "12.3", "5.0"]]),
    ):
        line = json.dumps({"step": 4, "epoch": 1, "probe": probe})
        (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
        block = criteria_table(runs)
        assert (block and [list(line) for line in block.table.lines]) == cells
    assert list(block.table.headers) == ["", "RankMe", "LiDAR"]


def test_the_figure_of_a_comparison_describes_gains_over_a_start():
    comparison = make_sweep((0.001, 0.1))
    caption = comparison_plot(comparison).layout.meta["caption"]
    assert "Left: scores. Right: differences to " in caption
    start = OffTheShelf("timm", "resnet18", "0")
    for rows, words in (
        (comparison.rows, ("Middle: differences to ", "Right: gains over")),
        (comparison.rows[:1], ("Left: scores. Right: gains over",)),
    ):
        changed = replace(comparison, rows=rows, off_the_shelf=start)
        caption = comparison_plot(changed).layout.meta["caption"]
        assert all(word in caption for word in words)


@pytest.mark.parametrize(("side", "kind"), [(8, "png"), (16, "png"), (17, "webp"), (200, "webp")])
def test_tiny_pictures_are_stored_exactly(side, kind):
    image = torch.randint(256, (3, side, side), dtype=torch.uint8)
    assert picture_url(image, 96).startswith(f"data:image/{kind};base64,")


@pytest.mark.parametrize("names", [["kNN"], ["kNN", "top-5"]])
def test_the_swept_setting_is_named_beneath_the_last_panels_only(names):
    comparison = make_sweep((0.001, 0.1))
    scores = tuple(Score(name, 0.5) for name in names)
    result = Result({"name": "knn", "data": "digits"}, "encoder", {}, scores, "")
    rows = [
        replace(row, runs=tuple(replace(run, results=(result,)) for run in row.runs))
        for row in comparison.rows
    ]
    figure = comparison_plot(Comparison(tuple(rows), (0, 1, 2), "key", {}))
    titles = [axis.title.text for axis in figure.select_xaxes()]
    costs = ["ms per step; black: the loss", "peak memory, MB"]
    assert titles == [""] * 2 * (len(names) - 1) + ["key", "key", *costs]
