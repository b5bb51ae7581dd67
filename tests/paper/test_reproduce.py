"""`smi reproduce` through its entry point, at a scale of seconds: a network of a few hundred weights, runs made in this process."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from smi.cli import main
from smi.comparison import compare
from smi.comparison.compare import Place
from smi.errors import UserError
from smi.figures import catalogue as figures
from smi.methods import METHOD_NAMES
from smi.paper import reproduce
from smi.paper.page import page as write_page
from smi.paper.reproduce import ITEMS, SCALES, Scale, Setup, Work

TESTS = Path(__file__).parents[1]
SETTINGS = {
    "epochs": 1,
    "encoder": "support.homemade.Net",
    "data.images": 256,
    "log.every": 1,
    "log.probe_every": 0,
}
TINY = Scale(
    "tiny",
    "for tests",
    (Setup("digits", "digits"),),
    (0.01, 0.1, 1.0),
    ("linear-cached",),
    linear_epochs=1,
    settings=SETTINGS,
)
NAMES = ["claims", "table-3", "gradient-norm", "ratio"]
TIMES = {"SMI": (1.0, 1.1), "Barlow Twins, K × K": (9.0, 9.2), "Barlow Twins, N × N": (2.0, 2.1)}


def run(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["smi", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """Some of it, with two seeds: asked to stop before the fourth run, then left to finish, then asked for a table alone."""
    monkeypatch, threads = pytest.MonkeyPatch(), torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(TESTS)
    out, calls, codes = tmp_path_factory.mktemp("reproduced") / "r", [], []

    def call(words, processes=1):
        if len(calls) == 3 and not codes:
            return -signal.SIGINT
        calls.append(
            (
                processes,
                next(word for word in words if word.startswith("--out=")).split(f"{out}/")[1],
            )
        )
        return run(monkeypatch, *words)

    def draw(name, sources, **asked):
        if name == "ratio":
            raise UserError("it cannot be drawn")
        return figures.draw_figure(name, sources, **asked)

    def no_browser(figure, format):
        raise UserError(f".{format} takes a browser")

    try:
        monkeypatch.setitem(SCALES, "tiny", TINY)
        monkeypatch.setattr(compare, "call", call)
        monkeypatch.setattr(figures, "_image", no_browser)
        monkeypatch.setattr(reproduce, "draw_figure", draw)
        monkeypatch.setattr(reproduce, "race", lambda batch, dim, device: TIMES)
        made = []
        for names in (NAMES, NAMES, ["table-2"]):
            codes.append(
                run(
                    monkeypatch,
                    "reproduce",
                    *names,
                    "--scale",
                    "tiny",
                    "--seeds",
                    "2",
                    "--out",
                    str(out),
                )
            )
            made.append(list(calls))
    finally:
        monkeypatch.undo()
        torch.set_num_threads(threads)
    return out, codes, made


def test_stopped_it_goes_on_and_makes_only_what_is_missing(reproduced):
    out, codes, (first, second, third) = reproduced
    assert codes == [130, 0, 0]
    assert [len(first), len(second), len(third)] == [
        3,
        6 + 2 + 2,
        10,
    ]  # SMI at three λ, Barlow Twins, SMI by two processes
    assert len(set(second)) == len(second)
    assert second[-2:] == [
        (2, "digits/two-processes/runs/SMI/seed-0"),
        (2, "digits/two-processes/runs/SMI/seed-1"),
    ]
    assert {processes for processes, _ in second[:-2]} == {1}
    assert {path.name for path in out.iterdir()} == {
        "index.html",
        "claims.json",
        "cost.json",
        "tables",
        "figures",
        "digits",
    }


def test_the_document_has_every_claim_table_figure_and_comparison(reproduced):
    out, _, _ = reproduced
    document = json.loads((out / "claims.json").read_text())
    assert len(document["claims"]) == 9
    verdicts = {"holds", "does not hold", "not measurable at this scale"}
    assert all(
        finding["verdict"] in verdicts and finding["sentence"]
        for claim in document["claims"]
        for finding in claim["findings"]
    )
    assert {entry["name"] for key in ("tables", "figures") for entry in document[key]} | {
        "claims"
    } == {*NAMES, "table-2"}
    without = {
        entry["name"]: entry["why"]
        for key in ("tables", "figures")
        for entry in document[key]
        if entry["why"]
    }
    assert without == {"ratio": "it cannot be drawn."}
    assert len(document["comparisons"]) == 3
    files = [
        file
        for key in ("figures", "comparisons")
        for entry in document[key]
        for file in entry["files"]
    ]
    assert all(
        (out / file).is_file()
        for file in [*files, *(entry["file"] for entry in document["tables"])]
    )
    facts = document["about"]["facts"]
    assert facts["Command"].startswith("smi reproduce table-2 --scale tiny")
    assert "smi reproduce claims table-3 gradient-norm ratio --scale tiny" in facts["Before it"]
    assert "**support.homemade.Net**" in (out / "tables" / "table-3.md").read_text()


def test_numbers_on_the_page_are_those_of_the_comparison(reproduced):
    out, _, _ = reproduced
    claims = {
        claim["name"]: claim for claim in json.loads((out / "claims.json").read_text())["claims"]
    }
    compared = json.loads((out / "digits" / "comparison-seeds" / "comparison.json").read_text())
    (finding,) = claims["accuracy"]["findings"]
    (difference,) = [d for d in compared["rows"][1]["differences"] if d["score"] == "linear-cached"]
    assert finding["numbers"]["difference"]["mean"] == pytest.approx(
        -difference["mean"]
    )  # there to SMI, here from Barlow Twins
    assert f"{-100 * difference['mean']:+.1f} points" in (out / "index.html").read_text()


def test_the_page_opens_in_a_browser(reproduced, page):
    out, _, _ = reproduced
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto((out / "index.html").as_uri())
    assert page.locator("article").count() == 9
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    links = page.eval_on_selector_all("a", "found => found.map(a => a.getAttribute('href'))")
    assert all((out / link).is_file() for link in links if not link.startswith("#"))
    assert all(
        page.locator(f"[id='{link[1:]}']").count() == 1 for link in links if link.startswith("#")
    )
    written = json.loads((out / "claims.json").read_text())["tables"]
    shown = page.locator(".groups").all()
    assert len(shown) == len(written) == 2
    for table, entry in zip(shown, written, strict=True):
        assert table.locator("td").all_text_contents() == [
            cell for row in entry["rows"] for cells in row for cell in cells
        ]
        assert [table.locator(f"td.{kind}").count() > 0 for kind in ("paper", "here")] == [
            True,
            True,
        ]


def test_figures_are_shown_where_they_are_drawn(page, tmp_path):
    files = ["a figure.html", "a figure.svg"]
    (tmp_path / files[1]).write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="70" height="50"><circle r="9"/></svg>'
    )
    figure = {"name": "a", "sentence": "a figure", "files": files, "why": ""}
    about = {"title": "t", "introduction": "", "facts": {}}
    path = tmp_path / "index.html"
    path.write_text(
        write_page(
            {"about": about, "claims": [], "tables": [], "figures": [figure], "comparisons": []}
        ),
        encoding="utf-8",
    )
    page.goto(path.as_uri())
    picture = page.locator(".picture img")
    page.wait_for_function(
        "picture => picture.complete && picture.naturalWidth === 70", arg=picture.element_handle()
    )
    assert page.locator(".picture").get_attribute("href") == "a%20figure.html"


def test_whatever_is_in_the_document_is_text(page, tmp_path):
    bad = "<script>document.title = 'ran'</script>\"'&"
    finding = {"where": bad, "verdict": "holds", "sentence": bad, "headers": [bad], "rows": [[bad]]}
    document = {
        "about": {"title": bad, "introduction": bad, "facts": {bad: bad}, "notes": [bad]},
        "claims": [
            {
                "name": bad,
                "title": bad,
                "paper": bad,
                "measure": bad,
                "findings": [finding],
                "notes": [bad],
            }
        ],
        "tables": [
            {
                "name": bad,
                "title": bad,
                "file": bad,
                "groups": [[bad, [bad]]],
                "rows": [[[bad]]],
                "notes": [bad],
                "why": "",
            },
            {"name": "t", "title": bad, "file": "", "why": bad},
        ],
        "figures": [
            {"name": bad, "sentence": bad, "files": [bad], "why": ""},
            {"name": bad, "sentence": bad, "files": [], "why": bad},
        ],
        "comparisons": [{"name": bad, "title": bad, "files": [bad], "why": ""}],
    }
    path = tmp_path / "index.html"
    path.write_text(write_page(document), encoding="utf-8")
    page.goto(path.as_uri())
    assert page.title() == bad
    assert page.locator("script").count() == 0
    assert "✓ holds" in page.locator("article").inner_text()  # a verdict is a word and a symbol


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["table-2"], []),
        (["landscape"], [("seeds", 1, 1)]),
        (["gradient-norm", "ratio"], [("seeds", 2, 1)]),
        (["accuracy-std"], [("sweep", 2, 1)]),
        (["table-3", "landscape"], [("seeds", 2, 3)]),
        (["tsne", "eigenspectrum"], [("methods", 6, 1)]),
        (["table-1"], [("methods", len(METHOD_NAMES), 1)]),
        (["claims"], [("seeds", 2, 3), ("sweep", 2, 3), ("two-processes", 1, 3)]),
        (
            list(ITEMS),
            [
                ("seeds", 2, 3),
                ("sweep", 2, 3),
                ("methods", len(METHOD_NAMES), 1),
                ("two-processes", 1, 3),
            ],
        ),
    ],
)
def test_only_the_runs_that_names_need(names, expected, tmp_path):
    """Of each kind of comparison: methods and seeds."""
    scale = SCALES["minutes"]
    work = Work(scale, names, scale.sets, [], tmp_path, Place(None, "cpu", None), 3, "")
    assert [(part.kind, len(part.methods), part.seeds) for part in work.parts] == expected
    if names == ["accuracy-std"]:
        assert work._count() == (len(scale.weights) + 1, 0)


def test_two_processes_are_started_by_torchrun(monkeypatch):
    started = {}

    class Process:
        returncode = 0

        def __init__(self, command, env):
            started.update(command=command, env=env)

        def poll(self):
            return 0

        wait = poll

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(compare.subprocess, "Popen", Process)
    assert compare.call(["pretrain", "digits"], 2) == 0
    assert re.search(
        r" torch\.distributed\.run .*--nproc-per-node=2 -m smi pretrain digits$",
        " ".join(started["command"]),
    )
    assert int(started["env"]["OMP_NUM_THREADS"]) >= 1
    compare.call(["pretrain", "digits"])
    assert "torch.distributed.run" not in started["command"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tabel-1", "--scale", "minutes"], "did you mean table-1?"),
        (["claim", "--scale", "minutes"], "did you mean claims?"),
        (["all"], "choose a scale"),
        (["all", "--scale", "minute"], "did you mean minutes?"),
        (["all", "--scale", "hours", "--root", "."], "run `smi data cifar10 --root .` to download"),
        (["all", "--scale", "paper", "--root", "."], "the images are missing"),
        (
            ["all", "--scale", "paper", "--root", ".", "--data", "imagenet"],
            "imagenet cannot be downloaded without an account",
        ),
        (["all", "--scale", "minutes", "--data", "."], "a folder takes --scale hours"),
        (["all", "--scale", "hours", "--data", "nowhere"], "there is no set or folder 'nowhere'"),
        (["all", "--scale", "minutes", "--seeds", "0"], "1 or more"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_run(
    words, sentence, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "reproduce", *words, "--out", "x") == 2
    said = capfd.readouterr()
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_under_torchrun_it_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RANK", "0")
    assert run(monkeypatch, "reproduce", "--scale", "minutes", "--out", str(tmp_path / "x")) == 2
    assert "without torchrun" in capfd.readouterr().err


def test_of_sets_that_are_partly_there_the_others_are_named(tmp_path, monkeypatch):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    sets, missing = reproduce._at_hand(SCALES["paper"], None, Place(tmp_path, None, None))
    assert [(setup.source, setup.kinds) for setup in sets] == [
        ("cifar10", ("seeds", "sweep", "two-processes"))
    ]
    assert [sentence.split()[0] for sentence in missing] == [
        "cifar100",
        "imagenette",
        "imagewoof",
        "imagenet",
    ]
    work = Work(
        SCALES["paper"], list(ITEMS), sets, missing, tmp_path, Place(tmp_path, "cpu", None), 3, ""
    )
    assert "runs (every method, one seed) that this scale makes on imagenet" in work._why("table-1")
    (tmp_path / "imagenette2-320").mkdir()
    sets, _ = reproduce._at_hand(SCALES["hours"], None, Place(tmp_path, None, None))
    assert [(setup.source, len(setup.kinds)) for setup in sets] == [
        ("cifar10", 4),
        ("imagenette", 1),
    ]
