"""Run some trials of the kernel under the sanitizers, and show that they find a mistake."""

import importlib
import json
from pathlib import Path

import pytest

from support.digits import run_script

CAMPAIGN = Path(__file__).parents[2] / "campaign"


@pytest.fixture
def sanitizers(monkeypatch):
    monkeypatch.syspath_prepend(CAMPAIGN)
    module = importlib.import_module("sanitizers")
    if reason := module.why_not():
        pytest.skip(reason)
    return module


@pytest.mark.usefixtures("sanitizers")
def test_hostile_batches_are_refused_or_survived(tmp_path):
    ran = run_script(CAMPAIGN / "sanitizers.py", "--count=140", f"--out={tmp_path}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = json.loads((tmp_path / "campaign-sanitizers.json").read_text())["cases"]
    assert [row["tried"] for row in cases.values()] == [20] * 7
