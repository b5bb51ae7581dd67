"""`smi report` from runs' folders to the page: all parts, missing parts, comparisons, and what is kept."""

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

import smi
from smi.errors import UserError
from smi.evaluation.evaluate import evaluate
from smi.reporting.document import Gathered
from smi.reporting.portrait import Painter, Portrait
from smi.reporting.report import report
from smi.reporting.runs import find

SETTINGS = {
    "method.widths": [32, 32],
    "encoder.channels": [8, 8, 16, 16],
    "views.size": 16,
    "data.images": 256,
    "log.every": 2,
}


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """Two methods of one epoch on digits, each also as a second seed that is a copy, in the folder of a comparison."""
    from smi.comparison.comparison import Comparison, Row, Trained

    folder = tmp_path_factory.mktemp("compared")
    rows = []
    for method in ("SMI", "BarlowTwins"):
        runs = []
        for seed in (0, 1):
            where = folder / "runs" / method / f"seed-{seed}"
            if seed == 0:
                smi.pretrain(
                    "digits",
                    out=where,
                    method=method,
                    encoder="resnet-small",
                    epochs=1,
                    batch_size=64,
                    settings=SETTINGS,
                )
                results = evaluate([where], protocols=["knn", "linear-cached"])[0][1]
            else:
                shutil.copytree(where.with_name("seed-0"), where)
                config = yaml.safe_load((where / "config.yaml").read_text())
                (where / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 1}))
            runs.append(
                Trained.read(
                    where, seed=seed, command=f"smi pretrain digits --seed={seed}", results=results
                )
            )
        rows.append(Row(method, None, method, tuple(runs), 1.5))
    Comparison(tuple(rows), (0, 1), None, {"recipe": "digits", "device": "here"}).write(folder)
    report([folder], folder / "report.html")  # what takes long is kept from here on
    return folder


@pytest.fixture
def runs(compared, tmp_path):
    """Copies that may be changed."""
    return [
        shutil.copytree(compared / "runs" / method / "seed-0", tmp_path / method)
        for method in ("SMI", "BarlowTwins")
    ]


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def titles(page):
    return re.findall(r"<h3>(.*?)</h3>|<caption>(.*?)</caption>", page)


def test_a_report_of_two_runs_has_every_part(runs, tmp_path, capsys):
    out = report(runs, tmp_path / "report.html")
    page, said = out.read_text(encoding="utf-8"), capsys.readouterr().out
    assert f"{out}: 2 runs" in said
    assert len(page.encode()) < 10_000_000
    found = {title or caption for title, caption in titles(page)}
    assert {
        "Health",
        "Each run",
        "Loss",
        "Accuracy of nearest neighbours",
        "Gradient norm",
        "Feature std",
        "Redundancy ÷ alignment",
        "Effective rank",
        "How many directions features use",
        "How evenly coordinates vary",
        "Features in three dimensions (t-SNE)",
        "Accuracy against feature std",
        "Feature std and accuracy",
        "Images, and what pretraining sees of them",
        "Positive pairs, sorted by dependency",
        "What a pair costs: the landscape of the objective",
        "Nearest neighbours",
        "Where encoders look: energy maps",
        "Accuracy on held-out images of digits",
    } <= found
    data = data_of(page)
    (sample,) = data["samples"].values()  # both runs are shown the same images
    assert (
        len(sample["names"]) == len(sample["pictures"]) == len(data["clouds"][0]["points"]) == 183
    )
    assert len(data["clouds"]) == 2
    assert sample["classes"] == [str(digit) for digit in range(10)]
    rho = [float(words.replace("−", "-")) for words in re.findall(r"<p>M = ([−\d.]+), ρ", page)]
    assert len(rho) == 24
    assert rho[:12] == sorted(rho[:12])
    assert "smi pretrain config.yaml --out runs/again" in page
    assert "redundancy_weight:" in page  # the whole configuration
    assert "--protocol linear`" not in page  # commands are code
    assert "has no linear results yet" in page  # the one figure whose evaluation takes longer


def test_what_took_long_is_kept_until_it_is_damaged_or_of_other_weights(
    runs, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        Painter,
        "paint",
        lambda self: Portrait({}, {"images": f"{self.run.folder.name} painted again"}),
    )
    kept = list((runs[0] / "figures").glob("portrait-*.json"))
    assert len(kept) == 1
    page = report(runs, tmp_path / "a.html").read_text()
    assert "painted again" not in page
    assert len(data_of(page)["clouds"]) == 2
    found = json.loads(kept[0].read_text())
    assert found["again"] is False
    kept[0].write_text(
        json.dumps(found | {"again": True})
    )  # images to pretrain on were; they may be there now
    assert "SMI painted again." in report(runs, tmp_path / "c.html").read_text()
    kept[0].write_text("{")  # cut short
    with (runs[1] / "checkpoints" / "last.pt").open("ab") as file:
        file.write(b"0")
    page = report(runs, tmp_path / "b.html").read_text()
    assert "SMI painted again." in page
    assert "BarlowTwins painted again." in page


