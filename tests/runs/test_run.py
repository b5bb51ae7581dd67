"""Read, claim, lock, compare and write the folder of a run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from smi.config.resolve import resolve
from smi.data import BadFile
from smi.errors import UserError
from smi.runs.run import Facts, Run

# As version 0.1.0 wrote them.
OLD_FACTS = {
    "smi": "0.1.0",
    "started": "2026-11-16T16:34:20+00:00",
    "num_images": 1614,
    "resolution": 8,
    "root": None,
    "world_size": 1,
    "batch_per_device": 64,
    "steps": 50,
    "steps_per_epoch": 25,
    "num_views": 2,
    "feature_dim": 256,
    "parameters": 1883808,
    "encoder_parameters": 1226400,
    "peak_lr": [0.001, 0.001],
    "schedule": "cosine",
    "precision": "float32",
    "compiled": False,
    "views": "compiled",
    "policy": "digits",
    "device": "x86_64 cpu, 2 threads, torch 2.15.0+cu132",
    "versions": {"python": "3.11.7", "torch": "2.15.0", "timm": "1.0.30", "system": "Linux 6.18"},
    "embedding_dim": 512,
    "status": "finished",
}
OLD_CONFIG = {
    "data": {"source": "digits", "resolution": None, "images": None, "validation": 0.0},
    "views": {"policy": "digits", "size": 8, "solarize_p": None},
    "encoder": {"name": "resnet-small", "stem": "cifar"},
    "method": {
        "name": "SMI",
        "widths": [512, 512, 512],
        "redundancy_weight": 0.1,
        "target": 1.0,
        "shift": 0.06,
        "eps": 1e-06,
    },
    "optimizer": {
        "name": "AdamW",
        "lr": 0.001,
        "weight_decay": 0.0001,
        "scale_lr": False,
        "lr_vectors": None,
        "momentum": 0.9,
        "warmup_epochs": 0.0,
        "schedule": None,
        "final_lr": 0.0,
    },
    "epochs": 2,
    "batch_size": 64,
    "seed": 0,
    "precision": "auto",
    "log": {"every": 10, "probe_every": 1.0, "save_every": 1.0, "probe_images": 10000},
    "methods": {
        "SMI": {"widths": [512, 512, 512], "redundancy_weight": 0.1},
        "MoCo": {"queue_size": 1024, "momentum": 0.97, "temperature": 0.05},
    },
}
LINES = [
    {"step": 10, "epoch": 0.4, "loss": 3.0},
    {"step": 20, "epoch": 0.8, "loss": 2.0},
    {"step": 25, "epoch": 1.0, "probe": {"knn": 0.5}},
]


def write_folder(folder: Path, facts: object = OLD_FACTS) -> Run:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(OLD_CONFIG, sort_keys=False))
    if facts is not None:
        (folder / "run.json").write_text(json.dumps(facts))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return Run(folder)


@pytest.fixture
def old(tmp_path: Path) -> Run:
    return write_folder(tmp_path / "old")


def claim(folder: Path, *, num_images: int = 1614, fresh=False, **overrides):
    """Claim a folder as version 0.1.0 created it, unless there are overrides."""
    config = resolve("digits", {"epochs": 2, **overrides})
    return Run.claim(folder, config, num_images=num_images, fresh=fresh)


# ------------------------------------------------------------------------------------------ reading


def test_a_folder_of_version_0_1_0_is_read(old):
    assert old.finished
    assert old.config == OLD_CONFIG
    assert old.facts == Facts(**OLD_FACTS)
    assert old.facts.method is None
    assert old.epoch(50) == 2
    assert repr(old) == f"Run('{old.folder}': SMI, 20 steps, kNN 50.0%)"
    config = old.resolve()
    same = resolve("digits", {"epochs": 2, "precision": "auto"})
    assert replace(config, methods={}) == replace(same, methods={})
    other = old.differences(resolve("digits", {"epochs": 2, "precision": "bfloat16"}))
    assert other == ["precision is auto in the folder, bfloat16 was requested"]
    # The recipe names the precision now; the run has recorded that it chose the same.
    assert old.differences(resolve("digits", {"epochs": 2}), num_images=1614) == []


def test_missing_facts_are_none_and_unknown_keys_are_ignored(tmp_path):
    run = write_folder(tmp_path / "a", {"resolution": 8, "written_by": "a later version"})
    assert run.facts == Facts(resolution=8)
    assert not run.finished
    assert run.epoch(50) is None
    assert write_folder(tmp_path / "b", None).facts == Facts()


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_damaged_run_json_is_a_sentence(text, old):
    (old.folder / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        _ = old.facts


@pytest.mark.parametrize("text", ["a: [1,", "just text", ""])
def test_a_damaged_configuration_is_a_sentence(text, old):
    (old.folder / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        _ = old.config


def test_a_changed_configuration_is_read_again_and_cannot_be_changed_in_memory(old):
    old.config["seed"] = 5
    assert old.config["seed"] == 0
    (old.folder / "config.yaml").write_text(yaml.safe_dump(OLD_CONFIG | {"seed": 77}))
    assert old.config["seed"] == 77


def test_a_folder_without_a_configuration_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match=r"is not a run: it has no config\.yaml"):
        Run(tmp_path)


def test_lines_skip_what_a_crash_left(old):
    with (old.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "lo\n[1]\n\n{"step": 40, "loss": null}\n{"step": 50, "loss": 1')
    assert old.lines() == [*LINES, {"step": 40, "loss": None}]
    assert [line["step"] for line in old.metrics()] == [10, 20]
    assert [line["step"] for line in old.probes()] == [25]


def test_a_run_without_a_checkpoint_is_a_sentence(old):
    with pytest.raises(UserError, match="has no checkpoint yet"):
        old.state()


# ----------------------------------------------------------------------------------------- claiming


def test_claiming_makes_the_folder(tmp_path):
    with claim(tmp_path / "deep" / "a", seed=3) as run:
        assert run.config["seed"] == 3
        assert run.checkpoint.parent.is_dir()
        assert run.facts == Facts()
        assert not run.finished


def test_a_claimed_folder_is_locked(tmp_path):
    with claim(tmp_path / "a"):
        for fresh in (False, True):
            refused = pytest.raises(UserError, match="another process is training into")
            with refused, claim(tmp_path / "a", fresh=fresh):
                pass
    with claim(tmp_path / "a"):
        pass


def test_a_folder_with_steps_is_reopened(old):
    with claim(old.folder) as run:
        assert run.finished
        assert run.lines() == LINES
        assert run.config == OLD_CONFIG


def test_a_different_configuration_is_refused(old):
    sentence = (
        f"{old.folder} was created with a different configuration "
        "(epochs is 2 in the folder, 3 was requested; "
        "optimizer.lr is 0.001 in the folder, 0.5 was requested). "
        "Use the same settings, another --out, or --fresh to start over."
    )
    with pytest.raises(UserError) as caught, claim(old.folder, epochs=3, **{"optimizer.lr": 0.5}):
        pass
    assert str(caught.value) == sentence
    refused = pytest.raises(UserError, match="num_images is 1614 in the folder, 99 now")
    with refused, claim(old.folder, num_images=99):
        pass
    assert old.config == OLD_CONFIG


def test_settings_of_other_methods_are_not_compared(old):
    with claim(old.folder, **{"methods.MoCo.momentum": 0.5}):
        pass


def test_a_run_that_never_took_a_step_is_replaced(tmp_path):
    with claim(tmp_path / "a") as run:
        run.write_facts(Facts(status="training"))
    with claim(tmp_path / "a", epochs=7) as run:
        assert run.config["epochs"] == 7
        assert run.facts == Facts()


def test_fresh_moves_the_folder_aside(old, capsys):
    for number in (1, 2):
        with claim(old.folder, fresh=True, epochs=7) as run:
            assert run.config["epochs"] == 7
            assert run.lines() == []
        assert f"moved {old.folder} to {old.folder}.{number}" in capsys.readouterr().err
    assert Run(f"{old.folder}.1").lines() == LINES


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is not a run and is not empty"), claim(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    refused = pytest.raises(UserError, match="is a file: give a folder")
    with refused, claim(tmp_path / "letter.txt"):
        pass


def test_a_folder_whose_creation_was_killed_is_claimed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml.partial").write_text("half")
    with claim(tmp_path) as run:
        assert run.config["epochs"] == 2


def test_errors_inside_the_block_are_not_disk_errors(tmp_path):
    with pytest.raises(OSError, match="mine"), claim(tmp_path / "a"):
        raise OSError("mine")


# ------------------------------------------------------------------------------------------ writing


def test_facts_are_written_and_their_status_changed(old):
    facts = replace(old.facts, method={"display_name": "SMI"}, peak_lr=[0.1])
    old.write_facts(facts)
    assert old.facts == facts
    assert list(json.loads((old.folder / "run.json").read_text()))[: len(OLD_FACTS)] == list(
        OLD_FACTS
    )
    old.set_status("stopped: the loss is NaN")
    assert old.facts == replace(facts, status="stopped: the loss is NaN")
    assert not old.finished


def test_finishing_writes_the_encoder(tmp_path):
    from safetensors import safe_open

    run = write_folder(tmp_path / "a", {"status": "training", "num_images": 3})
    run.finish({"weight": torch.ones(2)}, {"image_size": 8})
    assert run.facts == Facts(status="finished", num_images=3)
    with safe_open(run.folder / "encoder.safetensors", "pt") as file:
        about = json.loads(file.metadata()["smi"])
        assert (about["image_size"], len(about["digest"])) == (8, 16)
        assert torch.equal(file.get_tensor("weight"), torch.ones(2))


def test_bad_files_are_listed(old):
    old.write_bad_files([])
    assert not (old.folder / "bad-files.txt").exists()
    old.write_bad_files([BadFile("a.jpg", "not an image")])
    assert (old.folder / "bad-files.txt").read_text() == "a.jpg\tnot an image\n"


def test_metrics_are_cut_at_a_checkpoint_and_appended(old):
    path = old.folder / "metrics.jsonl"
    position = len((json.dumps(LINES[0]) + "\n").encode())
    old.cut_metrics(position)
    assert old.lines() == LINES[:1]
    with old.open_metrics() as file:
        file.write(json.dumps(LINES[1]) + "\n")
    assert old.lines() == LINES[:2]
    path.write_bytes(path.read_bytes()[:-5])  # a crash kept less than the checkpoint says
    old.cut_metrics(10_000)
    assert path.read_bytes() == (json.dumps(LINES[0]) + "\n").encode()
    path.unlink()
    old.cut_metrics(10)
    assert not path.exists()


@pytest.mark.parametrize("extra", [0, 5, -5])
def test_metrics_of_many_lines_are_cut_without_reading_all(old, extra, monkeypatch):
    monkeypatch.setattr("smi.runs.run.BYTES_PER_READ", 16)
    path = old.folder / "metrics.jsonl"
    lines = [json.dumps({"step": i, "epoch": 0.1, "loss": 1.0}) + "\n" for i in range(40)]
    path.write_text("".join(lines))
    position = len("".join(lines[:30])) + extra
    old.cut_metrics(position)
    assert [line["step"] for line in old.lines()] == list(range(29 if extra < 0 else 30))
    path.write_text("half a line without an end")
    old.cut_metrics(1000)
    assert path.read_bytes() == b""


def test_lines_are_parsed_one_by_one_and_summaries_once(old, monkeypatch):
    assert next(old.iterate_lines()) == LINES[0]
    first = old.metrics(per_step=False)
    assert all("per_step" not in line for line in first)
    assert [line["step"] for line in first] == [line["step"] for line in old.metrics()]
    with monkeypatch.context() as patch:
        patch.setattr(Run, "iterate_lines", lambda self: pytest.fail("parsed again"))
        assert old.metrics(per_step=False) == first
        assert Run(old.folder).probes() == old.probes()
    with old.open_metrics() as file:
        file.write(json.dumps({"step": 99, "epoch": 9.0, "loss": 1.0}) + "\n")
    assert old.metrics(per_step=False)[-1]["step"] == 99


def test_summaries_of_large_files_are_not_kept(old, monkeypatch):
    monkeypatch.setattr("smi.runs.run.MAX_SUMMARISED_BYTES", 10)
    monkeypatch.setattr("smi.runs.run._summaries", {})
    assert old.probes() == [line for line in old.lines() if "probe" in line]
    from smi.runs import run

    assert run._summaries == {}
