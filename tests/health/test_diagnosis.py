"""Diagnose run folders with the files that pretraining writes."""

import json
import math

import pytest
import torch
import yaml

import smi
from smi.config.resolve import resolve
from smi.config.schema import plain
from smi.errors import UserError
from smi.health import diagnose
from smi.methods import LossSetup, find_method
from smi.runs.checkpoint import save_encoder
from smi.runs.run import Run

METHOD_SETTINGS = {"method.widths": (4096, 4096, 4096), "method.redundancy_weight": 0.01}


def write_run(folder, lines, *, method="SMI", settings=None, described=True, tail=""):
    """Write a run with 256 images on each of two devices."""
    overrides = {"method": method, "epochs": 20, "batch_size": 512}
    config = plain(resolve("cifar10", overrides | (settings or {})))
    about = {
        "smi": smi.__version__,
        "started": "2026-01-01T00:00:00+00:00",
        "num_images": 50_000,
        "world_size": 2,
        "batch_per_device": 256,
        "steps": 1000,
        "steps_per_epoch": 50,
        "num_views": 2,
        "feature_dim": 512,
        "embedding_dim": 4096,
        "status": "training",
    }
    if described:
        setup = LossSetup(256, 4096, 2, 2, config["method"])
        about["method"] = find_method(method).describe(setup)
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "run.json").write_text(json.dumps(about))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + tail)
    return folder


@pytest.fixture
def run(tmp_path):
    """Return a function that writes a run of SMI with these lines."""
    return lambda lines, **options: write_run(
        tmp_path / "run", lines, settings=METHOD_SETTINGS, **options
    )


def line(i: int, **other: object) -> dict[str, object]:
    p = i / 100
    return {
        "step": 10 * i,
        "epoch": 20 * p,
        "loss": 40 + 80 * math.exp(-5 * p),
        "gradient_norm": 3.0,
        "feature_std": 0.02,
        "effective_rank": 4 + 60 * p,
        "anticorrelated": 0.01,
        "lr": 1e-3,
        "timing": {"images_per_second": 900.0, "waiting": 0.02, "peak_memory_mb": 800.0},
        **other,
    }


HEALTHY = [line(i) for i in range(1, 101)]


def test_the_fixture_has_the_files_of_a_real_run(run, tmp_path):
    folder = run(HEALTHY)
    real = smi.pretrain("digits", out=tmp_path / "real", overrides={"epochs": 1})
    written = Run(folder)
    assert set(written.config) == set(real.config)
    files = [json.loads((run.folder / "run.json").read_text()) for run in (written, real)]
    assert set(files[0]) <= set(files[1])
    assert files[0]["method"].keys() == files[1]["method"].keys()
    assert diagnose(real).status == "finished"


def test_a_healthy_run(run):
    diagnosis = diagnose(run(HEALTHY))
    text = diagnosis.text()
    assert text.startswith(
        "This run looks healthy.\n  SMI, step 1,000, epoch 20 of 20, training\n\nok "
    )
    assert "warning" not in text
    assert "for SMI with N = 256, K = 4096 the least is 3.523, random embeddings give" in text
    assert diagnosis.level == "ok"


def test_a_run_that_started_from_weights(run, tmp_path):
    probes = [
        {"step": step, "epoch": step / 50, "probe": {"knn": knn, "chance": 0.1, "images": 5000}}
        for step, knn in ((0, 0.6), (1000, 0.5))
    ]
    settings = METHOD_SETTINGS | {"init.source": "weights.pth", "init.statistics": "update"}
    settings |= {"select": "best", "data.validation": 0.1}
    folder = write_run(tmp_path / "run", [probes[0], *HEALTHY, probes[1]], settings=settings)
    best = {"about": {"step": 0, "epoch": 0}, "selected": {"criterion": "knn", "score": 0.6}}
    save_encoder(folder / "best.safetensors", {"weight": torch.zeros(2)}, best)
    diagnosis = diagnose(folder)
    (finding,) = [f for f in diagnosis.findings if f.level != "ok"]
    assert finding.sentence == "The encoder is worse than the weights it started from."
    assert finding.evidence == (
        "kNN on held-out images 50.0% at epoch 20, 60.0% at the start; kept: the start, with 60.0%"
    )
    assert "--init.statistics keep" in finding.advice
    assert diagnosis.level == "warning"
    best["about"] = {"step": 500, "epoch": 10.0}
    save_encoder(folder / "best.safetensors", {"weight": torch.zeros(2)}, best)
    (finding,) = [f for f in diagnose(folder).findings if f.kind == "start"]
    assert finding.evidence.endswith("; kept: the encoder of epoch 10, with 60.0%")
    (folder / "best.safetensors").write_bytes(b"damaged")
    (finding,) = [f for f in diagnose(folder).findings if f.kind == "start"]
    assert finding.evidence.endswith("60.0% at the start")


