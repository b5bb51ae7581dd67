"""Name methods, runs and rows."""

import json

import pytest
import yaml

from smi.runs.names import display_row_name, kept_name, method_name, redundancy_weight_of
from smi.runs.run import Run
from support.made_up import write_run


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("SMI", "SMI"),
        ("BarlowTwins", "Barlow Twins"),
        ("MoCoV2", "MoCo v2"),
        ("their.module.Method", "Method"),
    ],
)
def test_methods_have_display_names(method, name, tmp_path):
    assert method_name(write_run(tmp_path / "a", method)) == name
    assert display_row_name(f"{method}, redundancy_weight=0.1") == f"{name}, λ = 0.1"
    assert display_row_name(method) == name


def test_the_name_that_a_run_recorded_comes_first(tmp_path):
    run = write_run(tmp_path / "a", "their.module.Method")
    facts = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(
        json.dumps(facts | {"method": {"display_name": "Their Method"}})
    )
    assert method_name(run) == "Their Method"


def test_an_automatic_weight_is_a_number_for_each_batch(tmp_path):
    run = write_run(tmp_path / "a", "SMI")
    text = (run.folder / "config.yaml").read_text()
    config = yaml.safe_load(text) | {"batch_size": 64}
    config["method"]["redundancy_weight"] = "auto"
    (run.folder / "config.yaml").write_text(yaml.safe_dump(config))
    facts = json.loads((run.folder / "run.json").read_text())
    for per_device, weight in ((None, 7 / 63), (32, 7 / 31)):
        (run.folder / "run.json").write_text(json.dumps(facts | {"batch_per_device": per_device}))
        assert redundancy_weight_of(Run(run.folder)) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("step", "about", "name"),
    [
        (0, {}, "the start"),
        (8, {}, "the encoder of epoch 2.5"),
        (8, {"share": 0.5}, "the mean of the start and the encoder of epoch 2.5"),
    ],
)
def test_the_kept_encoder_has_a_name(step, about, name):
    assert kept_name({"about": {"step": step, "epoch": 2.5, **about}}) == name