def test_a_comparison_begins_with_its_tables_and_looks_into_one_seed_of_each_row(compared):
    page = (compared / "report.html").read_text()
    assert [caption for _, caption in titles(page) if caption][:2] == [
        "Mean and 95 % interval over 2 seeds",
        "Differences to SMI in percentage points, paired by seed",
    ]
    assert "one run is looked into here, seed 0" in page
    assert "smi pretrain digits --seed=1" in page
    data = data_of(page)
    loss = next(
        plot
        for plot in data["plots"]
        if "loss, between" in plot["layout"].get("yaxis", {}).get("title", {}).get("text", "")
    )
    ours, rival = (
        ["SMI, seed 0", "SMI, seed 1", "SMI"],
        ["Barlow Twins, seed 0", "Barlow Twins, seed 1", "Barlow Twins"],
    )
    assert [trace["name"] for trace in loss["data"]] == [*ours, *rival]
    assert [trace["showlegend"] for trace in loss["data"]] == [False, False, True] * 2
    assert (
        loss["data"][0]["line"]["color"]
        == loss["data"][2]["line"]["color"]
        != loss["data"][3]["line"]["color"]
    )
    summary = next(
        plot
        for plot in data["plots"]
        if any(trace.get("x") == ["SMI", "Barlow<br>Twins"] for trace in plot["data"])
    )
    assert (
        sum("± 0.0" in note["text"] for note in summary["layout"]["annotations"]) == 2
    )  # the second seed is a copy
    assert len(data["clouds"]) == 2


def test_runs_with_parts_missing_still_get_a_report(runs, tmp_path):
    unfinished, gone = runs
    about = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(json.dumps(about | {"status": "stopped: the loss is nan"}))
    shutil.rmtree(unfinished / "checkpoints")
    shutil.rmtree(unfinished / "eval")
    lines = (unfinished / "metrics.jsonl").read_text().splitlines()
    (unfinished / "metrics.jsonl").write_text(
        "\n".join([*lines[:3], json.dumps(json.loads(lines[0]) | {"loss": None})]) + "\n"
    )
    config = yaml.safe_load((gone / "config.yaml").read_text())
    config["data"]["source"] = str(tmp_path / "gone")
    (gone / "config.yaml").write_text(yaml.safe_dump(config))
    page = report(runs, tmp_path / "report.html").read_text()
    assert "has no checkpoint yet" in page
    assert re.search(r"there is no folder|is not a folder|There is no", page)
    assert f"smi evaluate {unfinished}" in page
    assert "was not evaluated yet" in page


def test_photographs_without_labels_have_a_cloud_without_colours(runs, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for i, digit in enumerate(load_digits().images[:24]):
        Image.fromarray((digit * 15).astype("uint8")).resize((20, 20)).save(
            folder / f"<b onclick=x>{i}.png"
        )
    page = report(runs[:1], tmp_path / "report.html", data=folder, num_workers=1).read_text()
    (sample,) = data_of(page)["samples"].values()
    assert sample["labels"] is None
    assert sample["names"][0].startswith("<b onclick=x>")  # as text: never as HTML
    assert "<b onclick" not in page
    assert "They have no labels to colour them by." in page


def test_of_an_encoder_that_diverged_every_part_says_so(runs, tmp_path):
    state = torch.load(runs[0] / "checkpoints" / "last.pt", weights_only=True)
    for name, weights in state["method"].items():
        if name.startswith("encoder.") and weights.is_floating_point():
            weights.fill_(torch.nan)
    torch.save(state, runs[0] / "checkpoints" / "last.pt")
    page = report(runs, tmp_path / "report.html").read_text()
    for sentence in (
        "Not in “How many directions features use”: SMI. The features of all images are the same (or not finite)",
        "Not in “How evenly coordinates vary”: SMI. The features of some images are not finite",
        "so t-SNE has nothing to arrange",
        "The embeddings of SMI are not finite, so there are no pairs to show",
        "Features are not finite, so no image is near another",
        "are not finite, so they have no energy",
    ):
        assert sentence in page
    assert len(data_of(page)["clouds"]) == 1  # of the other run, which is none the worse


def test_names_that_are_no_text(runs, tmp_path):
    """A name on a disk is bytes: of the folder, of a class and of a file."""
    folder = tmp_path / "caf\udce9"
    try:
        for i, digit in enumerate(load_digits().images[:36]):
            place = folder / ("val" if i % 3 == 0 else "train") / f"\udcff{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digit * 15).astype("uint8")).resize((20, 20)).save(
                place / f"{i}\udcfe.png"
            )
    except OSError:
        pytest.skip("this file system wants names to be text")
    evaluate(runs[:1], protocols=["knn"], data=folder, num_workers=1)
    page = report(runs[:1], tmp_path / "report.html", data=folder, num_workers=1).read_text(
        encoding="utf-8"
    )
    (sample,) = data_of(page)["samples"].values()
    assert sample["classes"] == ["\\udcff0", "\\udcff1"]
    assert sample["names"][0] == "val/\\udcff0/0\\udcfe.png"
    assert "Accuracy on held-out images of caf\\udce9" in page


@pytest.mark.parametrize(
    ("sources", "out", "sentence"),
    [
        (["nowhere"], "a.html", "there is no run or comparison nowhere"),
        (["."], "a.pdf", "must end in .html"),
        (["."], "nowhere/a.html", "there is no folder nowhere"),
        ([], "a.html", "name the folder"),
        (["."], "a.html", "is not a run"),
    ],
)
def test_a_mistake_is_a_sentence(sources, out, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(sentence)):
        report(sources, out)


def test_the_command_refuses_before_it_computes(tmp_path):
    words = [sys.executable, "-m", "smi", "report", "nowhere", "--out", "report.html"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "there is no run or comparison nowhere" in result.stderr


def test_one_run_alone_needs_no_choosing(runs):
    shown, _ = find(runs[:1])
    assert (
        Gathered(shown, {}, {"SMI": Portrait({}, {"encoder": "none"})}).document().title
        == "SMI on digits"
    )


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
