"""Run a benchmark in its quick form; its numbers mean nothing, and none is checked."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import smi
from smi.comparison.comparison import Comparison, Estimate, Row, TrainedRun
from smi.config.resolve import resolve
from smi.errors import UserError
from support.comparisons import make_result
from support.digits import run_script
from support.two_machines import why_not

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(name: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a benchmark in a process, and return what it printed."""
    result = run_script(BENCHMARKS / name, *options)
    assert result.returncode == 0, result.stderr
    return result


def test_feeding(tmp_path):
    pytest.importorskip("torchvision")
    out = tmp_path / "feeding.json"
    result = run_benchmark("feeding.py", "--quick", "--out", str(out))
    (measured,) = json.loads(out.read_text())["rounds"]
    rates = [value for name, value in measured.items() if name.startswith(("smi", "DataLoader"))]
    assert len(rates) == 10  # 32 px from memory; 160 and 224 px from memory and files
    assert min(rates) > 0
    waits = [measured[f"{gpu} 1"] for gpu in ("T4", "A100", "8 × A100")]
    assert all(0 <= share <= 1 for share in waits)
    assert "ours ÷ the DataLoader's" in result.stdout
    assert "| smi, 224 px, files |" in result.stdout


def test_scale(tmp_path):
    out = tmp_path / "a.json"
    run_benchmark("scale.py", "--quick", "--folder", str(tmp_path), "--out", str(out))
    lines = json.loads(out.read_text())["lines"]
    assert len(lines) == 8
    assert [line["count"] for line in lines[:5]] == [5000, 5000, 256, 256, 5000]
    assert lines[4]["megabytes"] < 5000 * 2048 * 4 / 1e6  # features are on the disk


