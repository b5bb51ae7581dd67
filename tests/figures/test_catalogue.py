"""Test drawing and writing figures: files, comparisons, mistakes and the command."""

import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
from plotly import graph_objects as go

from smi.cli import main
from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.errors import UserError
from smi.figures import catalogue
from smi.figures.catalogue import FIGURES, list_figures, runs_by_dataset, write_figure
from smi.paper.paper_tables import make_table
from support.made_up import write_run
from support.made_up_page import page_data


def test_runs_have_the_same_names_on_every_dataset(tmp_path):
    runs = [
        write_run(tmp_path / f"{data}{weight}", data=data, weight=weight)
        for data, weight in (("digits", 0.1), ("digits", 1.0))
    ]
    runs.append(write_run(tmp_path / "other", data="cifar10", weight=0.1))
    assert {data: list(names) for data, names in runs_by_dataset(runs).items()} == {
        "digits": ["SMI, λ = 0.1", "SMI, λ = 1"],
        "cifar10": ["SMI, λ = 0.1"],
    }


@pytest.fixture
def comparison(seeds, tmp_path):
    """Return the folder of a comparison that was made elsewhere and moved; one run failed."""
    shutil.copytree(seeds[0].folder.parents[1], tmp_path / "c" / "runs")
    rows = [
        Row(
            m,
            None,
            m,
            tuple(
                TrainedRun(
                    s, f"before/runs/{m}/seed-{s}", "", failed="NaN" * (m == "SMI" and s == 0)
                )
                for s in range(3)
            ),
        )
        for m in ("SMI", "BarlowTwins")
    ]
    Comparison(tuple(rows), (0, 1, 2), None, {}).write(tmp_path / "c")
    return tmp_path / "c"


def test_a_comparison_stands_for_its_finished_runs(comparison, tmp_path, capsys, monkeypatch):
    taken = []
    monkeypatch.setitem(
        FIGURES,
        "ratio",
        replace(FIGURES["ratio"], draw=lambda request: taken.append(request.runs) or go.Figure()),
    )
    monkeypatch.setitem(FIGURES, "tsne", replace(FIGURES["tsne"], draw=FIGURES["ratio"].draw))
    for name in ("ratio", "tsne"):
        write_figure(name, [comparison], tmp_path / "x.html")
        assert capsys.readouterr().err == "left out: SMI, seed 0, which failed\n"
    names = [[str(run.folder.relative_to(comparison / "runs")) for run in runs] for runs in taken]
    assert names[0] == [f"{m}/seed-{s}" for m in ("SMI", "BarlowTwins") for s in range(3)][1:]
    assert names[1] == ["SMI/seed-1", "BarlowTwins/seed-0"]  # figures that take long: first seeds
    assert "71.0 ± 2.5 (3)" in make_table("3", [comparison]).text()
    (comparison / "comparison.json").write_text("{}")
    with pytest.raises(UserError, match="does not describe a comparison"):
        write_figure("ratio", [comparison], tmp_path / "x.html")


def test_html_opens_without_a_network(pair, tmp_path):
    out = write_figure("ratio", [run.folder for run in pair], tmp_path / "ratio.html")
    text = out.read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", text)
    assert "<title>ratio</title>" in text
    assert len(text) > 1_000_000  # plotly.js is in it
    (drawn,) = page_data(text)["plots"]
    assert [t["name"] for t in drawn["data"]] == ["SMI", "Barlow Twins"]
    assert drawn["file"] == "ratio"
    assert [path.name for path in tmp_path.iterdir() if "ratio" in path.name] == ["ratio.html"]


def test_svg_and_png(pair, tmp_path, monkeypatch):
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))):
        pytest.skip("no Chrome or Chromium here")
    sources = [run.folder for run in pair]
    assert b"<svg" in write_figure("ratio", sources, tmp_path / "ratio.svg").read_bytes()[:100]
    monkeypatch.setattr(
        go.Figure, "to_image", lambda self, **how: json.dumps(how).encode()
    )  # a browser takes seconds
    assert json.loads(write_figure("ratio", sources, tmp_path / "ratio.png").read_bytes()) == {
        "format": "png",
        "scale": 3,
    }


