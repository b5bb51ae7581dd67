"""Import methods lazily by name, and add a built-in method with one line."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import smi.methods
from smi.methods import METHOD_NAMES, Method, find_method

SOURCE = Path(smi.methods.__file__).parents[1]

NEW_METHOD = '''
"""Train with a made-up method."""

from smi.losses import Terms
from smi.methods.base import Method, Output


class MadeUp(Method):
    """Bring two views together."""

    paper = "Nobody 2026"
    collapse_remedies = "Do not use it."

    def __init__(self, encoder, *, strength: float = 2.0):
        super().__init__(encoder)
        self.strength = strength

    def forward(self, views, batch):
        h1, h2 = (self.encoder(x) for x in views)
        return Output(Terms(alignment=self.strength * (h1 - h2).square().mean()), h1, h1, h2)

    @classmethod
    def loss_range(cls, setup):
        return 0.0, cls._setting(setup, "strength")
'''

USE_NEW_METHOD = """
import json
from smi.config.resolve import resolve
from smi.health import Context
from smi.methods import METHOD_NAMES, LossSetup, MadeUp, MethodDescription, find_method, name_of
from smi.methods.catalogue import describe_method, list_methods
import smi

assert "MadeUp" in METHOD_NAMES and name_of("madeup") == "MadeUp"
assert find_method("madeup") is MadeUp and smi.methods.MadeUp is MadeUp
assert "MadeUp" in list_methods().text() and "strength" in describe_method("MadeUp").text()
config = resolve("digits", {"method": "madeup", "method.strength": 3.0})
assert config.method == {"name": "MadeUp", "strength": 3.0}
run = smi.pretrain("digits", out="run", overrides={"epochs": 1}, method="madeup")
description = MethodDescription.parse(run.facts.method)
assert description.loss_range == (0.0, 2.0) and description.display_name == "MadeUp"
from smi.health import diagnose
assert diagnose(run).expected_range == (0.0, 2.0)
from smi.health.diagnosis import context_of
assert context_of(run).description.collapse_remedies == "Do not use it."
print("all of it works")
"""


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_classes_can_be_imported_by_name(name):
    method = getattr(smi.methods, name)
    assert issubclass(method, Method)
    assert method is find_method(name.lower())
    assert name in smi.methods.__all__
    assert name in dir(smi.methods)


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        smi.methods.Nothing  # noqa: B018


def test_names_do_not_import_torch():
    code = (
        "import sys, smi.methods; smi.methods.name_of('byol'); "
        "assert smi.methods.METHOD_NAMES and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_built_in_method_is_a_file_and_a_line(tmp_path):
    """Copy the package, add both, and use the method in every place that lists methods."""
    package = tmp_path / "smi"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "methods" / "made_up.py").write_text(NEW_METHOD)
    init = package / "methods" / "__init__.py"
    text = init.read_text()
    init.write_text(
        text.replace('    "PIRL": "pirl",\n', '    "PIRL": "pirl",\n    "MadeUp": "made_up",\n')
    )
    (tmp_path / "use.py").write_text(USE_NEW_METHOD)
    result = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("all of it works\n")


def test_health_does_not_know_methods_by_name():
    names = "|".join({name.lower() for name in METHOD_NAMES})
    for path in sorted((SOURCE / "health").glob("*.py")):
        quoted = re.findall(rf"""["']({names})["']""", path.read_text(), re.IGNORECASE)
        assert not quoted, f"{path} names {quoted}"