@pytest.mark.parametrize(
    ("check", "rows"),
    [("syncs", ["SMI", "BarlowTwins"]), ("views", ["cifar10", "pirl"]), ("memory", ["float32"])],
)
def test_checks_for_a_gpu_run_on_a_cpu_too(check, rows, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    gpu = importlib.import_module("gpu")
    monkeypatch.setattr(sys, "argv", ["gpu.py", check, "--device", "cpu", "--tiny"])
    gpu.main()
    first_words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert set(rows) <= set(first_words)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there are no TAP interfaces here")
@pytest.mark.long
def test_machines(tmp_path):
    out = tmp_path / "machines.json"
    result = run_benchmark("machines.py", "--quick", "--out", str(out))
    results = json.loads(out.read_text())
    every, fourth = results["steps"].values()
    parameters = 1_883_808
    assert every["bytes"][0] == pytest.approx(4 * parameters, rel=0.02)  # gradients
    assert fourth["bytes"][0] == pytest.approx(3 * parameters, rel=0.02)  # weights, two moments
    assert results["knn"].keys() == {"1", "4"}
    assert "| SMI, average_every 4 |" in result.stdout


# ------------------------------------------------------------------------------------------ the zoo


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Make a comparison of one row and three seeds; only the first was trained, for two steps."""
    folder = tmp_path_factory.mktemp("compared") / "a"
    first = folder / "runs" / "SMI" / "seed-0"
    network = {"encoder": "test_resnet", "encoder.stem": "standard"}
    short = {"steps": 2, "batch_size": 32, "log.probe_every": 0, "method.widths": [8, 8]}
    smi.pretrain("digits", out=first, overrides=network | short, quiet=True)
    runs = [TrainedRun(0, str(first), "", (make_result(0.5),))]
    for seed, score in ((1, 0.52), (2, 0.6)):
        other = first.with_name(f"seed-{seed}")
        shutil.copytree(first, other)
        config = yaml.safe_load((other / "config.yaml").read_text())
        (other / "config.yaml").write_text(yaml.safe_dump(config | {"seed": seed}))
        runs.append(TrainedRun(seed, str(other), "", (make_result(score),)))
    Comparison((Row("SMI", None, "SMI", tuple(runs)),), (0, 1, 2), None, {}).write(folder)
    return folder


@pytest.fixture
def zoo(monkeypatch, tmp_path):
    """`zoo("write", …)`: run the script in this process, with a list of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("zoo")

    def call(*words: object) -> str:
        index = ("--index", tmp_path / "list.json")
        monkeypatch.setattr(sys, "argv", ["zoo.py", *map(str, (*words, *index))])
        try:
            script.main()
        except SystemExit as stop:
            return str(stop.code)
        return ""

    return call


NAME = "test_resnet.smi_digits"


def test_the_zoo_keeps_the_first_seed_of_a_row(zoo, compared, tmp_path, capsys):
    assert zoo("write", compared, "--out", tmp_path / "zoo", "--commit", "abc") == ""
    (entry,) = json.loads((tmp_path / "list.json").read_text())["encoders"]
    assert json.loads((tmp_path / "zoo" / "zoo.json").read_text())["encoders"] == [entry]
    assert entry["name"] == NAME
    assert entry["digest"] == smi.load(compared / "runs" / "SMI" / "seed-0").digest()
    assert {path.name for path in (tmp_path / "zoo" / NAME).iterdir()} >= {
        "model.safetensors",
        "config.json",
        "README.md",
        "recipe.yaml",
    }
    capsys.readouterr()
    assert zoo("show") == ""
    score = str(Estimate.of({0: 0.5, 1: 0.52, 2: 0.6})).replace("%", "")
    assert f"| `{NAME}` | SMI | 1,614 of digits | {score} |" in capsys.readouterr().out


def test_names_and_devices_of_the_zoo(zoo, compared, tmp_path, capsys):
    folder = tmp_path / "run.v2"
    shutil.copytree(compared / "runs" / "SMI" / "seed-0", folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"]["source"] = "/photos/ImageNette Photos"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    zoo("write", folder, "--out", tmp_path / "zoo", "--commit", "abc")
    listed = json.loads((tmp_path / "list.json").read_text())
    assert listed["encoders"][0]["name"] == "test_resnet.smi_imagenette-photos"
    listed["encoders"][0]["device"] = "cpu, 1 threads"
    (tmp_path / "list.json").write_text(json.dumps(listed))
    zoo("show")
    assert "cpu, 1 thread." in capsys.readouterr().out


def test_encoders_are_compared_with_the_list(zoo, compared, tmp_path, capsys):
    run = compared / "runs" / "SMI" / "seed-0"
    zoo("write", run, "--out", tmp_path / "zoo", "--commit", "abc")
    again = tmp_path / "again.v2"
    assert zoo("repeat", NAME, "--out", again) == ""
    assert (tmp_path / "again.v2.yaml").is_file()
    assert f"{again}: {NAME}, digest {smi.load(run).digest()}" in capsys.readouterr().out
    assert zoo("check", tmp_path / "zoo" / NAME, run) == ""
    listed = json.loads((tmp_path / "list.json").read_text())
    listed["encoders"][0]["sha256"] = "0" * 64
    (tmp_path / "list.json").write_text(json.dumps(listed))
    assert f"another file than that of {NAME}" in zoo("check", tmp_path / "zoo" / NAME)
    listed["encoders"][0]["digest"] = "0" * 16
    (tmp_path / "list.json").write_text(json.dumps(listed))
    assert "no encoder of the list has the digest" in zoo("check", run)
    with pytest.raises(UserError, match=f"there is no nothing in the list: choose one of {NAME}"):
        zoo("repeat", "nothing", "--out", again)


def test_minutes(tmp_path, monkeypatch, capsys):
    """Each run is added to the results, and replaces the one of the same seed."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    minutes = importlib.import_module("minutes")
    pretrain = smi.pretrain

    def short(*, time, overrides, **given):
        """Train two steps instead of a time."""
        assert time == "7m"
        few = {"encoder": "support.homemade.Net", "method.widths": [8, 8], "steps": 2}
        return pretrain("digits", overrides=overrides | few, **given)

    monkeypatch.setattr(smi, "pretrain", short)
    results = tmp_path / "minutes.json"
    words = ["--out", str(tmp_path / "runs"), "--results", str(results)]
    for seeds in (["0", "1", "2"], ["1"]):
        command = ["minutes.py", "run", "digits", "7m", "--seeds", *seeds, *words]
        monkeypatch.setattr(sys, "argv", command)
        minutes.main()
    runs = json.loads(results.read_text())["runs"]
    assert [made["seed"] for made in runs] == [0, 2, 1]
    assert all(0 < made["kNN"] <= 1 and made["images"] == 128 for made in runs)
    mean = sum(made["linear-cached"] for made in runs) / 3
    printed = capsys.readouterr().out.split("| | time |")[-1]
    assert f"| {100 * mean:.1f} ± " in printed
    assert printed.count("| digits | 7m |") == 1
    assert printed.endswith("| 128 | float32 | 3 |\n\n" + minutes.footer(runs[0]) + "\n")


def test_more_cores_are_computed_from_the_part_that_does_not_scale(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    cores = importlib.import_module("cores")
    speeds = {"float32, one thread": 100, "float32, two threads": 160}  # a quarter does not scale
    speeds |= {"bfloat16, one thread": 200, "bfloat16, two threads": 400}  # all of it scales
    speeds |= {"float32, two processes": 200, "bfloat16, two processes": 400}
    rounds = {place: [0.9 * speed, speed, 1.1 * speed] for place, speed in speeds.items()}
    lines = cores.table(cores.stamp("2 cores") | {"images_per_second": rounds}).splitlines()
    assert lines[2] == "| one thread | 100 | 200 | 2.00 |"
    assert lines[5] == f"| *4 threads, computed* | {100 / (1 / 4 + 3 / 16):,.0f} | 800 | |"


def test_the_best_settings_are_those_of_the_best_trial_of_all_stages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    knobs = importlib.import_module("knobs")
    monkeypatch.setattr(knobs, "RESULTS", tmp_path)

    def write(kind: str, *scores: tuple[float, float]) -> None:
        trials = {
            f"{i}": {"settings": {"lr": i, "kind": kind}, "knn": knn, "linear": linear}
            for i, (knn, linear) in enumerate(scores)
        }
        (tmp_path / f"{kind}-a.json").write_text(json.dumps({"trials": {"SMI": trials}}))

    write("knobs", (0.4, 0.5), (0.5, 0.3))
    write("projectors", (0.3, 0.7), (0.45, 0.4))
    write("further", (0.6, 0.3))
    assert knobs.best_settings("a") == {"SMI": {"lr": 0, "kind": "projectors"}}
    assert knobs.choice_table("a").endswith("| SMI | `lr` 0, `kind` projectors | 30.0 | 70.0 | 5 |")


def test_trials_with_the_same_settings_are_averaged(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    knobs = importlib.import_module("knobs")
    monkeypatch.setattr(knobs, "RESULTS", tmp_path)
    for kind, knn in (("knobs", 0.7), ("projectors", 0.1), ("further", 0.5)):
        settings = {"lr": 1} if kind == "further" else {"lr": 2}
        trials = {"x": {"settings": settings, "knn": knn, "linear": knn}}
        (tmp_path / f"{kind}-a.json").write_text(json.dumps({"trials": {"SMI": trials}}))
    assert knobs.best_settings("a") == {"SMI": {"lr": 1}}


@pytest.mark.parametrize("recipe", ["cifar10-small", "imagenette-small"])
def test_recipes_have_the_best_settings(recipe, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    knobs = importlib.import_module("knobs")
    best = knobs.best_settings(recipe)
    del best["SMI"]  # longer runs chose some of its settings
    for method, settings in best.items():
        config = resolve(recipe, {"method": method})
        assert config.optimizer.lr == settings.pop("lr")
        in_recipe = json.loads(json.dumps(config.method))  # lists, as in the file
        assert {name: in_recipe[name] for name in settings} == settings


@pytest.mark.parametrize("recipe", ["cifar10-small", "imagenette-small"])
def test_each_method_has_as_many_further_trials_with_valid_settings(recipe, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    knobs = importlib.import_module("knobs")
    for method in knobs.FURTHER:
        trials = dict(knobs.trials_to_run(recipe, "further", method, {}))
        assert len(trials) == 5
        for settings in trials.values():
            overrides = {f"method.{name}": x for name, x in settings.items() if name != "lr"}
            resolve(recipe, {"method": method, **overrides})  # refuses names and values


def test_further_settings_are_multiplied_or_replaced(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    knobs = importlib.import_module("knobs")
    before = {"lr": 0.002, "widths": [64, 8]}
    in_recipe = {"widths": [64], "queue_size": 4096, "momentum": 0.99}
    changes = {"lr": 1.5, "queue_size": 0.25, "momentum": 0.996}
    changed = {"lr": 0.003, "widths": [64, 8], "queue_size": 1024, "momentum": 0.996}
    assert knobs.changed_settings(before, changes, in_recipe) == changed


@pytest.mark.parametrize("flag", ["--projectors", "--further", "--best"])
def test_digits_have_values_of_one_hyperparameter_only(flag, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    knobs = importlib.import_module("knobs")
    monkeypatch.setattr("sys.argv", ["knobs.py", "digits", flag])
    with pytest.raises(SystemExit):
        knobs.main()
    assert "one hyperparameter only" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["cifar10-small", "imagenette-small"])
def test_systems_of_equal_time_take_as_long_as_smi(recipe, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    evidence = importlib.import_module("evidence")
    pace = json.loads((evidence.RESULTS / f"pace-{recipe}.json").read_text())["seconds"]
    (kept,) = {
        run.steps for run in Comparison.read(evidence._home(recipe, timed=False)).rows[0].runs
    }
    steps = evidence.steps_of_equal_time(recipe)
    assert "SMI" not in steps
    for name, seconds in pace.items():
        # Rounding may add a step. A system that keeps its steps has about the pace of SMI.
        allowed = seconds if name in steps else 0.06 * kept * pace["SMI"]
        assert abs(steps.get(name, kept) * seconds - kept * pace["SMI"]) <= allowed
