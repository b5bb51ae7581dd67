"""Comparisons through the real command: on the digits, with a network of a few hundred weights."""

import contextlib
import csv
import io
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
import scipy.stats
import torch
from PIL import Image

import smi
import smi.comparison.compare
from smi.cli import main
from smi.comparison.compare import START, Stopped, call, compare, print_comparison
from smi.comparison.comparison import Comparison, Estimate, Row, Trained
from smi.comparison.figure import figure, write_figure
from smi.comparison.grid import plan
from smi.data import Batches, load
from smi.device import describe_device
from smi.errors import TrainingError, UserError
from smi.evaluation.results import Result, Score
from smi.runs.restore import create, create_views

TESTS = Path(__file__).parents[1]
SETTINGS = {"method.widths": [16, 16], "log.probe_every": 0, "data.images": 512}
TINY = {
    "encoder": "support.homemade.Net",
    "epochs": 1,
    "protocols": ["knn", "linear-cached"],
    "settings": SETTINGS,
}
LONGER = TINY | {"epochs": 8, "settings": SETTINGS | {"log.every": 1}}  # as WORDS say
WORDS = [
    "--encoder",
    "support.homemade.Net",
    "--protocol",
    "knn",
    "linear-cached",
    "--log.probe_every",
    "0",
    "--data.images=512",
    "--log.every",
    "1",
]


@pytest.fixture(autouse=True)
def _one_thread_and_our_modules(monkeypatch):
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def in_this_process(words, processes=1) -> int:
    """What `call` does in another, which takes seconds to start: only where processes matter they are used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["smi", *words])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Nor is the figure drawn after each run."""
    patch.syspath_prepend(TESTS)
    patch.setattr(smi.comparison.compare, "call", in_this_process)
    patch.setattr(smi.comparison.compare, "write_figure", lambda comparison, path: None)


@pytest.fixture
def _quick(monkeypatch):
    quicken(monkeypatch)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of the runs: what training and evaluating leave behind."""
    names = ("metrics.jsonl", "last.pt", "encoder.safetensors")
    found = [
        path
        for path in (folder / "runs").rglob("*")
        if path.name in names or path.parent.name == "eval"
    ]
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in found
    }


def metrics_of(run: Path) -> int:
    """Lines so far."""
    return (
        (run / "metrics.jsonl").read_bytes().count(b"\n")
        if (run / "metrics.jsonl").is_file()
        else 0
    )


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Two methods, two seeds: stopped in the first run as a terminal's Ctrl-C does it, then finished from Python."""
    out = tmp_path_factory.mktemp("comparison") / "c"
    command = [
        sys.executable,
        "-m",
        "smi",
        "compare",
        "digits",
        "--methods",
        "SMI",
        "BarlowTwins",
        "--seeds",
        "2",
        "--out",
        str(out),
    ]
    command += [*WORDS, "--epochs", "8", "--method.widths", "[16, 16]"]
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=TESTS,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while process.poll() is None and metrics_of(out / "runs" / "SMI" / "seed-0") < 3:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    before, said = files(out), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        quicken(patch)
        print_comparison(
            compare("digits", methods=["SMI", "BarlowTwins"], seeds=2, out=out, **LONGER), out
        )
    return (
        out,
        [(process.returncode, output, errors), (0, said.getvalue(), "")],
        [before, files(out)],
    )


def test_interrupted_it_goes_on_where_it_stopped(interrupted):
    out, said, kept = interrupted
    assert [code for code, _, _ in said] == [130, 0], said
    assert not any("Traceback" in errors for _, _, errors in said), (
        said
    )  # warnings of its health may be there
    assert "run 1/4: SMI, seed 0\n" in said[0][1]
    assert "stopped in run 1 of 4; the same command goes on from there" in said[0][1]
    assert "resumed    after step" in said[1][1]
    runs = [line.split(" (")[0] for line in said[1][1].splitlines() if line.startswith("run ")]
    assert runs == [
        "run 1/4: SMI, seed 0",
        "run 2/4: BarlowTwins, seed 0",
        "run 3/4: SMI, seed 1",
        "run 4/4: BarlowTwins, seed 1",
    ]
    assert " left)" in said[1][1]
    before, after = kept
    (first,) = [lines for name, (_, lines) in before.items() if name.endswith("metrics.jsonl")]
    assert losses(after["runs/SMI/seed-0/metrics.jsonl"][1])[: len(losses(first))] == losses(
        first
    )  # on, not from the beginning
    assert {path.name for path in out.iterdir()} == {
        "runs",
        "comparison.json",
        "table.md",
        "table.csv",
    }


