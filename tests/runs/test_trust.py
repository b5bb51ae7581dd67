"""A file never runs code by itself: runs, weights and recipes that name a module of a folder."""

import json
import os
import sys

import pytest
import torch
import yaml
from safetensors.torch import save_file

import smi
from smi.errors import UserError
from smi.imports import import_path, is_trusted
from smi.training.pretrain import preview
from support.digits import WIDTHS, digits

MODULE = """
from pathlib import Path
Path("marker").touch()
from support.homemade import Agreement, Net
"""
HEADER = {
    "encoder": {"name": "evil_for_this_test.Net"},
    "image_size": 8,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with a network of its own, whose configuration then names another module."""
    out = tmp_path_factory.mktemp("trained") / "run"
    overrides = {
        "encoder": "support.homemade.Net",
        "epochs": 1,
        "method.widths": [8, 8],
        "data.images": 128,
        "batch_size": 64,
    }
    smi.pretrain("digits", out=out, overrides=overrides, quiet=True)
    path = out / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["encoder"]["name"] = "evil_for_this_test.Net"
    path.write_text(yaml.safe_dump(config))
    return out


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a module that leaves a mark when it is imported."""
    (tmp_path / "evil_for_this_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "evil_for_this_test", raising=False)
    yield tmp_path
    sys.modules.pop("evil_for_this_test", None)


@pytest.fixture
def weights(folder):
    path = folder / "weights.safetensors"
    save_file({"w": torch.zeros(1)}, path, {"smi": json.dumps(HEADER)})
    return path


ACTIONS = {
    "load": lambda run: smi.load(run),
    "embed": lambda run: smi.embed(run, data="digits", out="h.npz"),
    "evaluate": lambda run: smi.evaluate([run], images=100),
    "neighbours": lambda run: smi.neighbours(run, data="digits", queries=["x.png"]),
    "export": lambda run: smi.export(run, to="safetensors"),
    "figure": lambda run: smi.figures.catalogue.write_figure("eigenspectrum", [run], out="x.html"),
    "init": lambda run: preview("digits", out="x", overrides={"init": str(run), "epochs": 1}),
    "recipe": lambda run: preview(run / "config.yaml", out="x"),
    "report": lambda run: smi.report([run], "report.html"),
    "resume": lambda run: smi.pretrain(run / "config.yaml", out=run),
    "compare": lambda run: smi.compare(["SMI"], recipe=run / "config.yaml", out="c", seeds=1),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_configuration_is_refused(action, trained, folder):
    import smi.figures.catalogue  # noqa: F401

    with pytest.raises(UserError, match=r"names code to run, evil_for_this_test\.Net") as refusal:
        ACTIONS[action](trained)
    assert "--trust" in str(refusal.value)
    assert not (folder / "marker").exists()


def test_a_header_of_weights_is_refused(weights, folder):
    for action in (
        lambda: smi.load(weights),
        lambda: smi.export(weights, to="onnx"),
        lambda: preview("digits", out="x", overrides={"init": str(weights), "epochs": 1}),
    ):
        with pytest.raises(UserError, match="names code to run"):
            action()
    assert not (folder / "marker").exists()


@pytest.mark.parametrize("section", ["method", "encoder", "methods"])
def test_a_recipe_is_refused(section, folder):
    recipe = yaml.safe_load(yaml.safe_dump(smi.config.resolve.read_recipe("digits")))
    path = "evil_for_this_test.Agreement" if section != "encoder" else "evil_for_this_test.Net"
    recipe[section] = {path: {"weight": 2.0}} if section == "methods" else {"name": path}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(UserError, match="names code to run"):
        preview(folder / "recipe.yaml", out="x")
    assert not (folder / "marker").exists()


def test_trust_of_one_call(trained, folder):
    assert smi.load(trained, trust=True).settings["name"] == "evil_for_this_test.Net"
    assert (folder / "marker").exists()


def test_trust_of_all_files(trained, folder):
    smi.trust()
    smi.load(trained)
    assert (folder / "marker").exists()


def test_trust_of_one_path(trained, folder):
    smi.trust("another.Net")
    with pytest.raises(UserError, match="names code to run"):
        smi.load(trained)
    smi.trust("evil_for_this_test.Net")
    smi.load(trained)


def test_the_flag(trained, folder, smi_here):
    refused = smi_here("embed", trained, "--data", "digits", "--out", "h.npz")
    assert refused.returncode == 2
    assert "--trust" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (folder / "marker").exists()
    assert (
        smi_here("embed", trained, "--data", "digits", "--out", "h.npz", "--trust").returncode == 0
    )
    assert (folder / "marker").exists()


def test_the_command_that_began_a_run_resumes_it(folder, smi_here):
    words = digits(folder / "run", "--steps", "2", "--data.images", "128", *WIDTHS)
    words[words.index("--encoder") + 1] = "evil_for_this_test.Net"
    assert smi_here(*words).returncode == 0
    assert smi_here(*words).returncode == 0


def test_the_working_directory_does_not_hide_an_installed_package(folder):
    (folder / "yaml.py").write_text("raise SystemExit")
    (folder / "colorsys.py").write_text("raise SystemExit")
    sys.modules.pop("colorsys", None)
    assert import_path("colorsys.rgb_to_hls").__name__ == "rgb_to_hls"
    assert sys.path[-1] == os.getcwd()


def test_nothing_is_trusted_at_first():
    assert not is_trusted("evil_for_this_test.Net")
