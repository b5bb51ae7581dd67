"""Compare methods through the real command: on the digits, with a network of a few weights."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

import smi
import smi.comparison.compare
from smi.cli import main
from smi.comparison.compare import START, ComparisonStopped, Launch, call, compare
from smi.comparison.comparison import Comparison
from smi.comparison.grid import plan_grid
from smi.config.resolve import read_recipe
from smi.config.schema import read_text
from smi.device import Runtime, describe_device
from smi.errors import UserError
from smi.runs.checkpoint import save
from smi.terminal import aside, quietly
from support.digits import SMI, TESTS, environment
from support.forked import Forked
from support.homemade import Net
from support.quick import make_quick
from support.two_processes import finish

OVERRIDES = {
    "encoder": "support.homemade.Net",
    "epochs": 1,
    "log.probe_every": 0,
    "data.images": 512,
}
WIDTHS = {"method.widths": [16, 16]}
SHORT = {
    "recipe": "digits",
    "protocols": ["knn", "linear-cached"],
    "overrides": OVERRIDES | WIDTHS,
}
ADAPT = SHORT | {"overrides": OVERRIDES | WIDTHS | {"init": "net.pth"}}  # also from weights
LONG = SHORT | {"overrides": OVERRIDES | WIDTHS | {"epochs": 8, "log.every": 1}}  # as ARGUMENTS
ARGUMENTS = [
    *["--encoder", "support.homemade.Net"],
    *["--protocol", "knn", "linear-cached"],
    *["--epochs", "8"],
    *["--method.widths", "[16, 16]"],
    *["--log.probe_every", "0"],
    *["--log.every", "1"],
    "--data.images=512",
]


@pytest.fixture(autouse=True)
def _our_modules(monkeypatch):
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def _quick(monkeypatch):
    make_quick(monkeypatch)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the files that training and evaluation write, with their times."""
    names = ("metrics.jsonl", "last.pt", "encoder.safetensors")
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in (folder / "runs").rglob("*")
        if path.name in names or path.parent.name == "eval"
    }


