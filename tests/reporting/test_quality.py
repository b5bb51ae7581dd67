"""Whether an encoder is any good: scores beside baselines, verdicts and missing commands."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml

from smi.evaluation.results import (
    OFF_THE_SHELF,
    RAW_PIXELS,
    TRAINED,
    UNTRAINED,
    Result,
    Score,
    write,
)
from smi.pages import Missing, TableBlock, Verdict
from smi.reporting import gains
from smi.reporting.quality import compared_quality_blocks, quality_blocks
from smi.reporting.runs import ReportRun
from smi.runs.checkpoint import save_encoder
from smi.runs.run import Run
from support.made_up import LEAST_CONFIG

KNN = {"name": "knn", "data": "digits", "test": {"images": 1000}}


@pytest.fixture(autouse=True)
def present_encoder(monkeypatch):
    """The encoder that each run has now, which is the one that was evaluated."""
    start = SimpleNamespace(digest=lambda: OFF_THE_SHELF)
    encoder = SimpleNamespace(digest=lambda: TRAINED, off_the_shelf=lambda: start)
    monkeypatch.setattr(gains, "load", lambda folder: encoder)


def write_run(folder, probes=(), init=None, **scores):
    """Write a run with probes as (step, kNN), and a result for each subject."""
    folder.mkdir()
    config = LEAST_CONFIG | ({} if init is None else {"init": {"source": init}})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps({"status": "finished"}))
    lines = [
        {"step": step, "epoch": step, "probe": {"knn": knn, "chance": 0.1, "images": 1000}}
        for step, knn in probes
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, value in scores.items():
        write_scores(folder, name.replace("_", " "), {"kNN": value, "kNN top-5": 1.0})
    return ReportRun(folder.name, folder.name, Run(folder), str(folder))


def write_scores(folder, subject, scores, protocol=KNN):
    about = {"digest": subject, "network": "resnet-small", "seed": 0, "size": 8}
    values = tuple(Score(name, value) for name, value in scores.items())
    write(folder, Result(protocol, subject, about, values, "a sentence"))


def read(runs, unlabelled=(), blocks=quality_blocks):
    """Return the verdicts, the lines of the tables, and the missing parts."""
    blocks = list(blocks(runs, unlabelled=unlabelled))
    tables = [block.table for block in blocks if isinstance(block, TableBlock)]
    return (
        [(block.level, block.sentence) for block in blocks if isinstance(block, Verdict)],
        [[list(table.headers), *map(list, table.lines)] for table in tables],
        [f"{block.sentence} {block.command}" for block in blocks if isinstance(block, Missing)],
    )


@pytest.mark.parametrize(
    ("trained", "level", "sentence"),
    [
        (
            0.9,
            "ok",
            "Yes: it is better than raw pixels in the only score and better than the untrained "
            "encoder in the only score.",
        ),
        (
            0.6,
            "warning",
            "Partly: it is not clearly better than raw pixels and better than the untrained "
            "encoder in the only score.",
        ),
        (
            0.2,
            "warning",
            "No: it is worse than raw pixels in the only score and worse than the untrained "
            "encoder in the only score.",
        ),
    ],
)
def test_an_encoder_is_judged_beside_its_floors(tmp_path, trained, level, sentence):
    scores = {"encoder": trained, "untrained_encoder": 0.4, "raw_pixels": 0.59}
    verdicts, tables, missing = read([write_run(tmp_path / "SMI", **scores)])
    assert verdicts == [(level, sentence)]
    headers = ["", RAW_PIXELS, UNTRAINED, "SMI"]
    assert tables == [[headers, ["kNN", "59.0%", "40.0%", f"{trained:.1%}"]]]
    assert missing == []


@pytest.mark.parametrize(
    ("scores", "images", "start"),
    [
        ([0.9, 0.9, 0.9, 0.5], 1000, "Yes: it is better than raw pixels in 3 of 4 scores."),
        ([0.9, 0.9, 0.5, 0.5], 1000, "Partly: it is better than raw pixels in 2 of 4 scores."),
        ([0.9, 0.9, 0.9, 0.1], 1000, "Partly: it is better than raw pixels in 3 of 4 scores, wor"),
        ([0.5, 0.5, 0.5, 0.5], 1000, "Hardly: it is not clearly better than raw pixels."),
        ([0.5, 0.5, 0.5, 0.1], 1000, "No: it is worse than raw pixels in 1 of 4 scores."),
        ([0.9, 0.9, 0.9, 0.9], 0, "Hardly: it is not clearly better than raw pixels."),
    ],
)
def test_yes_is_better_in_most_scores_and_worse_in_none(tmp_path, scores, images, start):
    run = write_run(tmp_path / "SMI")
    protocol = KNN | {"test": {"images": images}}  # without their number there is no interval
    write_scores(tmp_path / "SMI", TRAINED, dict(zip("abcd", scores, strict=True)), protocol)
    write_scores(tmp_path / "SMI", RAW_PIXELS, dict.fromkeys("abcd", 0.5), protocol)
    ((level, sentence),), _, _ = read([run])
    assert sentence.startswith(start)
    assert level == ("ok" if start.startswith("Yes") else "warning")


def test_a_verdict_counts_the_images_of_the_datasets_that_it_compares(tmp_path):
    run = write_run(tmp_path / "SMI")
    for data, images, subjects in (
        ("alone", 7, [TRAINED]),
        ("digits", 360, [TRAINED, RAW_PIXELS]),
        ("cifar10", 10_000, [TRAINED, UNTRAINED]),
    ):
        protocol = {"name": "knn", "data": data, "test": {"images": images}}
        for subject in subjects:
            write_scores(tmp_path / "SMI", subject, {"kNN": 0.5}, protocol)
    (verdict,) = [b for b in quality_blocks([run], unlabelled=()) if isinstance(b, Verdict)]
    counts = {"10,000 held-out images of cifar10", "360 held-out images of digits"}
    assert set(verdict.facts.removeprefix("on ").split(" and ")) == counts


def test_a_comparison_has_verdicts_once_a_run_has_floors(tmp_path):
    first, second = (write_run(tmp_path / name, encoder=0.9) for name in "ab")
    second = replace(second, row=first.row)  # another seed
    verdicts, tables, missing = read([first, second], blocks=compared_quality_blocks)
    assert (verdicts, tables) == ([], [])
    words = "Not measured: raw pixels and the untrained encoder. To add:"
    assert missing == [f"{words} smi evaluate {tmp_path / 'a'} --floors"]
    for floor in (RAW_PIXELS, UNTRAINED):
        write_scores(tmp_path / "b", floor, {"kNN": 0.5})
    verdicts, tables, missing = read([first, second], blocks=compared_quality_blocks)
    assert [level for level, _ in verdicts] == ["ok"]  # one seed of each row
    assert tables[0][0] == ["", RAW_PIXELS, UNTRAINED, "a"]
    assert missing == []


def test_runs_that_were_evaluated_together_share_their_floors(tmp_path):
    first = write_run(tmp_path / "a", encoder=0.9, untrained_encoder=0.4, raw_pixels=0.5)
    verdicts, tables, missing = read([first, write_run(tmp_path / "b", encoder=0.2)])
    assert [level for level, _ in verdicts] == ["ok", "warning"]
    assert tables[0][0] == ["", RAW_PIXELS, UNTRAINED, "a", "b"]
    assert missing == []


def test_the_weights_that_a_run_started_from_stand_beside_it(tmp_path):
    run = write_run(tmp_path / "a", init="timm", encoder=0.7, off_the_shelf=0.8)
    verdicts, tables, missing = read([run])
    assert verdicts == [
        ("warning", "No: it is worse than the weights it started from in the only score.")
    ]
    assert tables[0] == [["", OFF_THE_SHELF, "a"], ["kNN", "80.0%", "70.0%"]]
    assert missing == [
        "Not measured: raw pixels and the untrained encoder. To add: "
        f"smi evaluate {tmp_path / 'a'} --floors"
    ]


@pytest.mark.parametrize(
    ("probes", "level", "start"),
    [
        ([(0, 0.3), (4, 0.5)], "ok", "Yes: it is better than the untrained encoder."),
        ([(0, 0.3), (4, 0.31)], "warning", "Hardly: it is not clearly better than the untrained"),
        ([(0, 0.3), (4, 0.2)], "warning", "No: it is worse than the untrained encoder."),
        ([(4, 0.2)], "unknown", "Not measured: no probe compared"),
    ],
)
def test_without_an_evaluation_the_probes_judge(tmp_path, probes, level, start):
    run = write_run(tmp_path / "SMI", probes)
    verdicts, tables, missing = read([run])
    assert verdicts[0][0] == level
    assert verdicts[0][1].startswith(start)
    shown = [["", "before training", "now"], ["SMI, kNN", "30.0%", f"{probes[-1][1]:.1%}"]]
    assert tables == ([shown] if level != "unknown" else [])
    command = f"smi evaluate {tmp_path / 'SMI'} --floors"
    words = "Not measured: its accuracy, raw pixels and the untrained encoder. To add:"
    assert missing == [f"{words} {command}"]
    _, _, missing = read([run], unlabelled=["SMI"])
    assert missing[0].startswith("There is no accuracy, because the images have no labels.")
    assert missing[0].endswith(f"{command} --data LABELLED_IMAGES")


@pytest.mark.parametrize(
    ("best", "level", "sentence", "facts"),
    [
        (
            (2, 0.5),
            "ok",
            "Yes: it is better than the weights it started from.",
            "30.0% before training, 50.0% for the encoder of epoch 2, which is kept for this score",
        ),
        (
            (0, 0.3),
            "warning",
            "No: the run keeps the weights it started from, and no later encoder.",
            "30.0% before training; the best later probe had 20.0%",
        ),
    ],
)
def test_the_encoder_that_is_kept_is_judged(tmp_path, best, level, sentence, facts):
    run = write_run(tmp_path / "SMI", [(0, 0.3), (4, 0.2)], init="timm")
    step, score = best
    selected = {"criterion": "knn", "score": score, "images": 1000}
    header = {"about": {"step": step, "epoch": step}, "selected": selected}
    save_encoder(run.run.best, {"w": torch.zeros(1)}, header)
    blocks = list(quality_blocks([run], unlabelled=()))
    (verdict,) = [block for block in blocks if isinstance(block, Verdict)]
    assert (verdict.level, verdict.sentence) == (level, sentence)
    assert verdict.facts == f"kNN on 1,000 held-out images: {facts}"
    (table,) = [block.table for block in blocks if isinstance(block, TableBlock)]
    assert list(table.lines[0]) == ["SMI, kNN", "30.0%", f"{score:.1%}"]
    run.run.best.write_bytes(b"damaged")
    assert read([run])[0][0][0] == "unknown"
