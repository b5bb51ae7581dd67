"""The examples run, and show what they say."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_modalities_find_each_other(capsys):
    before, after = load("modalities").main()
    assert before["its right half, first"] < 0.02  # one in 400 by chance
    assert after["its right half, first"] > 0.1
    assert before["its right half, among five"] < 0.05
    assert after["its right half, among five"] > 0.4
    assert after["its digit"] > before["its digit"] + 0.02
    assert "untrained" in capsys.readouterr().out