def losses(metrics: bytes) -> list[float]:
    return [json.loads(line)["loss"] for line in metrics.splitlines()]


def test_a_signal_to_the_comparison_alone_reaches_the_run(tmp_path, monkeypatch):
    """In place of ours the process finds a module that waits to be told."""
    waits = (
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + '/told', 'w'), sys.exit()))"
    )
    (tmp_path / "smi.py").write_text(
        f"import signal, sys, time\n{waits}\nopen(sys.argv[1] + '/there', 'w')\ntime.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finished = threading.Event()

    def stop():
        while not (tmp_path / "there").is_file() and not finished.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        assert call([str(tmp_path)]) == -signal.SIGTERM
    finally:
        finished.set()
        thread.join()
    assert (tmp_path / "told").is_file()
    (tmp_path / "smi.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    assert [call([code]) for code in ("0", "2")] == [0, 2]


def test_the_tables_say_the_same(interrupted, smi_here):
    out, said, _ = interrupted
    document = json.loads((out / "comparison.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["SMI", "BarlowTwins"]
    first, second = document["rows"]
    assert [score["score"] for score in first["scores"]] == [
        "kNN",
        "linear-cached",
        "linear-cached top-5",
    ]
    for row in document["rows"]:
        assert row["step_ms"] > 0
        assert (
            row["loss_share"] == row["loss_ms"] / row["step_ms"] > 0
        )  # on a busy machine anything
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
    markdown, shown = (out / "table.md").read_text(), said[-1][1]
    mean, low = first["scores"][0]["mean"], first["scores"][0]["low"]
    for text in (markdown, shown):
        assert f"{mean:.1%} ± {mean - low:.1%}" in text
        assert f"{100 * second['differences'][0]['mean']:+.1f} ± " in text
        assert f"stamp {document['protocols'][0]['stamp']}" in text
    assert smi_here("table", "comparison", out).stdout.strip() in shown  # read again
    assert smi_here("table", "comparison", out, "--markdown").stdout.strip() == markdown.strip()


def test_what_is_evaluated_are_the_runs(interrupted):
    out, _, _ = interrupted
    document = json.loads((out / "comparison.json").read_text())
    for row in document["rows"]:
        values = []
        for run in row["runs"]:
            (result,) = [
                json.loads(path.read_text()) for path in Path(run["folder"]).glob("eval/knn-*.json")
            ]
            values.append(result["scores"][0]["value"])
            assert smi.Run(run["folder"]).config["seed"] == run["seed"]
            assert run["command"].startswith("smi pretrain digits ")
        assert row["scores"][0]["mean"] == pytest.approx(np.mean(values))


@pytest.mark.usefixtures("_quick")
def test_extended_only_what_is_missing_is_run(interrupted, capfd):
    out, _, kept = interrupted
    comparison = compare(
        "digits", methods=["SMI", "barlowtwins", "VICReg"], seeds=1, out=out, **LONGER
    )
    said = capfd.readouterr().out
    assert "2 of 3 runs are there already" in said
    (line,) = [line for line in said.splitlines() if line.startswith("run ")]
    assert re.fullmatch(
        r"run 3/3: VICReg, seed 0 \(about \d+ s left\)", line
    )  # by the steps of those that are there
    now = files(out)
    assert all(now[name] == value for name, value in kept[-1].items())
    assert [row.name for row in comparison.rows] == ["SMI", "BarlowTwins", "VICReg"]
    assert "one seed: there are no intervals" in comparison.text()
    assert "±" not in comparison.text().split("knn on")[0]


@pytest.mark.usefixtures("_quick")
def test_while_it_is_extended_the_tables_have_all_there_is(interrupted, tmp_path, monkeypatch):
    """Seen from the next runs: one fails, in the other it is stopped. Where their rows stand does not matter."""
    out, _, _ = interrupted
    seen, codes = [], iter((1, -signal.SIGINT))

    def look(words, processes):
        found = json.loads((tmp_path / "comparison.json").read_text())["rows"]
        seen.append(
            {row["name"]: sum(bool(run["results"]) for run in row["runs"]) for row in found}
        )
        return next(codes)

    monkeypatch.setattr(smi.comparison.compare, "call", look)
    with pytest.raises(Stopped):
        compare(
            "digits",
            methods=["SimCLR", "SMI", "BarlowTwins", "MoCoV2"],
            seeds=2,
            out=out,
            tables=tmp_path,
            **LONGER,
        )
    assert seen == [{"SimCLR": 0, "SMI": 2, "BarlowTwins": 2, "MoCoV2": 0}] * 2
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [(line["name"], line["kNN seeds"]) for line in lines] == [
        ("SimCLR", ""),
        ("SMI", "2"),
        ("BarlowTwins", "2"),
        ("MoCoV2", ""),
    ]
    assert re.search(r"^\| SMI \| [\d.]+% ± ", (tmp_path / "table.md").read_text(), re.MULTILINE)


@pytest.mark.usefixtures("_quick")
def test_the_time_of_a_loss_is_kept_while_its_runs_and_the_machine_are_the_same(
    interrupted, tmp_path, monkeypatch
):
    shutil.copytree(
        interrupted[0] / "runs" / "SMI" / "seed-0", tmp_path / "runs" / "SMI" / "seed-0"
    )
    monkeypatch.setattr(
        smi.comparison.compare, "call", lambda words, processes: 1
    )  # no run of Barlow Twins is there, and none can be made

    def times(device):
        known = {
            "device": device,
            "rows": [{"name": name, "loss_ms": 1e6} for name in ("SMI", "BarlowTwins")],
        }
        (tmp_path / "comparison.json").write_text(json.dumps(known))
        return [
            row.loss_ms
            for row in compare(
                "digits", methods=["SMI", "BarlowTwins"], seeds=1, out=tmp_path, **LONGER
            ).rows
        ]

    assert times(describe_device()) == [1e6, None]
    again, none = times("another machine")
    assert 0 < again < 1e6
    assert none is None


@pytest.mark.usefixtures("_quick")
def test_the_memory_of_a_gpu_is_given_back_before_the_next_run(interrupted, tmp_path, monkeypatch):
    """Evaluating takes some here, and training some in another process."""
    done = []
    honest = smi.comparison.compare.evaluate
    monkeypatch.setattr(
        smi.comparison.compare,
        "evaluate",
        lambda sources, **asked: done.extend("e" * len(sources)) or honest(sources, **asked),
    )
    monkeypatch.setattr(smi.comparison.compare, "give_back", lambda device: done.append("g"))
    monkeypatch.setattr(
        smi.comparison.compare, "call", lambda words, processes: done.append("t") or -signal.SIGTERM
    )
    with pytest.raises(Stopped):
        compare(
            "digits",
            methods=["SMI", "BarlowTwins", "SimCLR"],
            seeds=1,
            out=interrupted[0],
            tables=tmp_path,
            **LONGER,
        )
    assert "".join(done) == "egegt"


def test_images_of_one_class_are_refused_before_anything_is_run(tmp_path, monkeypatch):
    for place in ("train/cat", "val/cat", "val/dog"):
        (tmp_path / "pets" / place).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "pets" / place / f"{i}.png")
    monkeypatch.setattr(
        smi.comparison.compare, "call", lambda words, processes: pytest.fail("a run was made")
    )
    with pytest.raises(
        UserError,
        match=r"^methods are compared by how well they tell classes apart, and .*pets has one class$",
    ):
        compare(
            "digits",
            methods=["SMI"],
            data=tmp_path / "pets",
            batch_size=4,
            out=tmp_path / "c",
            num_workers=1,
            encoder="support.homemade.Net",
        )
    assert not (tmp_path / "c").exists()


def test_another_configuration_is_refused_and_named(interrupted, capfd):
    out, _, kept = interrupted
    with pytest.raises(
        UserError,
        match=r"^SMI, seed 0: .* was begun with another configuration \(epochs: 8 there, 3 asked",
    ):
        compare("digits", methods=["SMI", "BarlowTwins"], seeds=2, out=out, **TINY | {"epochs": 3})
    assert capfd.readouterr().out == ""
    assert all(files(out)[name] == value for name, value in kept[-1].items())


@pytest.mark.usefixtures("_quick")
def test_a_sweep_in_which_a_run_fails(tmp_path, capfd):
    """The others are made, it is noted and not tried again; a method without the setting runs as it is."""
    settings = {key: value for key, value in SETTINGS.items() if key != "method.widths"}
    given = TINY | {"protocols": ["knn"], "settings": settings, "out": tmp_path / "c", "seeds": 1}
    methods = ["support.homemade.Agreement", "PIRL"]
    compare("digits", methods=methods[:1], sweep="fails_at=0", **given)
    assert "run 1/1: support.homemade.Agreement, fails_at=0.0, seed 0" in capfd.readouterr().out
    comparison = compare("digits", methods=methods, sweep="method.fails_at=0,2", **given)
    said = capfd.readouterr().out
    runs = [line.split(" (")[0] for line in said.splitlines() if line.startswith("run ")]
    assert runs == [
        "run 2/3: support.homemade.Agreement, fails_at=2.0, seed 0",
        "run 3/3: PIRL, seed 0",
    ]
    assert [row.name for row in comparison.rows] == [
        "support.homemade.Agreement, fails_at=0.0",
        "support.homemade.Agreement, fails_at=2.0",
        "PIRL",
    ]
    ((name, run),) = comparison.failed
    assert name == "support.homemade.Agreement, fails_at=0.0"
    assert "NaN or infinite" in run.failed
    (column,) = comparison.columns
    assert [comparison.score(row, column) is None for row in comparison.rows] == [
        True,
        False,
        False,
    ]
    assert comparison.difference(comparison.rows[1], column) is None  # to what failed
    with pytest.raises(TrainingError, match="1 of 3 runs failed"):
        print_comparison(comparison, tmp_path / "c")
    assert "failed: support.homemade.Agreement, fails_at=0.0, seed 0: " in capfd.readouterr().out


@pytest.mark.usefixtures("_quick")
def test_a_run_that_cannot_be_evaluated_does_not_stop_the_others(interrupted, monkeypatch, capfd):
    """An encoder whose features are not finite, say, though its loss was."""
    out, _, _ = interrupted
    honest = smi.comparison.compare.evaluate

    def refuse(sources, **asked):
        if any("SMI" in str(source) for source in sources):
            raise UserError("some features are not finite")
        return honest(sources, **asked)

    monkeypatch.setattr(smi.comparison.compare, "evaluate", refuse)
    comparison = compare("digits", methods=["SMI", "BarlowTwins"], seeds=1, out=out, **LONGER)
    assert [(name, run.failed) for name, run in comparison.failed] == [
        ("SMI", "it could not be evaluated: some features are not finite")
    ]
    assert comparison.score(comparison.rows[1], comparison.columns[0]) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot be asked for it")
def test_a_run_stops_when_the_comparison_is_killed(tmp_path):
    """Else it would train on, unseen, in the way of the next try."""
    (tmp_path / "smi.py").write_text(
        "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], 'smi']).wait()"
    process = subprocess.Popen(
        [sys.executable, "-c", parent, START],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    try:
        while process.poll() is None and not (
            (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()
        ):
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    child = Path("/proc") / (tmp_path / "pid").read_text()
    until = time.monotonic() + 20
    while (
        child.is_dir()
        and "(zombie)" not in (child / "status").read_text()
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert time.monotonic() < until


def test_methods_are_paired(tmp_path):
    """Under one seed one encoder, one order of images and one draw of views; under another seed others."""
    asked = {"encoder": "support.homemade.Net", "batch_size": 32}
    methods = [
        "SMI",
        "BarlowTwins",
        "SimCLR",
        "BYOL",
        "SwAV",
    ]  # the last has small views behind the first two
    _, jobs = plan(
        "digits",
        asked,
        methods=methods,
        seeds=range(2),
        sweep="redundancy_weight=0.01,1",
        folder=tmp_path,
    )
    assert [job.name for job in jobs[:7]] == [
        "SMI, redundancy_weight=0.01, seed 0",
        "SMI, redundancy_weight=1.0, seed 0",
        "BarlowTwins, redundancy_weight=0.01, seed 0",
        "BarlowTwins, redundancy_weight=1.0, seed 0",
        "SimCLR, seed 0",
        "BYOL, seed 0",
        "SwAV, seed 0",
    ]
    store = load("digits", "pretrain")
    seen: dict[int, list[list[torch.Tensor]]] = {0: [], 1: []}
    for job in jobs:
        method = create(job.config, len(store))
        batch = Batches(store, 32, seed=job.config.seed).batch(3)
        views = create_views(job.config, method)(batch.images, batch.generator())
        seen[job.seed].append([batch.index, *views[:2], *method.encoder.state_dict().values()])
    for found in seen.values():
        assert all(
            torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
        )
    different = [not torch.equal(a, b) for a, b in zip(seen[0][0], seen[1][0], strict=True)]
    assert all(different[:4])  # index, two views, weights of the convolution


def result(value: float, *, k: int = 20) -> Result:
    return Result(
        {"name": "knn", "data": "digits", "k": k},
        "encoder",
        {},
        (Score("kNN", value),),
        "nearest neighbours",
    )


def rows(*values: dict[int, float]) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"M{i}",
            None,
            f"M{i}",
            tuple(Trained(seed, "", "", (result(value),)) for seed, value in of.items()),
        )
        for i, of in enumerate(values)
    )


def test_intervals_and_differences_against_a_plain_computation():
    a, b = {0: 0.91, 1: 0.88, 2: 0.93, 3: 0.9}, {3: 0.95, 1: 0.9, 0: 0.92}  # one run is missing
    comparison = Comparison(rows(a, b), (0, 1, 2, 3), None, {})
    (column,) = comparison.columns

    def plain(values: list[float]) -> tuple[float, float, float]:
        mean, error = np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))
        return mean, *scipy.stats.t.interval(0.95, len(values) - 1, mean, error)

    for row, values in zip(comparison.rows, (a, b), strict=True):
        score = comparison.score(row, column)
        assert (score.mean, score.low, score.high) == pytest.approx(plain(list(values.values())))
    difference = comparison.difference(comparison.rows[1], column)
    assert difference.seeds == (0, 1, 3)
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        plain([0.01, 0.02, 0.05])
    )
    assert (
        difference.half < comparison.score(comparison.rows[1], column).half
    )  # what pairing is for
    assert "so far 7 of 8 runs" in comparison.text()


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_no_interval_of_a_difference_is_narrower_than_rounding_makes_it(seeds):
    """Accuracies on 100 images: of every seed one image more is what two of unknown decimals may well have."""
    draws = np.random.default_rng(0).uniform(size=(20_000, 2, seeds))
    rounded = (100 * draws).round() / 100 - draws
    spread = (rounded[:, 0] - rounded[:, 1]).std()  # of a difference, by rounding alone
    more = Estimate.of_differences(
        dict.fromkeys(range(seeds), 0.51), dict.fromkeys(range(seeds), 0.5), 1 / 100
    )
    assert more.mean == pytest.approx(0.01)
    assert more.half == pytest.approx(
        scipy.stats.t.ppf(0.975, seeds - 1) * spread / seeds**0.5, rel=0.02
    )
    assert more.high - more.mean == pytest.approx(more.mean - more.low)
    apart = {s: 0.5 + s / 10 for s in range(seeds)}
    wide = Estimate.of_differences(apart, dict.fromkeys(apart, 0.5), 1 / 100)
    assert (wide.low, wide.high) == pytest.approx(
        tuple(getattr(Estimate.of({s: s / 10 for s in apart}), end) for end in ("low", "high"))
    )  # where seeds differ by more, as before


def test_numbers_of_different_protocols_share_no_column():
    first, second = rows({0: 0.9}, {0: 0.8})
    other = Row("M1", None, "M1", (Trained(0, "", "", (result(0.8, k=5),)),))
    assert len(Comparison((first, second), (0,), None, {}).columns) == 1
    comparison = Comparison((first, other), (0,), None, {})
    assert len(comparison.columns) == 2
    assert comparison.difference(other, comparison.columns[1]) is None
    assert "not comparable: knn was not the same for all runs" in comparison.text()
    assert "80.0%" in comparison.text()
    assert len({*next(csv.reader([comparison.csv().splitlines()[0]]))}) == len(
        next(csv.reader([comparison.csv().splitlines()[0]]))
    )


def test_images_whose_name_is_no_text(tmp_path):
    """A name on a disk is bytes, and its end may not be that of a line."""
    found = Result(
        {"name": "knn", "data": "caf\udce9\n/"},
        "encoder",
        {},
        (Score("kNN", 0.5),),
        "nearest neighbours",
    )
    comparison = Comparison(
        (Row("SMI", None, "SMI", (Trained(0, "caf\udce9", "", (found,)),)),), (0,), None, {}
    )
    comparison.write(tmp_path)
    assert "- knn on caf\\udce9\\n/, stamp" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert Comparison.read(tmp_path).rows[0].runs[0].folder == "caf\udce9"
    assert "caf\\udce9\\n/" in figure(comparison).layout.annotations[-1].text
    write_figure(comparison, tmp_path / "figure.html")


def swept(values, names=("A", "B")) -> Comparison:
    def row(method, value, score):
        return Row(
            method,
            value,
            f"{method} {value}",
            tuple(Trained(s, "", "", (result(score + s / 100),)) for s in range(3)),
        )

    first, second = names
    return Comparison(
        (row(first, values[1], 0.9), row(first, values[0], 0.8), row(second, None, 0.7)),
        (0, 1, 2),
        "key",
        {},
    )


@pytest.mark.parametrize(
    ("values", "places", "scores", "said"),
    [
        ((0.001, 0.1), [-3, -1], [81, 91], ["0.001", "0.1"]),
        ((0.0, 0.1), [0, 0.1], [81, 91], ["0", "0.1"]),  # no logarithm
        (((8, 8), (16, 16)), [0, 1], [91, 81], ["(16, 16)", "(8, 8)"]),  # in the order of rows
        (([8], [16]), [0, 1], [91, 81], ["[16]", "[8]"]),
    ],
)
def test_the_figure_of_a_sweep(values, places, scores, said):
    drawn = figure(swept(values))
    a, b = drawn.data[0], drawn.data[1]
    assert list(a.x) == pytest.approx(places)
    assert list(a.y) == pytest.approx(scores)
    assert (list(drawn.layout.xaxis.tickvals), list(drawn.layout.xaxis.ticktext)) == (
        pytest.approx(places),
        said,
    )
    assert list(b.y) == pytest.approx([71, 71])  # a line across
    assert b.x[1] > max(a.x)  # and its interval where no other is
    assert list(b.error_y.array) == pytest.approx([0, 100 * 4.3027 * 0.01 / 3**0.5], rel=1e-3)
    assert a.marker.symbol != b.marker.symbol
    assert a.line.dash != b.line.dash
    assert f"Differences are to A {values[1]}, paired by seed" in drawn.layout.annotations[-1].text


def test_the_page_fits_a_telephone_and_names_are_no_html(page, tmp_path):
    write_figure(swept((0.001, 0.1), names=("A", "<i>B&amp;</i>")), tmp_path / "figure.html")
    page.set_default_timeout(120_000)  # a machine may be busy
    page.goto((tmp_path / "figure.html").as_uri())
    page.wait_for_selector(".legendtext")
    for width, panels in ((1000, 2), (390, 1)):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_function(
            f"document.querySelector('.main-svg').clientWidth === {900 if panels == 2 else 380}"
        )
        assert page.locator(".legendtext").all_text_contents() == ["A", "<i>B&amp;</i>"]
        lefts = page.evaluate(
            "[...document.querySelectorAll('.draglayer .nsewdrag')].map(r => Math.round(r.getBoundingClientRect().x))"
        )
        assert len(lefts) == 4
        assert len(set(lefts)) == panels
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digits", "--methods", "SMI", "BarlowTwin"], "did you mean BarlowTwins?"),
        (["digitz", "--methods", "SMI"], "did you mean digits?"),
        (["--methods", "SMI"], "name a recipe"),
        (["digits"], "--methods"),
        (["digits", "--methods", "SMI", "--seeds", "0"], "1 or more"),
        (["digits", "--methods", "SMI", "--seed", "3"], "did you mean --seeds?"),
        (["digits", "--methods", "SMI", "seed=3"], "--methods and --seeds say"),
        (
            ["digits", "--methods", "SMI", "BYOL", "--sweep", "redundancy_wieght=1,2"],
            "did you mean redundancy_weight?",
        ),
        (
            ["digits", "--methods", "SMI", "--sweep", "redundancy_weight"],
            "a sweep is a setting and its values",
        ),
        (
            ["digits", "--methods", "SMI", "--sweep", "redundancy_weight=1,,2"],
            "a sweep is a setting and its values",
        ),
        (["digits", "--methods", "SMI", "--sweep", "redundancy_weight=1,much"], "must be a number"),
        (
            ["digits", "--methods", "SMI", "BYOL", "--method.redundancy_weight", "1"],
            "is not a setting of BYOL",
        ),
        (["digits", "--methods", "SMI", "--protocol", "knnn"], "did you mean knn?"),
        (["digits", "--methods", "SMI", "--encoder", "resnet5"], "did you mean resnet50?"),
        (["digits", "--methods", "SMI", "--batch-size", "5000"], "make the batch smaller"),
        (["digits", "--methods", "SMI", "--data", "nowhere"], "there is no set or folder"),
        (["digits", "--methods", "SMI", "--log-to", "paper"], "there is no logger"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_run(
    arguments, sentence, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["smi", "compare", *arguments, "--out", "x"])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capfd.readouterr()
    assert stop.value.code == 2
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []
