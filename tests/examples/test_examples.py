"""Run the examples and check their results."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_modalities_find_each_other(capsys):
    before, after = load("modalities").main()
    assert before["right half ranked first"] < 0.02  # one in 400 by chance
    assert after["right half ranked first"] > 0.1
    assert before["right half among first five"] < 0.05
    assert after["right half among first five"] > 0.4
    assert after["digit"] > before["digit"] + 0.02
    assert "untrained" in capsys.readouterr().out


@pytest.fixture
def importable(monkeypatch):
    """Let examples find their own classes by import path, as when they are run as scripts."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_the_plain_loop_has_forty_lines_and_learns(capsys):
    assert len((EXAMPLES / "plain_loop.py").read_text().splitlines()) == 40
    example = load("plain_loop")
    assert example.after > example.before + 0.02
    assert "accuracy with 50 labels" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # of Lightning, about the number of workers and others
def test_lightning_trains_with_the_loss():
    if not any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning")):
        pytest.skip("Lightning is not installed: it is not a dependency")
    first, last = load("lightning_module").main(epochs=2, num_images=256)
    assert last < first


@pytest.mark.usefixtures("importable")
def test_a_method_of_ones_own_trains_and_describes_itself(tmp_path, capsys):
    run = load("own_method").main(tmp_path / "run", epochs=1)
    assert run.finished
    assert run.config["method"]["name"] == "own_method.Whitened"
    losses = [line["loss"] for line in run.metrics()]
    assert losses[-1] < losses[0]
    assert "1 label" in capsys.readouterr().out


@pytest.mark.usefixtures("importable")
def test_an_encoder_of_ones_own_trains(tmp_path, capsys):
    run = load("own_encoder").main(tmp_path / "run", epochs=1)
    assert run.encoder().dim == 192
    assert "192 features of images of 8 pixels" in capsys.readouterr().out


def test_a_data_source_of_ones_own_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    run = load("own_data").main(tmp_path / "run", epochs=1, length=90)
    assert run.finished
    assert "raw pixels" in capsys.readouterr().out


def test_a_few_labels_are_enough_for_crops_of_photographs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    example = load("few_labels")
    example.write_crops(tmp_path / "crops", number=20)
    accuracies = example.main(
        tmp_path / "crops", tmp_path, 2, {"epochs": 2, "log.probe_every": 0, "data.resolution": 32}
    )
    assert accuracies["trained"] > 0.5  # a quarter by chance
    assert "trained: " in capsys.readouterr().out
