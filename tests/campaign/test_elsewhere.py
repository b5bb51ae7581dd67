"""Import and run the short path without names that only Linux has."""

import importlib
import sys
from pathlib import Path

import pytest

from support.digits import run_script

CAMPAIGN = Path(__file__).parents[2] / "campaign"


@pytest.fixture(scope="module")
def elsewhere():
    sys.path.insert(0, str(CAMPAIGN))
    yield importlib.import_module("elsewhere")
    sys.path.remove(str(CAMPAIGN))


@pytest.fixture(scope="module")
def place(elsewhere, tmp_path_factory):
    """The system that lacks the most: fork, locks of Unix, most signals, flushing of folders."""
    place = elsewhere.Elsewhere("Windows", tmp_path_factory.mktemp("windows"), resident=True)
    yield place
    place.close()


def test_the_short_path_works_without_them(place, elsewhere, tmp_path):
    script = tmp_path / "pretrain.py"
    script.write_text(elsewhere.PRETRAIN)
    made = run_script(script, tmp_path / "run", SMI_CACHE=str(tmp_path), CXX="no-compiler")
    assert made.returncode == 0, made.stderr
    trials = elsewhere.trials(place, elsewhere.digest(tmp_path / "run"))
    for name in ("pretrain", "evaluate", "embed a folder", "images from a cache and from files"):
        trials[name]()


def test_names_are_really_gone(place):
    place.python(
        "import os, signal\n"
        "assert not hasattr(os, 'fork') and not hasattr(os, 'pwritev')\n"
        "assert not hasattr(signal, 'SIGUSR1') and not os.path.isdir('/dev/shm')\n"
        "try:\n    import fcntl\nexcept ImportError:\n    pass\nelse:\n    raise SystemExit(1)"
    )


def test_locks_and_shards_work_without_them(place, elsewhere):
    trials = elsewhere.trials(place, "")
    trials["a lock"]()
    pytest.importorskip("pyarrow")
    trials["shards"]()