def test_a_missing_kaleido_or_browser_is_named(pair, tmp_path, monkeypatch):
    sources = [run.folder for run in pair]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "kaleido", None)
        with pytest.raises(
            UserError,
            match=r"kaleido \(pip install 'smi-ssl\[figures\]'\) .*; \.html needs neither",
        ):
            write_figure("ratio", sources, tmp_path / "ratio.svg")
    pytest.importorskip("kaleido", reason="kaleido is not installed")

    def fail(*_, **__):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    monkeypatch.setattr(go.Figure, "to_image", fail)
    with pytest.raises(UserError, match=r"\.svg needs Chrome or Chromium.*\(\.html needs none\)"):
        write_figure("ratio", sources, tmp_path / "ratio.svg")
    assert not list(tmp_path.glob("ratio*"))


@pytest.mark.parametrize(
    ("name", "out", "sentence"),
    [
        ("ratoi", "x.html", "there is no figure 'ratoi': did you mean ratio\\?"),
        ("xyz", "x.html", "choose one of landscape, gradient-norm, "),
        ("ratio", "x.jpg", r"ends in \.html, \.svg, \.png or \.pdf"),
        ("ratio", "nowhere/x.html", "there is no folder"),
        ("accuracy-std", "x.html", "needs 2 runs or more, not 1"),
    ],
)
def test_mistakes_are_found_before_the_computation(
    pair, tmp_path, monkeypatch, name, out, sentence
):
    monkeypatch.setattr(catalogue, "Run", None)
    with pytest.raises(UserError, match=sentence):
        write_figure(name, [pair[0].folder], tmp_path / out)


def command(monkeypatch, *words):
    """Run a command and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["smi", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0


def test_the_command_draws(pair, tmp_path, monkeypatch, capsys):
    assert (
        command(
            monkeypatch,
            "figure",
            "gradient-norm",
            *(run.folder for run in pair),
            "--out",
            tmp_path / "g.html",
        )
        == 0
    )
    description = FIGURES["gradient-norm"].description
    assert capsys.readouterr().out == f"{tmp_path / 'g.html'}: {description}\n"
    assert (tmp_path / "g.html").stat().st_size > 1_000_000


def test_the_command_lists_and_refuses(pair, monkeypatch, capsys):
    assert command(monkeypatch, "figure", "--list") == 0
    text = capsys.readouterr().out
    assert text == f"{list_figures().text()}\n"
    assert [line.split()[0] for line in text.splitlines()] == list(FIGURES)
    assert list_figures().plain()[-1] == {
        "figure": "tsne",
        "description": FIGURES["tsne"].description,
    }
    for words in (
        ("figure",),
        ("figure", "ratio", pair[0].folder),
        ("figure", "linear-curves", pair[0].folder, "--out", "x.html"),
    ):
        assert command(monkeypatch, *words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_quiet_says_nothing(pair, tmp_path, capsys):
    write_figure("ratio", [run.folder for run in pair], tmp_path / "ratio.html", quiet=True)
    assert capsys.readouterr().out == ""


def test_names_in_figures_are_shown_as_letters(tmp_path):
    """Plotly reads links in its texts."""
    run = write_run(tmp_path / "a", data="<a href='javascript:hurt()'>x")
    path = write_figure("feature-std", [run.folder], tmp_path / "a.html")
    text = path.read_text(encoding="utf-8")
    assert "<a href='javascript" not in text
    (drawn,) = page_data(text)["plots"]
    captions = [note["text"] for note in drawn["paper"]["annotations"]]
    assert len(captions) == 1
    assert "&lt;a href='javascript:hurt()'&gt;x" in captions[0]
    assert "<a" not in json.dumps(drawn)
