"""Run the short version of the load: no number is checked but those that must not grow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.digits import environment

CAMPAIGN = Path(__file__).parents[2] / "campaign"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory and files are read from /proc")
def test_the_short_version_loses_nothing(tmp_path):
    ran = subprocess.run(
        [sys.executable, str(CAMPAIGN / "load.py"), "--quick", f"--out={tmp_path}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = json.loads((tmp_path / "campaign-load.json").read_text())["cases"]
    assert {"3,000 steps: memory is flat", "3 runs: compare", "2,000 files: list"} <= set(cases)
