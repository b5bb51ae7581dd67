"""A few trials of each kind of the hostile campaign."""

import importlib
import os
from pathlib import Path

import pytest

from support.digits import run_script

CAMPAIGN = Path(__file__).parents[2] / "campaign"
PARTS = ("hostile_pickles", "import_paths", "hostile_yaml")


@pytest.fixture
def trial(monkeypatch):
    monkeypatch.syspath_prepend(CAMPAIGN)
    return importlib.import_module("attempt")


def test_a_few_of_each_kind(tmp_path):
    words = [word for part in PARTS for word in ("--part", part)]
    ran = run_script(CAMPAIGN / "hostile.py", "--quick", "--no-write", *words, cwd=tmp_path)
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"
    assert " 0 lost" in ran.stdout


def test_a_trial_judges_how_an_action_ends(trial, tmp_path):
    from smi.errors import UserError

    def refuse(sentence):
        error = UserError("x")
        error.args = (sentence,)
        raise error

    marker = tmp_path / "marker"
    actions = [
        ("works", lambda: None),
        ("refuses", lambda: refuse("no")),
        ("two lines", lambda: refuse("a\nb")),
        ("advice", lambda: refuse("use weights_only=False")),
        ("long", lambda: refuse("x" * 700)),
        ("traceback", lambda: 1 / 0),
        ("marks", marker.touch),
        ("dies", lambda: os.kill(os.getpid(), 9)),
        ("never tried", lambda: None),
    ]
    outcomes = {outcome.name: outcome.ok for outcome in trial.attempt(actions, marker=marker)}
    expected = dict.fromkeys(("works", "refuses", "marks"), True)
    expected |= dict.fromkeys(("two lines", "advice", "long", "traceback", "dies", "marker"), False)
    assert outcomes == expected
