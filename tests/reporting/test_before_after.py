"""Reports of runs that started from weights: what training changed."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from reporting.read_page import read_data, read_missing, read_titles
from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.device import Runtime
from smi.figures.sample import Sample
from smi.reporting.before_after import kept_sentence, kept_texts, rotated_onto
from smi.reporting.portrait import (
    MAX_IMAGES,
    NUM_QUERIES,
    Portrait,
    PortraitMaker,
    _digest,
    load_portrait,
)
from smi.reporting.report import report
from smi.reporting.runs import ReportRun
from smi.reporting.start_portrait import StartPortraitMaker, load_start_portrait
from smi.runs.checkpoint import save_encoder
from smi.runs.run import Run
from support.browser import wait_until
from support.made_up import LEAST_CONFIG

CPU = torch.device("cpu")
SIDES = ("off the shelf", "adapted")


def read_overview(page):
    return re.search(r'id="overview".*?(?=<section class="panel")', page, re.DOTALL)[0]


def read_cells(page, title):
    """Return the rows of a table by its title."""
    table = re.search(rf"<caption><span>{title}</span></caption>.*?</table>", page, re.DOTALL)[0]
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", table)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", cells) for name, cells in rows}


def read_row_labels(page):
    """Return the labels of the rows of galleries."""
    return re.findall(r'<div class="row"><p>(.*?)</p>', page)


def test_a_report_opens_with_what_training_changed(adapted, tmp_path, monkeypatch):
    for maker in (PortraitMaker, StartPortraitMaker):
        monkeypatch.setattr(maker, "make", None)  # both portraits are saved
    page = report([adapted], tmp_path / "report.html").read_text()
    overview = read_overview(page)
    assert read_titles(overview)[:8] == [
        "Is it any good?",
        "Accuracy beside baselines, on held-out images of digits",
        "Before and after",
        "Accuracy on held-out images of digits",
        "Nearest neighbours, before and after",
        "3-D t-SNE, off the shelf",
        "3-D t-SNE, adapted",
        "Health",
    ]
    cells = read_cells(overview, "Accuracy on held-out images of digits")
    assert list(cells) == ["kNN", "linear", "1 label", "5 labels", "10 labels"]
    for before, after, gain in cells.values():
        difference, half = map(float, gain.split(" ± "))
        assert difference == pytest.approx(float(after[:-1]) - float(before[:-1]), abs=0.11)
        assert half > 0
    assert "unpaired although the images are the same, so it is too wide" in overview
    assert "paired by draw" in overview
    assert re.search(r"<p>Kept: the (start|encoder of epoch 1).*?</p>", overview)
    labels = read_row_labels(overview)
    assert len(labels) == 2 * NUM_QUERIES
    for i, label in enumerate(labels):
        assert re.fullmatch(rf"{SIDES[i % 2]}: \d of 5 of the same class", label)
    data = read_data(page)
    (sample,) = data["samples"].values()  # the same images and colours
    assert {cloud["sample"] for cloud in data["clouds"]} == set(data["samples"])
    before, after, features = (cloud["points"] for cloud in data["clouds"])
    assert len(before) == len(sample["names"]) == 183
    assert after == features  # as in the tab Features
    assert read_missing(overview) == []


def test_a_run_from_scratch_has_no_such_part(runs, tmp_path):
    page = report(runs[:1], tmp_path / "report.html").read_text()
    assert read_titles(read_overview(page))[0] == "Is it any good?"
    assert "efore and after" not in page.split("</style>")[1].split('<script type="app')[0]


def test_scores_that_are_missing_name_the_command(adapted, tmp_path):
    shutil.rmtree(adapted / "eval")
    overview = read_overview(report([adapted], tmp_path / "report.html").read_text())
    assert f"under one protocol: smi evaluate {adapted} --floors" in " ".join(
        read_missing(overview)
    )
    assert "Accuracy on held-out images" not in overview
    assert len(read_row_labels(overview)) == 2 * NUM_QUERIES


def test_images_without_labels_have_neighbours_and_clouds_only(adapted, tmp_path):
    shutil.rmtree(adapted / "eval")
    folder = tmp_path / "photographs"
    folder.mkdir()
    for i, digit in enumerate(load_digits().images[:24]):
        picture = Image.fromarray((digit * 15).astype("uint8")).resize((20, 20))
        picture.save(folder / f"{i}.png")
    runtime = Runtime(num_workers=1)
    page = report([adapted], tmp_path / "report.html", data=folder, runtime=runtime).read_text()
    overview = read_overview(page)
    assert read_row_labels(overview) == [*SIDES] * NUM_QUERIES
    assert len(read_data(page)["clouds"]) == 3
    (missing,) = read_missing(overview)
    assert missing.startswith("These images have no labels")
    assert missing.endswith(f"smi evaluate {adapted} --floors --data LABELLED_IMAGES")
    assert "same class" not in overview


def test_seeds_of_a_comparison_share_a_start(adapted, tmp_path):
    again = shutil.copytree(adapted, tmp_path / "again")
    config = yaml.safe_load((again / "config.yaml").read_text())
    (again / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 1}))
    for path in (again / "eval").glob("*off-the-shelf*.json"):
        path.unlink()  # evaluated together, one run holds the results of the start
    runs = tuple(
        TrainedRun(seed, str(run), "smi pretrain") for seed, run in enumerate((adapted, again))
    )
    Comparison((Row("SMI", None, "SMI", runs),), (0, 1), None, {}).write(tmp_path)
    overview = read_overview(report([tmp_path], tmp_path / "report.html").read_text())
    assert "Before and after" in read_titles(overview)
    assert "none over 2 seeds: both differences are shown" in overview
    assert "one run:" not in overview
    assert re.findall(r"<p>(SMI, seed \d)\. Kept", overview) == ["SMI, seed 0", "SMI, seed 1"]
    assert "one run of each row is shown, seed 0" in overview


def test_images_that_are_gone_leave_the_scores(adapted, tmp_path):
    shutil.rmtree(adapted / "figures")
    page = report([adapted], tmp_path / "report.html", data=tmp_path / "gone").read_text()
    overview = read_overview(page)
    assert "kNN" in read_cells(overview, "Accuracy on held-out images of digits")
    (missing,) = read_missing(overview)
    assert str(tmp_path / "gone") in missing


def test_a_start_that_is_gone_or_damaged_leaves_a_sentence(adapted, tmp_path):
    start = Run(adapted).start
    start.write_bytes(b"0")
    missing = read_missing(read_overview(report([adapted], tmp_path / "a.html").read_text()))
    assert all("start.safetensors is not a safetensors file" in reason for reason in missing)
    assert missing
    start.unlink()
    missing = read_missing(read_overview(report([adapted], tmp_path / "a.html").read_text()))
    assert any("has no start.safetensors" in reason for reason in missing)


def test_a_start_that_diverged_says_so(adapted, tmp_path):
    (saved,) = (adapted / "figures").glob("portrait-start-*.json")
    document = json.loads(saved.read_text())
    for name in ("places", "neighbours"):
        del document["parts"][name]
        document["missing"][name] = f"there are no {name}"
    document["digest"] = _digest(Portrait(document["parts"], document["missing"]))
    saved.write_text(json.dumps(document))
    overview = read_overview(report([adapted], tmp_path / "report.html").read_text())
    assert read_missing(overview) == ["There are no neighbours.", "There are no places."]


def test_a_saved_start_of_other_images_is_not_shown(adapted, tmp_path):
    (saved,) = (adapted / "figures").glob("portrait-start-*.json")
    document = json.loads(saved.read_text())
    document["parts"]["names"] = document["parts"]["names"][1:]
    document["digest"] = _digest(Portrait(document["parts"], document["missing"]))
    saved.write_text(json.dumps(document))
    overview = read_overview(report([adapted], tmp_path / "report.html").read_text())
    (missing,) = read_missing(overview)
    assert "of other images" in missing


# ------------------------------------------------------------------------------ portraits


def test_portraits_are_stored_by_their_weights(adapted):
    run = Run(adapted)
    sample = Sample("digits", run.facts.root, images=MAX_IMAGES)
    portrait = load_start_portrait(run, sample, CPU)
    assert set(portrait.parts) == {"names", "places", "neighbours"}
    own = load_portrait(run, sample, CPU)
    queries = [[row["query"] for row in each.parts["neighbours"]] for each in (portrait, own)]
    assert queries[0] == queries[1]
    saved = sorted((adapted / "figures").glob("*.json"))
    assert len(saved) == 2
    save_encoder(run.best, {"w": torch.zeros(1)}, {})  # newer than the checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PortraitMaker, "make", lambda self: own)
        load_portrait(run, sample, CPU)
    assert len(list((adapted / "figures").glob("portrait-*.json"))) == 3


# ------------------------------------------------------------------------------ words


def write_run(folder, *probes, best=None, status="finished", criterion="knn"):
    """Write a run of 4 steps in 2 epochs. probes: pairs of a step and its score."""
    (folder / "config.yaml").write_text(yaml.safe_dump(LEAST_CONFIG))
    (folder / "run.json").write_text(json.dumps({"steps_per_epoch": 2, "status": status}))
    lines = [{"step": step, "probe": {criterion: score, "images": 1000}} for step, score in probes]
    lines.append({"step": 4, "loss": 1.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if best is not None:
        step, score = best
        selected = {"criterion": criterion, "score": score, "images": 1000}
        header = {"about": {"step": step, "epoch": step / 2}, "selected": selected}
        save_encoder(folder / "best.safetensors", {"w": torch.zeros(1)}, header)
    return Run(folder)


@pytest.mark.parametrize(
    ("probes", "best", "status", "sentence"),
    [
        (
            [(0, 0.581), (2, 0.6), (4, 0.674)],
            (4, 0.674),
            "finished",
            "Kept: the encoder of epoch 2, kNN 67.4% on 1,000 held-out images; the start had "
            "58.1%.",
        ),
        (
            [(0, 0.581), (2, 0.55), (4, 0.57)],
            (0, 0.581),
            "finished",
            "Kept: the start itself, kNN 58.1% on 1,000 held-out images; the best later probe had "
            "57.0%.",
        ),
        (
            [(0, 0.581)],
            (0, 0.581),
            "training",
            "Kept so far: the start itself, kNN 58.1% on 1,000 held-out images; no later probe was "
            "made.",
        ),
        (
            [(0, 0.581), (4, 0.57)],
            None,
            "finished",
            "Kept: the encoder of the last step (epoch 2), kNN 57.0% on 1,000 held-out images; the "
            "start had 58.1%.",
        ),
        (
            [],
            None,
            "finished",
            "Kept: the encoder of the last step (epoch 2). No probe compared it with the start.",
        ),
    ],
)
def test_the_kept_encoder_is_named(probes, best, status, sentence, tmp_path):
    assert kept_sentence(write_run(tmp_path, *probes, best=best, status=status)) == sentence


def test_images_without_labels_are_probed_by_retrieval(tmp_path):
    probes = (0, 0.9), (4, 0.95)
    run = write_run(tmp_path, *probes, best=(4, 0.95), criterion="retrieval")
    expected = (
        "Kept: the encoder of epoch 2, retrieval 95.0% on 1,000 held-out images; the start had "
        "90.0%."
    )
    assert kept_sentence(run) == expected
    sentence, note = kept_texts([ReportRun("SMI", "SMI", run, str(tmp_path))])
    assert sentence.text == expected
    assert note.text.startswith("Retrieval: how often")
    run.best.unlink()
    assert "(epoch 2), retrieval 95.0% on 1,000" in kept_sentence(run)


def test_a_cloud_is_rotated_onto_another():
    target = np.random.default_rng(0).normal(size=(20, 3))
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    rotated = np.array(rotated_onto((target @ rotation + 5).tolist(), target.tolist()))
    assert rotated == pytest.approx(target - target.mean(axis=0), abs=1e-3)


# ------------------------------------------------------------------------------ in a browser


def test_before_and_after_side_by_side_and_on_a_phone(adapted_once, page, drawn):
    page.emulate_media(reduced_motion="reduce", color_scheme="dark")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((adapted_once.parent / "report.html").as_uri())
    lefts = "[...document.querySelectorAll('%s')].slice(0, 2).map(e => e.getBoundingClientRect())"
    for selector in (".gallery.beside .row", "#overview .cloud"):
        first, second = page.evaluate(lefts % selector)
        assert first["top"] == second["top"]
        assert first["right"] < second["left"]
    page.set_viewport_size({"width": 390, "height": 844})
    drawn()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for selector in (".gallery.beside .row", "#overview .cloud"):
        first, second = page.evaluate(lefts % selector)
        assert first["left"] == second["left"]
        assert first["bottom"] <= second["top"]
    fits = "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('#overview .scroll'))"
    assert page.evaluate(fits)  # the gain is in sight
    page.locator(".gallery.beside img").first.scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('.gallery.beside img').naturalWidth > 0")
