"""Run the examples and check their results."""

import importlib.util
from pathlib import Path

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