def test_a_run_of_a_version_without_weights_to_start_from(run):
    folder = run(HEALTHY)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    now = diagnose(folder)
    del config["init"], config["select"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert diagnose(folder) == now


def test_run_folder_path_and_object_give_the_same(run):
    folder = run(HEALTHY)
    assert diagnose(folder) == diagnose(str(folder)) == diagnose(Run(folder), quiet=True)


def test_a_problem_has_evidence_and_advice(run):
    diagnosis = diagnose(run([line(i, timing={"waiting": 0.7}) for i in range(1, 101)]))
    text = diagnosis.text()
    assert text.startswith("This run needs attention: one thing is wrong.\n")
    first = text.split("\n\n")[1].splitlines()
    assert first[0] == "warning  The machine waits for images."
    assert "70%" in first[1]
    assert first[2].startswith("         What to do: ")
    assert diagnosis.level == "warning"


def test_a_broken_run_as_plain_values(run):
    lines = [*HEALTHY[:49], line(50, loss=math.nan)]
    diagnosis = diagnose(run(lines))
    document = json.loads(json.dumps(diagnosis.plain(), allow_nan=False))
    assert document["verdict"].startswith("This run is broken")
    assert document["findings"][0]["kind"] == "non_finite"
    assert document["findings"][0]["level"] == "stop"
    assert document["steps"] == 500
    assert document["expected_range"][0] == pytest.approx(3.523, abs=1e-3)
    assert diagnosis.level == "stop"


def test_a_run_of_an_earlier_version_is_described_by_its_class(run):
    now = diagnose(run(HEALTHY))
    assert now.expected_range is not None
    assert diagnose(run(HEALTHY, described=False)) == now


def test_run_json_decides_what_is_expected(run):
    folder = run(HEALTHY)
    about = json.loads((folder / "run.json").read_text())
    about["method"]["loss_range"] = [1000.0, 2000.0]
    (folder / "run.json").write_text(json.dumps(about))
    diagnosis = diagnose(folder)
    assert diagnosis.expected_range == (1000.0, 2000.0)
    assert "loss_range" in [f.kind for f in diagnosis.findings if f.level == "warning"]


def test_a_method_of_ones_own(tmp_path):
    collapsed = [line(i, feature_std=0.02 * math.exp(-i / 5)) for i in range(1, 101)]
    folder = write_run(tmp_path / "run", collapsed, method="support.homemade.Agreement")
    diagnosis = diagnose(folder)
    assert diagnosis.expected_range is None
    (finding,) = [f for f in diagnosis.findings if f.level != "ok"]
    assert "check that nothing rewards equal outputs" in finding.advice


def test_a_method_that_can_no_longer_be_imported(run):
    folder = run(HEALTHY, described=False)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("name: SMI", "name: gone.Method"))
    diagnosis = diagnose(folder)
    assert diagnosis.method == "gone.Method"
    assert diagnosis.expected_range is None
    assert diagnosis.verdict == "This run looks healthy."


@pytest.mark.parametrize(
    "tail",
    [
        '{"step": 1010, "loss": 4',
        '{"step": 1010, "lo{"step": 1010, "loss": 40.0}\n',
        "[1, 2]\n",
        "\n",
        "\x00\x00",
    ],
)
def test_a_line_that_a_crash_cut_short_is_ignored(run, tail):
    whole = diagnose(run(HEALTHY))
    assert diagnose(run(HEALTHY, tail=tail)) == whole


@pytest.mark.parametrize("num_lines", [0, 3])
def test_too_early(run, num_lines):
    assert diagnose(run(HEALTHY[:num_lines])).verdict.startswith(
        f"It is too early to say: there are {num_lines} lines"
    )


def test_steps_and_epochs_that_are_not_finite(run):
    odd = {"step": math.inf, "epoch": math.nan, "loss": 1.0}
    assert "looks healthy" in diagnose(run([*HEALTHY, odd])).verdict


def test_a_run_before_its_first_step(run):
    folder = run([])
    (folder / "metrics.jsonl").unlink()
    (folder / "run.json").unlink()
    diagnosis = diagnose(folder)
    assert "too early" in diagnosis.verdict
    assert diagnosis.level == "unknown"
    assert diagnosis.status == "unknown"
    assert diagnosis.expected_range is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", None, "is not a run: it has no config.yaml"),
        ("config.yaml", "a: [", "config.yaml is damaged"),
        ("config.yaml", "- 1", "config.yaml is damaged"),
        ("config.yaml", "epochs: 3", "it has no section 'data'"),
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[]", "it holds a list, not an object"),
    ],
)
def test_a_folder_that_is_not_a_run_is_one_sentence(run, name, content, words):
    folder = run([line(1)])
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=words) as error:
        diagnose(folder)
    assert "\n" not in str(error.value)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        diagnose(tmp_path / "nothing")
