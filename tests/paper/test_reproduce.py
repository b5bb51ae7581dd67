"""Run `smi reproduce` through its entry point at a scale of seconds, with runs in this process."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from smi.cli import main
from smi.comparison import compare
from smi.config.resolve import resolve
from smi.device import Runtime
from smi.errors import UserError
from smi.figures import catalogue as figures
from smi.losses.smi import SHIFT, TARGET
from smi.methods import METHOD_NAMES
from smi.pages import page as write_page
from smi.paper import outputs
from smi.paper import plan as plan_module
from smi.paper.outputs import Outputs
from smi.paper.page import reproduction_document
from smi.paper.plan import available_setups, make_plan, plan_comparisons
from smi.paper.reproduce import reproduce
from smi.paper.reproducible import ITEMS, list_items
from smi.paper.scales import SCALES, DatasetSetup, Scale

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
    (DatasetSetup("digits", "digits"),),
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
    """Make some items with two seeds: interrupted before the fourth run, resumed, one table."""
    monkeypatch = pytest.MonkeyPatch()
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

    def draw(name, sources, **options):
        if name == "ratio":
            raise UserError("it cannot be drawn")
        return figures.draw_figure(name, sources, **options)

    def save(figure, name, path):
        if path.suffix == ".svg":
            raise UserError(".svg takes a browser")
        figures.save_figure(figure, name, path)

    try:
        monkeypatch.setitem(SCALES, "tiny", TINY)
        monkeypatch.setattr(compare, "call", call)
        monkeypatch.setattr(outputs, "save_figure", save)
        monkeypatch.setattr(outputs, "draw_figure", draw)
        monkeypatch.setattr(outputs, "time_losses_in_turn", lambda batch, dim, device: TIMES)
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
    return out, codes, made


def test_an_interrupted_call_resumes_and_makes_only_missing_runs(reproduced):
    out, codes, (first, second, third) = reproduced
    assert codes == [130, 0, 0]
    # SMI at three λ, Barlow Twins, SMI by two processes; two seeds each
    assert [len(first), len(second), len(third)] == [3, 6 + 2 + 2, 10]
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
    first, *others, last = document["about"]["calls"]
    assert first.startswith("smi reproduce claims table-3 gradient-norm ratio --scale tiny")
    assert "7 runs made, 3 finished before" in first
    assert not others
    assert last.startswith("smi reproduce table-2 --scale tiny")
    assert last.endswith("no runs were missing")
    assert "**support.homemade.Net**" in (out / "tables" / "table-3.md").read_text()


def test_numbers_on_the_page_are_those_of_the_comparison(reproduced):
    out, _, _ = reproduced
    claims = {
        claim["name"]: claim for claim in json.loads((out / "claims.json").read_text())["claims"]
    }
    compared = json.loads((out / "digits" / "comparison-seeds" / "comparison.json").read_text())
    (finding,) = claims["accuracy"]["findings"]
    (difference,) = [d for d in compared["rows"][1]["differences"] if d["score"] == "linear-cached"]
    # There the difference is to SMI, here to Barlow Twins.
    assert finding["numbers"]["difference"]["mean"] == pytest.approx(-difference["mean"])
    assert f"{-100 * difference['mean']:+.1f} points" in (out / "index.html").read_text()


def test_the_page_opens_in_a_browser(reproduced, page):
    out, _, _ = reproduced
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto((out / "index.html").as_uri())
    assert page.locator("article.claim").count() == 9
    assert "smi reproduce table-2 --scale tiny" in page.locator("pre").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    links = page.eval_on_selector_all("a", "links => links.map(a => a.getAttribute('href'))")
    assert all((out / link).is_file() for link in links if not link.startswith("#"))
    assert all(
        page.locator(f"[id='{link[1:]}']").count() == 1 for link in links if link.startswith("#")
    )
    written = json.loads((out / "claims.json").read_text())["tables"]
    shown = page.locator("table.grouped").all()
    assert len(shown) == len(written) == 2
    for table, entry in zip(shown, written, strict=True):
        assert table.locator("tbody th, tbody td").all_text_contents() == [
            cell for row in entry["rows"] for cells in row for cell in cells
        ]
        assert all(table.locator(f"td.{kind}").count() > 0 for kind in ("paper", "here"))


def test_figures_are_drawn_on_the_page(reproduced, page):
    out, _, _ = reproduced
    page.goto((out / "index.html").as_uri())
    (figure,) = page.locator("figure").all()  # "ratio" could not be drawn
    figure.scroll_into_view_if_needed()
    figure.locator(".plot svg.main-svg").first.wait_for()
    assert "gradient-norm" in figure.locator("h3").inner_text()
    assert figure.locator("a").get_attribute("href") == "figures/gradient-norm.html"
    assert "Not made: it cannot be drawn." in page.locator(".missing").all_inner_texts()[-1]


ABOUT = {"title": "t", "introduction": "", "facts": {}, "calls": []}
EMPTY = {"about": ABOUT, "claims": [], "tables": [], "figures": [], "comparisons": []}


def test_figures_without_data_are_linked(page, tmp_path):
    """claims.json of an earlier version names files only."""
    figure = {"name": "a", "sentence": "a figure", "files": ["a figure.html"], "why": ""}
    path = tmp_path / "index.html"
    document = reproduction_document(EMPTY | {"figures": [figure]}, tmp_path)
    path.write_text(write_page(document), encoding="utf-8")
    page.goto(path.as_uri())
    assert page.locator("main a").get_attribute("href") == "a%20figure.html"


def test_everything_in_the_document_is_shown_as_text(page, tmp_path):
    bad = "<script>document.title = 'ran'</script>\"'&"
    finding = {"where": bad, "verdict": "holds", "sentence": bad, "headers": [bad], "rows": [[bad]]}
    claim = {"name": bad, "title": bad, "paper": bad, "measure": bad}
    table = {"name": bad, "title": bad, "file": bad, "groups": [[bad, [bad]]], "rows": [[[bad]]]}
    document = {
        "about": ABOUT | {"title": bad, "introduction": bad, "facts": {bad: bad}, "notes": [bad]},
        "claims": [claim | {"findings": [finding], "notes": [bad]}],
        "tables": [
            table | {"notes": [bad], "why": ""},
            {"name": "t", "title": bad, "file": "", "why": bad},
        ],
        "figures": [
            {"name": bad, "sentence": bad, "files": [bad], "plot": "", "why": ""},
            {"name": bad, "sentence": bad, "files": [], "plot": "", "why": bad},
        ],
        "comparisons": [
            {"name": bad, "title": bad, "files": [bad], "why": ""},
            {"name": bad, "title": bad, "files": [], "why": bad},
        ],
    }
    path = tmp_path / "index.html"
    written = write_page(reproduction_document(document, tmp_path))
    path.write_text(written, encoding="utf-8")
    page.goto(path.as_uri())
    assert page.title() == bad
    assert bad in page.locator("main").inner_text()
    assert page.locator("main script").count() == 0
    # A verdict is a word and a symbol.
    assert "✓ holds" in page.locator("article.claim").inner_text()


def test_the_list_names_every_item_and_scale():
    text = list_items().text()
    assert all(f"\n{name} " in f"\n{text}" for name in (*ITEMS, *SCALES))
    plain = json.loads(json.dumps(list_items().plain()))
    assert [item["name"] for item in plain["items"]] == list(ITEMS)
    assert [scale["name"] for scale in plain["scales"]] == list(SCALES)


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
def test_only_the_runs_that_items_need(names, expected, tmp_path):
    """Each comparison has the methods and seeds that the items need."""
    scale = SCALES["minutes"]
    plan = make_plan(names, scale, tmp_path, num_seeds=3, data=None, runtime=Runtime(device="cpu"))
    assert [
        (planned.kind, len(planned.methods), planned.num_seeds) for planned in plan.comparisons
    ] == expected
    if names == ["accuracy-std"]:
        assert plan.count_runs() == (len(scale.weights) + 1, 0)


def test_two_processes_are_started_by_torchrun(monkeypatch):
    started = {}

    class Process:
        returncode = 0

        def __init__(self, command, env, stdout):
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
        (["all", "--scale", "minutes", "--data", "."], "a folder needs --scale hours"),
        (["all", "--scale", "hours", "--data", "nowhere"], "'nowhere'"),
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


def test_missing_datasets_are_named(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    runtime = Runtime(device="cpu", root=tmp_path)
    setups, missing = available_setups(SCALES["paper"], None, runtime)
    assert [(setup.source, setup.kinds) for setup in setups] == [
        ("cifar10", ("seeds", "sweep", "two-processes"))
    ]
    assert [sentence.split()[0] for sentence in missing] == [
        "cifar100",
        "imagenette",
        "imagewoof",
        "imagenet",
    ]
    plan = make_plan(
        list(ITEMS), SCALES["paper"], tmp_path, num_seeds=3, data=None, runtime=runtime
    )
    assert [note.split()[2] for note in plan.notes] == [s.split()[0] for s in missing]
    why = Outputs(plan, {}).why_missing("table-1")
    assert "runs (every method, one seed) that this scale makes on imagenet" in why
    (tmp_path / "imagenette2-320").mkdir()
    setups, _ = available_setups(SCALES["hours"], None, runtime)
    assert [(setup.source, len(setup.kinds)) for setup in setups] == [
        ("cifar10", 4),
        ("imagenette", 1),
    ]


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_smi_has_the_loss_of_the_paper(scale):
    for setup in scale.datasets:
        settings = {**scale.settings, **setup.settings, "method": "SMI"}
        method = resolve(setup.recipe, settings).method
        assert (method["target"], method["shift"]) == (TARGET, SHIFT)
        if scale.name == "hours":
            assert method["redundancy_weight"] == "auto"  # the recipe's is for another shift


def test_imagenet_is_trained_on_all_gpus():
    imagenet = SCALES["paper"].datasets[-1]
    for num_gpus, expected in ((0, 1), (1, 1), (8, 8)):
        (planned,) = plan_comparisons(["table-1"], [imagenet], SCALES["paper"], 3, num_gpus)
        assert (planned.kind, planned.num_processes) == ("methods", expected)


def test_rivals_are_published_on_imagenet_and_identical_elsewhere():
    setups = {setup.source: setup for setup in SCALES["paper"].datasets}
    assert [name for name, setup in setups.items() if setup.published] == ["imagenet"]
    for name, said in (("table-1", "every method; as published"), ("table-3", "identical set")):
        planned = list(plan_comparisons([name], list(setups.values()), SCALES["paper"], 3))
        assert all(said in comparison.sentence for comparison in planned)
        for comparison in planned:
            grid = comparison.grid(Path("out"))
            assert {run.config.published for run in grid.runs} == {name == "table-1"}


def test_a_scale_lists_the_command_of_each_run(monkeypatch):
    monkeypatch.setattr(plan_module, "_count_gpus", lambda runtime: 8)
    listed = list_items(["table-1", "table-3"], scale="paper", out="r")
    commands = listed.text().partition("Runs:\n")[2].splitlines()
    assert list(listed.plain()["commands"]) == commands
    on_imagenet = [command for command in commands if " imagenet " in command]
    assert [command.split("--method=")[1].split()[0] for command in on_imagenet] == list(
        METHOD_NAMES
    )
    assert all(
        command.startswith("torchrun --nproc-per-node 8 -m smi pretrain imagenet ")
        and command.endswith(" published=true")
        for command in on_imagenet
    )
    others = [command for command in commands if command not in on_imagenet]
    assert len(others) == 4 * 2 * 3  # datasets, methods, seeds
    assert not any("published" in command for command in others)
    with pytest.raises(UserError, match="did you mean paper"):
        list_items(scale="papers")


def test_one_gpu_cannot_train_by_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "_count_gpus", lambda runtime: 1)
    plan = make_plan(
        ["claims"], SCALES["minutes"], tmp_path, num_seeds=3, data=None, runtime=Runtime("cpu")
    )
    assert [planned.kind for planned in plan.comparisons] == ["seeds", "sweep"]
    assert "SMI was not trained by two processes" in plan.notes[-1]


def test_the_function_is_quiet_and_returns_the_page(tmp_path, capfd):
    index = reproduce(["table-2"], scale="minutes", out=tmp_path / "r", quiet=True)
    assert index == tmp_path / "r" / "index.html"
    assert index.is_file()
    assert capfd.readouterr() == ("", "")


def test_entries_of_an_earlier_version_stay_on_the_page(tmp_path):
    """That version wrote neither `datasets` nor the data of figures."""
    index = reproduce(["table-2"], scale="minutes", out=tmp_path, quiet=True)
    path = tmp_path / "claims.json"
    document = json.loads(path.read_text())
    del document["about"]["datasets"]
    document["about"]["facts"] = {"Images": "digits (recipe digits)"}
    figure = {"name": "ratio", "sentence": "a ratio", "files": ["figures/ratio.html"], "why": ""}
    document["figures"] = [figure]
    path.write_text(json.dumps(document))
    reproduce(["table-2"], scale="minutes", out=tmp_path, quiet=True)
    document = json.loads(path.read_text())
    assert document["figures"] == [figure]
    assert document["about"]["facts"]["Datasets"] == "digits (recipe digits)"
    assert 'href="figures/ratio.html"' in index.read_text(encoding="utf-8")
