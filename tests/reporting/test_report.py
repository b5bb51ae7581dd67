"""Reports from the folders of runs to the page: all parts, missing parts, and comparisons."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from reporting.read_page import read_data, read_missing, read_titles
from smi.device import Runtime
from smi.errors import UserError
from smi.evaluation.evaluate import evaluate
from smi.reporting.document import ReportDocument
from smi.reporting.portrait import Portrait
from smi.reporting.report import report
from smi.reporting.runs import find_runs

ONE_WORKER = Runtime(num_workers=1)


def test_a_report_of_two_runs_has_every_part(runs, tmp_path, capsys):
    out = report(runs, tmp_path / "report.html")
    page, printed = out.read_text(encoding="utf-8"), capsys.readouterr().out
    assert f"{out}: 2 runs" in printed
    assert len(page.encode()) < 10_000_000
    assert {
        "Health",
        "Training setup",
        "Each run",
        "Loss",
        "kNN accuracy",
        "Gradient norm",
        "Feature standard deviation",
        "Redundancy ÷ alignment",
        "Effective rank",
        "Eigenspectrum of the features",
        "Variance of each feature",
        "3-D t-SNE of the features",
        "Accuracy against feature standard deviation",
        "Feature standard deviation and accuracy by dataset",
        "Images and their augmented views",
        "Positive pairs, sorted by dependency",
        "Loss landscape of a pair",
        "Nearest neighbours",
        "Energy maps of the encoders",
        "Accuracy on held-out images of digits",
    } <= set(read_titles(page))
    data = read_data(page)
    (sample,) = data["samples"].values()  # both runs show the same images
    assert len(sample["names"]) == len(sample["pictures"]) == 183
    assert [len(cloud["points"]) for cloud in data["clouds"]] == [183, 183]
    assert sample["classes"] == [str(digit) for digit in range(10)]
    captions = re.findall(r"<p>M = ([−\d.]+), ρ", page)
    dependencies = [float(number.replace("−", "-")) for number in captions]
    assert len(dependencies) == 24
    assert dependencies[:12] == sorted(dependencies[:12])
    assert "smi pretrain config.yaml --out runs/again" in page
    assert "redundancy_weight:" in page  # the complete configuration
    assert "--protocol linear`" not in page  # commands are code
    baselines, linear = read_missing(page.split("</noscript>")[1])
    command = f"smi evaluate {runs[0]} {runs[1]} --floors"
    assert baselines == f"Not measured: raw pixels and the untrained encoder. To add: {command}"
    assert "has no linear results yet" in linear  # the one figure with a slow evaluation


def test_a_quiet_report_prints_nothing(runs, tmp_path, capfd):
    assert report(runs, tmp_path / "report.html", quiet=True).is_file()
    assert capfd.readouterr() == ("", "")


def test_a_comparison_begins_with_its_tables_and_shows_one_seed_of_each_row(compared):
    page = (compared / "report.html").read_text()
    captions = re.findall(r"<caption><span>(.*?)</span></caption>", page)
    assert captions[:2] == [
        "Both seeds",
        "Differences to SMI in percentage points, paired by seed",
    ]
    titles = read_titles(page)
    assert titles[0] == "Scores, differences and costs"  # the figure
    assert titles.index("Both seeds") < titles.index("Health")
    assert page.count("how well neighbours predict clusters") == 1  # explained once
    assert "one run of each row is shown, seed 0." in page
    assert "smi pretrain digits --seed=1" in page
    data = read_data(page)
    loss = next(
        plot
        for plot in data["plots"]
        if [trace["name"] for trace in plot["data"][:3]] == ["SMI, seed 0", "SMI, seed 1", "SMI"]
    )
    assert [trace["name"] for trace in loss["data"][3:]] == [
        "Barlow Twins, seed 0",
        "Barlow Twins, seed 1",
        "Barlow Twins",
    ]
    assert [trace["showlegend"] for trace in loss["data"]] == [False, False, True] * 2
    colours = [trace["line"]["color"] for trace in loss["data"]]
    assert colours[0] == colours[2] != colours[3]
    summary = next(
        plot
        for plot in data["plots"]
        if any(trace.get("x") == ["SMI", "Barlow<br>Twins"] for trace in plot["data"])
    )
    intervals = ["± 0.0" in note["text"] for note in summary["layout"]["annotations"]]
    assert sum(intervals) == 2  # the second seed is a copy
    assert len(data["clouds"]) == 2


def test_runs_with_missing_parts_still_get_a_report(runs, tmp_path):
    unfinished, moved = runs
    about = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(json.dumps(about | {"status": "stopped: the loss is NaN"}))
    shutil.rmtree(unfinished / "checkpoints")
    shutil.rmtree(unfinished / "eval")
    lines = (unfinished / "metrics.jsonl").read_text().splitlines()
    last = json.dumps(json.loads(lines[0]) | {"loss": None})
    (unfinished / "metrics.jsonl").write_text("\n".join([*lines[:3], last]) + "\n")
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["data"]["source"] = str(tmp_path / "gone")
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    missing = read_missing(report(runs, tmp_path / "report.html").read_text())
    (encoder, *_) = [
        sentence for sentence in missing if sentence.startswith("Missing: SMI, digits.")
    ]
    assert f"{unfinished} has no checkpoint yet" in encoder
    (images, *_) = [
        sentence for sentence in missing if sentence.startswith("Missing: Barlow Twins, gone.")
    ]
    assert str(tmp_path / "gone") in images
    assert f"SMI, digits is not evaluated yet: smi evaluate {unfinished}" in missing


def test_images_without_labels_are_drawn_without_colours(runs, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for i, digit in enumerate(load_digits().images[:24]):
        picture = Image.fromarray((digit * 15).astype("uint8")).resize((20, 20))
        picture.save(folder / f"<b onclick=x>{i}.png")
    page = report(runs[:1], tmp_path / "report.html", data=folder, runtime=ONE_WORKER).read_text()
    (sample,) = read_data(page)["samples"].values()
    assert sample["labels"] is None
    assert sample["names"][0].startswith("<b onclick=x>")  # as text, never as HTML
    assert "<b onclick" not in page
    assert "The images have no labels to colour them by." in page


def test_every_part_says_so_if_an_encoder_diverged(runs, tmp_path):
    state = torch.load(runs[0] / "checkpoints" / "last.pt", weights_only=True)
    for name, weights in state["method"].items():
        if name.startswith("encoder.") and weights.is_floating_point():
            weights.fill_(torch.nan)
    torch.save(state, runs[0] / "checkpoints" / "last.pt")
    page = report(runs, tmp_path / "report.html").read_text()
    missing = read_missing(page)
    for start, words in (
        ("Not in “Eigenspectrum of the features”: SMI. ", "not finite"),
        ("Not in “Variance of each feature”: SMI. ", "not finite"),
        ("The embeddings of SMI are ", "so there are no pairs to show"),
        ("Features are not finite, so images have no nearest neighbours", "training diverged"),
        ("", "t-SNE has nothing to arrange"),
        ("", "so they have no energy"),
    ):
        matches = [sentence for sentence in missing if sentence.startswith(start)]
        assert any(words in sentence for sentence in matches), (start, missing)
    assert len(read_data(page)["clouds"]) == 1  # of the other run, which is intact


def test_names_that_are_not_text(runs, tmp_path):
    """The names of a folder, a class and a file are bytes on a disk."""
    folder = tmp_path / "caf\udce9"
    try:
        for i, digit in enumerate(load_digits().images[:36]):
            place = folder / ("val" if i % 3 == 0 else "train") / f"\udcff{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray((digit * 15).astype("uint8")).resize((20, 20))
            picture.save(place / f"{i}\udcfe.png")
    except OSError:
        pytest.skip("this file system requires names to be text")
    evaluate(runs[:1], protocols=["knn"], data=folder, runtime=ONE_WORKER)
    out = report(runs[:1], tmp_path / "report.html", data=folder, runtime=ONE_WORKER)
    page = out.read_text(encoding="utf-8")
    (sample,) = read_data(page)["samples"].values()
    assert sample["classes"] == ["\\udcff0", "\\udcff1"]
    assert sample["names"][0] == "val/\\udcff0/0\\udcfe.png"
    assert "Accuracy on held-out images of caf\\udce9" in read_titles(page)


@pytest.mark.parametrize(
    ("sources", "out", "sentence"),
    [
        (["nowhere"], "a.html", "there is no run or comparison nowhere"),
        (["."], "a.pdf", "must end in .html"),
        (["."], "nowhere/a.html", "there is no folder nowhere"),
        (["."], "folder.html", "folder.html is a folder"),
        ([], "a.html", "name the folder"),
        (["."], "a.html", "is not a run"),
        ([".", "../work"], "a.html", "is given twice"),
    ],
)
def test_a_mistake_is_one_sentence(sources, out, sentence, tmp_path, monkeypatch):
    (tmp_path / "work" / "folder.html").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(UserError, match=re.escape(sentence)):
        report(sources, out)


def test_the_command_refuses_before_it_computes(tmp_path):
    command = [sys.executable, "-m", "smi", "report", "nowhere", "--out", "report.html"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "there is no run or comparison nowhere" in result.stderr


def test_a_page_about_one_run_has_no_suffix_in_its_title(runs):
    report_runs, _ = find_runs(runs[:1])
    document = ReportDocument(report_runs, {}, {"SMI": Portrait({}, {"encoder": "none"})})
    assert document.build().title == "SMI on digits"


def test_thinning_leaves_fewer_images_in_the_cloud(compared):
    report_runs, comparisons = find_runs([compared])
    part = {
        "names": [f"image {i}" for i in range(10)],
        "pictures": ["data:image/png;base64,AA=="] * 10,
        "labels": list(range(10)),
        "classes": None,
        "of": "images",
        "data": "digits",
        "places": [[0.0, 0.0, float(i)] for i in range(10)],
    }
    portraits = {row: Portrait(part, {}) for row in ("SMI", "Barlow Twins")}
    document = ReportDocument(report_runs, comparisons, portraits)
    for thinning, count in ((1, 10), (4, 3)):
        built = document.build(thinning)
        (sample,) = built.samples.values()  # shared by both rows
        assert len(sample.names) == count
        chooser = next(block for block in built.tabs["Features"] if hasattr(block, "options"))
        (cloud,) = chooser.options["SMI"]
        assert [point[2] for point in cloud.points] == list(range(0, 10, thinning))
        assert ("One in 4 is shown" in cloud.caption) == (thinning == 4)


def test_a_report_in_a_browser(compared, page, drawn):
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{(compared / 'report.html').as_uri()}#training")
    page.wait_for_selector("[data-plot] path.js-line")
    page.click("#tab-images")
    page.wait_for_selector("img[src]")
    page.click("#tab-features")
    page.locator(".cloud > canvas").first.focus()
    page.keyboard.press("n")
    assert page.get_attribute("#card img", "src").startswith("data:image/")
    page.set_viewport_size({"width": 390, "height": 844})
    for tab in ("overview", "training", "features", "images", "evaluation", "settings"):
        page.click(f"#tab-{tab}")
        drawn()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
    page.set_viewport_size({"width": 1280, "height": 900})
    sheets = page.pdf(format="A4").count(b"/Type /Page\n")
    assert 4 < sheets < 14