def count_metrics(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def losses(metrics: bytes) -> list[float]:
    return [json.loads(line)["loss"] for line in metrics.splitlines()]


def runs_started(output: str) -> list[str]:
    return [line.split(" (")[0] for line in output.splitlines() if line.startswith("run ")]


def test_a_folder_with_other_content_is_refused(tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    with pytest.raises(UserError, match=r"photos is not empty, and is not a comparison \(cats is"):
        compare(["SMI"], out=tmp_path / "photos", **SHORT)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="is a file: give a folder to write the comparison to"):
        compare(["SMI"], out=tmp_path / "notes.txt", **SHORT)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cats"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Stop a comparison in its first run as Ctrl-C in a terminal does; finish it in Python.

    Two methods, two seeds. Returns the folder, (exit code, stdout, stderr) of both, and the files
    after each.
    """
    out = tmp_path_factory.mktemp("comparison") / "c"
    words = ["compare", "digits", "--methods", "SMI", "BarlowTwins", "--seeds", "2"]
    words += ["--out", str(out), *ARGUMENTS]
    process = Forked(*SMI, *words, env=environment(), cwd=TESTS, leads=True)
    try:
        while process.poll() is None and count_metrics(out / "runs" / "SMI" / "seed-0") < 3:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        (stopped,) = finish([process])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    first = files(out)
    resumed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(resumed):
        make_quick(patch)
        print(compare(["SMI", "BarlowTwins"], seeds=2, out=out, **LONG).text())
    outputs = [stopped, (0, resumed.getvalue(), "")]
    return out, outputs, [first, files(out)]


def test_an_interrupted_comparison_is_resumed(interrupted):
    out, outputs, (before, after) = interrupted
    (code, first, errors), (_, second, _) = outputs
    assert code == 130, outputs
    assert "Traceback" not in errors  # warnings about health may be there
    assert "run 1/4: SMI, seed 0\n" in first
    assert "stopped in run 1 of 4; rerun the command to resume" in first
    assert "after step" in second
    assert runs_started(second) == [
        "run 1/4: SMI, seed 0",
        "run 2/4: BarlowTwins, seed 0",
        "run 3/4: SMI, seed 1",
        "run 4/4: BarlowTwins, seed 1",
    ]
    assert " left)" in second
    (metrics,) = [lines for name, (_, lines) in before.items() if name.endswith("metrics.jsonl")]
    resumed = losses(after["runs/SMI/seed-0/metrics.jsonl"][1])
    assert len(resumed) > len(losses(metrics))
    assert resumed[: len(losses(metrics))] == losses(metrics)  # not from the beginning
    names = {"runs", "comparison.json", "table.md", "table.csv"}
    assert {path.name for path in out.iterdir()} == names


def test_a_signal_to_the_comparison_alone_reaches_the_run(tmp_path, monkeypatch):
    """The process runs a module in place of `smi` that waits for the signal."""
    (tmp_path / "smi.py").write_text(
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    open(sys.argv[1] + '/stopped', 'w')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "open(sys.argv[1] + '/started', 'w')\n"
        "time.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finished = threading.Event()

    def stop():
        while not (tmp_path / "started").is_file() and not finished.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        assert call([str(tmp_path)]) == -signal.SIGTERM
    finally:
        finished.set()
        thread.join()
    assert (tmp_path / "stopped").is_file()


def test_the_exit_code_of_a_run_is_returned_and_its_output_can_be_silenced(
    tmp_path, monkeypatch, capfd
):
    (tmp_path / "smi.py").write_text("import sys; print('hello'); sys.exit(int(sys.argv[1]))")
    monkeypatch.syspath_prepend(tmp_path)
    assert [call([code]) for code in ("0", "2")] == [0, 2]
    assert capfd.readouterr().out == "hello\nhello\n"
    with quietly():
        assert call(["3"]) == 3
    assert capfd.readouterr().out == ""
    with aside():
        assert call(["3"]) == 3
    assert capfd.readouterr() == ("", "hello\n")


def test_json_csv_markdown_and_text_have_the_same_numbers(interrupted, smi_here):
    out, outputs, _ = interrupted
    document = json.loads((out / "comparison.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["SMI", "BarlowTwins"]
    first, second = document["rows"]
    scores = [score["score"] for score in first["scores"]]
    assert scores == ["kNN", "linear-cached", "linear-cached top-5"]
    for row in document["rows"]:
        assert row["step_ms"] > 0
        assert row["loss_share"] == row["loss_ms"] / row["step_ms"] > 0  # a machine may be busy
        assert 100 < row["peak_mb"] < 2000
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        for run in row["runs"]:
            assert {score["stamp"] for score in run["results"]} == {
                protocol["stamp"] for protocol in document["protocols"]
            }
    with (out / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert float(lines[1]["kNN mean"]) == second["scores"][0]["mean"]
    assert float(lines[1]["kNN difference low"]) == second["differences"][0]["low"]
    assert float(lines[0]["linear-cached difference"]) == 0
    markdown, printed = (out / "table.md").read_text(), outputs[-1][1]
    both, apart = first["scores"][0]["values"], second["differences"][0]["values"]
    for text in (markdown, printed):
        assert " and ".join(f"{value:.1%}" for value in both) in text
        assert " and ".join(f"{100 * value:+.1f}" for value in apart) in text
        assert f"stamp {document['protocols'][0]['stamp']}" in text
    assert smi_here("table", "comparison", out).stdout.strip() in printed  # read again
    assert smi_here("table", "comparison", out, "--markdown").stdout.strip() == markdown.strip()


def test_scores_are_those_of_the_runs(interrupted):
    out, _, _ = interrupted
    document = json.loads((out / "comparison.json").read_text())
    for row in document["rows"]:
        values = []
        for run in row["runs"]:
            (path,) = Path(run["folder"]).glob("eval/knn-*.json")
            values.append(json.loads(path.read_text())["scores"][0]["value"])
            assert smi.Run(run["folder"]).config["seed"] == run["seed"]
            assert run["command"].startswith("smi pretrain digits ")
        assert row["scores"][0]["mean"] == pytest.approx(np.mean(values))


@pytest.mark.usefixtures("_quick")
def test_an_extended_comparison_makes_only_the_missing_runs(interrupted, capfd):
    out, _, (_, before) = interrupted
    comparison = compare(["SMI", "barlowtwins", "VICReg"], seeds=1, out=out, **LONG)
    output = capfd.readouterr().out
    assert "2 of 3 runs exist already" in output
    (line,) = [line for line in output.splitlines() if line.startswith("run ")]
    # estimated from the steps of the existing runs
    assert re.fullmatch(r"run 3/3: VICReg, seed 0 \(about \d+ s left\)", line)
    after = files(out)
    assert all(after[name] == value for name, value in before.items())
    assert [row.name for row in comparison.rows] == ["SMI", "BarlowTwins", "VICReg"]
    assert "one seed: there are no intervals" in comparison.text()
    assert "±" not in comparison.text().split("knn on")[0]


@pytest.mark.usefixtures("_quick")
def test_tables_are_complete_while_a_comparison_is_extended(interrupted, tmp_path, monkeypatch):
    """Of two new runs one fails and one is stopped; the order of their rows does not matter."""
    out, _, _ = interrupted
    snapshots, codes = [], iter((1, -signal.SIGINT))

    def snapshot(arguments, processes):
        rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
        snapshots.append(
            {row["name"]: sum(bool(run["results"]) for run in row["runs"]) for row in rows}
        )
        return next(codes)

    monkeypatch.setattr(smi.comparison.compare, "call", snapshot)
    methods = ["SimCLR", "SMI", "BarlowTwins", "MoCoV2"]
    with pytest.raises(ComparisonStopped) as stopped:
        compare(methods, seeds=2, out=out, tables=tmp_path, **LONG)
    assert stopped.value.exit_code == 130
    assert snapshots == [{"SimCLR": 0, "SMI": 2, "BarlowTwins": 2, "MoCoV2": 0}] * 2
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [(line["name"], line["kNN seeds"]) for line in lines] == [
        ("SimCLR", ""),
        ("SMI", "2"),
        ("BarlowTwins", "2"),
        ("MoCoV2", ""),
    ]
    assert re.search(r"^\| SMI \| [\d.]+% and ", (tmp_path / "table.md").read_text(), re.MULTILINE)


@pytest.mark.usefixtures("_quick")
def test_the_time_of_a_loss_is_reused_for_the_same_runs_on_the_same_machine(
    interrupted, tmp_path, monkeypatch
):
    shutil.copytree(
        interrupted[0] / "runs" / "SMI" / "seed-0", tmp_path / "runs" / "SMI" / "seed-0"
    )
    # a run of Barlow Twins does not exist and cannot be made
    monkeypatch.setattr(smi.comparison.compare, "call", lambda arguments, processes: 1)

    def loss_times(device):
        document = json.loads((interrupted[0] / "comparison.json").read_text())
        document |= {"device": device}
        document["rows"] = [row | {"loss_ms": 1e6} for row in document["rows"][:2]]
        (tmp_path / "comparison.json").write_text(json.dumps(document))
        comparison = compare(["SMI", "BarlowTwins"], seeds=1, out=tmp_path, **LONG)
        return [row.loss_ms for row in comparison.rows]

    assert loss_times(describe_device()) == [1e6, None]
    measured, missing = loss_times("another machine")
    assert 0 < measured < 1e6
    assert missing is None


@pytest.mark.usefixtures("_quick")
def test_gpu_memory_is_released_before_the_next_run(interrupted, tmp_path, monkeypatch):
    """Evaluation takes memory in this process, and training in another."""
    events = []
    real_evaluate = smi.comparison.compare.evaluate

    def evaluate(sources, **arguments):
        events.extend("evaluate" for _ in sources)
        return real_evaluate(sources, **arguments)

    def train(arguments, processes):
        events.append("train")
        return -signal.SIGTERM

    monkeypatch.setattr(smi.comparison.compare, "evaluate", evaluate)
    monkeypatch.setattr(
        smi.comparison.compare, "release_memory", lambda device: events.append("release")
    )
    monkeypatch.setattr(smi.comparison.compare, "call", train)
    with pytest.raises(ComparisonStopped):
        compare(
            ["SMI", "BarlowTwins", "SimCLR"],
            seeds=1,
            out=interrupted[0],
            tables=tmp_path,
            **LONG,
        )
    assert events == ["evaluate", "release", "evaluate", "release", "train"]


@pytest.mark.usefixtures("_quick")
def test_a_quiet_comparison_prints_nothing(interrupted, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(smi.comparison.compare, "call", lambda arguments, processes: 1)
    out = interrupted[0]
    comparison = compare(["SMI", "SimCLR"], seeds=1, out=out, tables=tmp_path, quiet=True, **LONG)
    assert capfd.readouterr() == ("", "")
    assert [name for name, _ in comparison.failed] == ["SimCLR"]


def test_images_of_one_class_are_refused_before_any_run(tmp_path, monkeypatch):
    for place in ("train/cat", "val/cat", "val/dog"):
        (tmp_path / "pets" / place).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "pets" / place / f"{i}.png")
    monkeypatch.setattr(
        smi.comparison.compare, "call", lambda arguments, processes: pytest.fail("a run was made")
    )
    with pytest.raises(
        UserError, match=r"^methods are compared by how well .*pets has only one class$"
    ):
        compare(
            ["SMI"],
            recipe="digits",
            data=tmp_path / "pets",
            out=tmp_path / "c",
            overrides={"batch_size": 4, "encoder": "support.homemade.Net"},
            runtime=Runtime(num_workers=1),
        )
    assert not (tmp_path / "c").exists()


def test_another_configuration_is_refused_and_named(interrupted, capfd):
    out, _, (_, before) = interrupted
    shorter = LONG | {"overrides": LONG["overrides"] | {"epochs": 3}}
    with pytest.raises(
        UserError,
        match=r"^SMI, seed 0: .* with a different configuration \(epochs is 8 in the folder, 3 ",
    ):
        compare(["SMI", "BarlowTwins"], seeds=2, out=out, **shorter)
    assert capfd.readouterr().out == ""
    assert all(files(out)[name] == value for name, value in before.items())


@pytest.mark.usefixtures("_quick")
def test_a_sweep_in_which_a_run_fails(tmp_path, capsys, smi_here):
    """The other runs are made; the failed one is noted and not tried again."""
    given = SHORT | {"protocols": ["knn"], "overrides": OVERRIDES}
    given |= {"out": tmp_path / "c", "seeds": 1}
    methods = ["support.homemade.Agreement", "PIRL"]
    compare(methods[:1], sweep="fails_at=0", **given)
    assert "run 1/1: support.homemade.Agreement, fails_at=0.0, seed 0" in capsys.readouterr().out
    comparison = compare(methods, sweep="method.fails_at=0,2", **given)
    assert runs_started(capsys.readouterr().out) == [
        "run 2/3: support.homemade.Agreement, fails_at=2.0, seed 0",
        "run 3/3: PIRL, seed 0",  # a method without the setting is run once
    ]
    assert [row.name for row in comparison.rows] == [
        "support.homemade.Agreement, fails_at=0.0",
        "support.homemade.Agreement, fails_at=2.0",
        "PIRL",
    ]
    ((name, run),) = comparison.failed
    assert name == "support.homemade.Agreement, fails_at=0.0"
    assert run.failed == run_status(run.folder).removeprefix("stopped: ")
    (column,) = comparison.columns
    scores = [comparison.score(row, column) for row in comparison.rows]
    assert [score is None for score in scores] == [True, False, False]
    assert comparison.difference(comparison.rows[1], column) is None  # to the failed row
    arguments = ["--methods", *methods, "--sweep", "fails_at=0,2", "--seeds", "1"]
    arguments += ["--encoder", "support.homemade.Net", "--epochs", "1", "--protocol", "knn"]
    arguments += ["--log.probe_every=0", "--data.images=512", "--out", tmp_path / "c"]
    result = smi_here("compare", "digits", *arguments)
    assert result.returncode != 0
    assert "1 of 3 runs failed" in result.stderr
    assert "failed: support.homemade.Agreement, fails_at=0.0, seed 0: " in result.stdout
    assert f"written to {tmp_path / 'c'}: table.md" in result.stdout


def run_status(folder: str) -> str:
    return json.loads((Path(folder) / "run.json").read_text())["status"]


@pytest.mark.usefixtures("_quick")
def test_a_run_that_cannot_be_evaluated_does_not_stop_the_others(interrupted, monkeypatch):
    """For example, the features of an encoder may be NaN although its loss is not."""
    out, _, _ = interrupted
    real_evaluate = smi.comparison.compare.evaluate

    def evaluate(sources, **arguments):
        if any("SMI" in str(source) for source in sources):
            raise UserError("some features are not finite")
        return real_evaluate(sources, **arguments)

    monkeypatch.setattr(smi.comparison.compare, "evaluate", evaluate)
    comparison = compare(["SMI", "BarlowTwins"], seeds=1, out=out, **LONG)
    assert [(name, run.failed) for name, run in comparison.failed] == [
        ("SMI", "it could not be evaluated: some features are not finite")
    ]
    assert comparison.score(comparison.rows[1], comparison.columns[0]) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stops orphaned runs")
def test_a_run_stops_when_the_comparison_is_killed(tmp_path):
    """Otherwise it would train on, unseen, and block the next attempt."""
    (tmp_path / "smi.py").write_text(
        "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys;subprocess.Popen([sys.executable, '-c', sys.argv[1], 'smi']).wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, START],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    pid = tmp_path / "pid"
    try:
        while process.poll() is None and not (pid.is_file() and pid.read_text()):
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    child = Path("/proc") / pid.read_text()
    deadline = time.monotonic() + 20

    def is_running():
        return child.is_dir() and "(zombie)" not in (child / "status").read_text()

    while is_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running()


def test_how_runs_are_launched_is_part_of_their_command(tmp_path):
    launch = Launch(loggers=("csv",), compiled=True, processes=2)
    arguments = launch.arguments(Runtime("cpu", tmp_path, 3))
    assert arguments == [
        f"--root={tmp_path}",
        "--device=cpu",
        "--num-workers=3",
        "--log-to=csv",
        "--compile",
    ]
    assert Launch().arguments(Runtime()) == []
    (run,) = plan_grid(
        "digits", {}, methods=["SMI"], seeds=[0], sweep=None, folder=tmp_path, arguments=arguments
    ).runs
    assert Launch().command(run) == run.command
    assert launch.command(run).startswith("torchrun --nproc-per-node 2 -m smi pretrain digits ")


@pytest.mark.usefixtures("_quick")
def test_each_method_as_published(tmp_path, capsys):
    recipe = tmp_path / "mine.yaml"
    settings = read_recipe("digits")
    settings["as_published"] = {
        "SMI": {},
        "SimSiam": {
            "optimizer": {"name": "SGD", "lr": 0.1, "weight_decay": 0, "constant_lr": "predictor"},
            "batch_size": 32,
        },
    }
    recipe.write_text(yaml.safe_dump(settings))
    arguments = SHORT | {"recipe": recipe, "seeds": 1, "out": tmp_path / "out"}
    comparison = compare(["SMI", "SimSiam"], published=True, **arguments)
    assert comparison.published
    assert "published: each method as its authors train it" in comparison.text()
    runs = [smi.Run(row.runs[0].folder).config for row in comparison.rows]
    assert [config["published"] for config in runs] == [True, True]
    assert [config["batch_size"] for config in runs] == [64, 32]
    assert [config["optimizer"]["name"] for config in runs] == ["AdamW", "SGD"]
    assert all(" published=true" in row.runs[0].command for row in comparison.rows)
    with pytest.raises(UserError, match="published is True in the folder, False was requested"):
        compare(["SMI", "SimSiam"], **arguments)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Compare two methods that start from weights, by a relative path; return the folder."""
    home = tmp_path_factory.mktemp("adapted")
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        patch.chdir(home)
        save(home / "net.pth", dict(Net().state_dict()))
        comparison = compare(["SMI", "SimCLR"], seeds=2, out="c", quiet=True, **ADAPT)
    return home, comparison


def test_methods_that_start_from_weights_are_compared_with_the_start(adapted):
    home, comparison = adapted
    start = comparison.off_the_shelf
    runs = [smi.Run(home / run.folder) for row in comparison.rows for run in row.runs]
    assert {run.config["init"]["digest"] for run in runs} == {start.digest}
    assert (
        {run.config["init"]["source"] for run in runs} == {str(home / "net.pth")} == {start.source}
    )
    evaluation = smi.evaluate(runs[0], protocols=["knn"], floors=True, quiet=True)
    (score,) = [
        results[0].scores[0].value
        for name, results in evaluation.rows
        if name.endswith("off the shelf")
    ]
    knn = comparison.columns[0]
    assert comparison.start_score(knn) == score
    for row in comparison.rows:
        gains = [value - score for value in comparison.values(row, knn).values()]
        assert comparison.gain(row, knn).mean == pytest.approx(np.mean(gains))
    assert "off the shelf" in (home / "c" / "table.md").read_text()
    assert Comparison.read(home / "c").text() == comparison.text()


@pytest.mark.usefixtures("_quick")
def test_the_start_is_evaluated_once(adapted, monkeypatch, capfd):
    home, comparison = adapted
    monkeypatch.chdir(home)
    results = sorted((home / "c").rglob("*off-the-shelf*.json"))
    assert [path.parents[1].name for path in results] == ["seed-0", "seed-0"]
    assert {path.parents[2].name for path in results} == {"SMI"}
    monkeypatch.setattr(
        "smi.comparison.off_the_shelf.evaluate", lambda *_, **__: pytest.fail("evaluated again")
    )
    again = compare(["SMI", "SimCLR"], seeds=2, out="c", **ADAPT)
    assert "4 of 4 runs exist already" in capfd.readouterr().out
    assert again.off_the_shelf == comparison.off_the_shelf


@pytest.mark.usefixtures("_quick")
def test_runs_and_their_start_are_evaluated_with_as_many_images_as_requested(
    adapted, tmp_path, monkeypatch
):
    monkeypatch.chdir(adapted[0])
    given = ADAPT | {"seeds": 1, "out": "c", "tables": tmp_path}
    compared = compare(["SMI"], images=400, **given)
    assert [r.protocol["train"]["images"] for r in compared.protocols.values()] == [400, 400]
    assert [r.protocol["train"]["images"] for r in compared.off_the_shelf.results] == [400, 400]
    assert not compared.off_the_shelf.failed
    with pytest.raises(UserError, match=r"--images is 9,999, but digits has only 1,614 labelled"):
        compare(["SMI"], images=9_999, **given)


@pytest.mark.usefixtures("_quick")
def test_a_start_that_cannot_be_evaluated_stops_nothing(adapted, tmp_path, monkeypatch):
    home, comparison = adapted
    monkeypatch.chdir(home)

    def fail(*_, **__):
        raise UserError("some features are not finite")

    monkeypatch.setattr("smi.comparison.off_the_shelf.evaluate", fail)
    protocols = ADAPT | {"protocols": ["knn", "linear-cached", "fewshot"]}
    compared = compare(["SMI"], seeds=1, out="c", tables=tmp_path, **protocols)
    assert (
        compared.off_the_shelf.failed == "it could not be evaluated: some features are not finite"
    )
    assert compared.score(compared.rows[0], comparison.columns[0]) is not None


@pytest.mark.usefixtures("_quick")
def test_weights_that_changed_between_two_commands_are_refused(adapted, tmp_path, monkeypatch):
    shutil.copytree(adapted[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    moved = ADAPT | {"overrides": ADAPT["overrides"] | {"init": str(adapted[0] / "net.pth")}}
    compare(["SMI"], seeds=1, out="c", quiet=True, **moved)
    save(Path("net.pth"), dict(Net().state_dict()))
    with pytest.raises(
        UserError, match="SMI, seed 0: c/runs/SMI/seed-0 started from other weights"
    ):
        compare(["SMI", "BYOL"], seeds=1, out="c", **ADAPT)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("kind", ["weights", "scratch"])
def test_sizes_that_follow_are_those_of_every_run(kind, tmp_path, monkeypatch, capfd):
    """A repeated command finds runs of the configuration that it plans."""
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    for split, label, i in itertools.product(("train", "val"), "ab", range(12)):
        folder = tmp_path / "photos" / split / label
        folder.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", (60, 40), (20 * i, 99, 200 * (label == "b"))).save(folder / f"{i}.png")
    network = timm.create_model("test_efficientnet", num_classes=3)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    overrides = {"epochs": 1, "batch_size": 8, "method.widths": [8, 8], "log.probe_every": 1}
    overrides |= {"encoder": "test_efficientnet", "init": str(tmp_path / "w.pth")}
    if kind == "scratch":
        overrides |= {"encoder": "test_resnet", "init": None, "select": "last"}
        overrides |= {"views.size": 32, "views.input_size": 40}
    given = {"recipe": "adapt", "data": tmp_path / "photos", "out": tmp_path / "c", "seeds": 2}
    given |= {"overrides": overrides, "protocols": ["knn"], "runtime": Runtime(num_workers=1)}
    first = compare(["SMI"], **given)
    sizes = (96, 128, 146) if kind == "weights" else (32, 40, None)
    for run in (smi.Run(run.folder).config for run in first.rows[0].runs):
        views, data = run["views"], run["data"]
        assert (views["size"], views["input_size"], data["resolution"]) == sizes
    assert not first.failed
    compare(["SMI"], **given)
    assert "2 of 2 runs exist already" in capfd.readouterr().out


@pytest.fixture
def unlabelled(tmp_path):
    """Return the arguments of a comparison on a folder without labels."""
    for i in range(40):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "photos" / f"{i}.png")
    overrides = OVERRIDES | WIDTHS | {"data.images": None, "batch_size": 4}
    return {
        "recipe": "digits",
        "data": tmp_path / "photos",
        "out": tmp_path / "c",
        "overrides": overrides | {"data.validation": 0.2, "log.probe_every": 1},
        "runtime": Runtime(num_workers=1),
    }


@pytest.mark.usefixtures("_quick")
def test_learning_rates_of_their_own_are_said(tmp_path):
    recipe = tmp_path / "mine.yaml"
    text = read_text("digits").replace("  SMI: {", "  SMI: {lr: 2.0e-3, ")
    assert "lr: 2.0e-3" in text
    recipe.write_text(text)
    for own, note in (
        (recipe, "learning rates: SMI 0.002, BYOL 0.001"),
        ("digits", "same optimizer, learning rate,"),
    ):
        comparison = compare(
            ["SMI", "BYOL"],
            recipe=own,
            out=tmp_path / str(own == "digits"),
            seeds=1,
            overrides=OVERRIDES,
            protocols=["knn"],
        )
        assert note in comparison.text()


@pytest.mark.usefixtures("_quick")
def test_methods_are_compared_without_labels(unlabelled, tmp_path):
    comparison = compare(["SMI", "SimCLR"], seeds=2, **unlabelled)
    assert not comparison.failed
    assert comparison.columns == []
    text = comparison.text()
    assert "Without labels, on held-out images" in text
    assert "RankMe" in text
    assert "LiDAR" in text
    run = smi.Run(tmp_path / "c/runs/SimCLR/seed-1")
    last = run.probes()[-1]["probe"]["label_free"]
    assert comparison.rows[1].runs[1].criteria["lidar"] == last["lidar"]
    again = Comparison.read(tmp_path / "c")
    assert again.text() == text
    assert "RankMe mean" in again.csv()
    assert compare(["SMI", "SimCLR"], seeds=2, **unlabelled).text() == text


@pytest.mark.usefixtures("_quick")
def test_a_value_is_chosen_without_labels(unlabelled, tmp_path):
    settings = {"sweep": "SMI.redundancy_weight=0.01,0.1", "choose": True}
    comparison = compare(["SMI", "SimCLR"], seeds=1, **unlabelled, **settings)
    scores = [row.runs[0].criteria["retrieval"] for row in comparison.rows[:2]]
    best = comparison.rows[scores.index(max(scores))]
    said = comparison.text()
    assert Comparison.read(tmp_path / "c").text() == said
    assert (
        f"by retrieval of views: SMI with redundancy_weight {best.value} ({max(scores):.1%}" in said
    )
    assert said.count("chosen without labels") == 1  # SimCLR has nothing to choose
    assert "how far to trust it" in said
    with pytest.raises(UserError, match="--choose chooses one of the values of --sweep"):
        compare(["SMI"], **unlabelled, choose=True)
    unlabelled["overrides"] |= {"log.probe_every": 0}
    with pytest.raises(UserError, match=r"log\.probe_every must not be 0"):
        compare(["SMI"], **unlabelled, **settings)


@pytest.mark.usefixtures("_quick")
def test_without_labels_the_start_has_a_row(unlabelled, tmp_path):
    network = timm.create_model("test_efficientnet", num_classes=3)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    settings = {"epochs": 1, "batch_size": 4, "method.widths": [8, 8], "data.validation": 0.2}
    settings |= {"encoder": "test_efficientnet", "init": str(tmp_path / "w.pth")}
    given = unlabelled | {"recipe": "adapt", "overrides": settings, "seeds": 1}
    comparison = compare(["SMI"], **given)
    (run,) = comparison.rows[0].runs
    start = smi.Run(run.folder).probes()[0]["probe"]["label_free"]
    assert comparison.off_the_shelf.criteria["rank_me"] == start["rank_me"]
    assert Comparison.read(tmp_path / "c").off_the_shelf == comparison.off_the_shelf
    last = comparison.tables()[-1]
    assert [line[0] for line in last.lines] == ["SMI", "off the shelf"]
    assert f"{start['rank_me']:.1f}" in last.lines[1]


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        ({"data.validation": 0}, {}, r"photos has no labels .*--data\.validation 0\.1$"),
        ({"log.probe_every": 0}, {}, "log.probe_every must not be 0"),
        ({}, {"images": 5}, "without --protocol and --images"),
        ({}, {"protocols": ["knn"]}, "without --protocol and --images"),
    ],
)
def test_without_labels_images_are_held_out(unlabelled, tmp_path, settings, given, sentence):
    unlabelled["overrides"] |= settings
    with pytest.raises(UserError, match=sentence):
        compare(["SMI"], **unlabelled, **given)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digits", "--methods", "SMI", "--published"], "digits does not say how methods are"),
        (["digits", "--methods", "SMI", "BarlowTwin"], "did you mean BarlowTwins?"),
        (["digitz", "--methods", "SMI"], "did you mean digits?"),
        (["--methods", "SMI"], "name a recipe"),
        (["digits"], "--methods"),
        (["digits", "--methods", "SMI", "--seeds", "0"], "1 or more"),
        (["digits", "--methods", "SMI", "--seed", "3"], "did you mean --seeds?"),
        (["digits", "--methods", "SMI", "seed=3"], "use --methods and --seeds"),
        (
            ["digits", "--methods", "SMI", "BYOL", "--sweep", "redundancy_wieght=1,2"],
            "did you mean redundancy_weight?",
        ),
        (
            ["digits", "--methods", "SMI", "BYOL", "--method.redundancy_weight", "1"],
            "is not a setting of BYOL",
        ),
        (["digits", "--methods", "SMI", "--protocol", "knnn"], "did you mean knn?"),
        (["digits", "--methods", "SMI", "--encoder", "resnet5"], "did you mean resnet50?"),
        (["digits", "--methods", "SMI", "--batch-size", "5000"], "make the batch smaller"),
        (["digits", "--methods", "SMI", "--data", "nowhere"], "there is no dataset or folder"),
        (["digits", "--methods", "SMI", "--log-to", "paper"], "there is no logger"),
        (["digits", "--methods", "SMI", "--init", "nowhere.pth"], "there are no weights"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_run(
    arguments, sentence, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["smi", "compare", *arguments, "--out", "x"])
    with pytest.raises(SystemExit) as stop:
        main()
    output = capfd.readouterr()
    assert stop.value.code == 2
    assert sentence in output.err
    assert len(output.err.splitlines()) == 1
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("methods", "given", "sentence"),
    [
        ([], {}, "name the methods"),
        (["SMI"], {"seeds": 0}, "seeds must be 1 or more"),
        (["SMI"], {"overrides": {"method": "BYOL"}}, "method cannot be set for all runs"),
        (["SMI"], {"launch": Launch(loggers=("paper",))}, "paper"),
    ],
)
def test_wrong_arguments_are_refused(methods, given, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        compare(methods, recipe="digits", out=tmp_path / "c", **given)
    assert not (tmp_path / "c").exists()
