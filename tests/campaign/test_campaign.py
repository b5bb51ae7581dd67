"""Run short forms of the campaign: kills, power loss and faults of single commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[2] / "campaign"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")


def run_part(part: str, out: Path, *words: str) -> dict[str, dict]:
    """Run a part of the campaign, require that nothing was lost, and return its cases."""
    command = [sys.executable, str(CAMPAIGN / f"{part}.py"), "--quick", "--out", str(out), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cases = json.loads((out / f"campaign-{part}.json").read_text())["cases"]
    assert cases
    assert all(row["tried"] == row["survived"] for row in cases.values())
    return cases


def test_kills(tmp_path):
    cases = run_part("kills", tmp_path, "--only", "shard")
    assert set(cases) == {"shard: at a call", "shard: at a random moment"}


def test_power_loss(tmp_path):
    cases = run_part("power", tmp_path, "--only", "shard")
    assert set(cases) == {
        f"shard: {name}" for name in ("files stay after their sync", "strict", "names kept")
    }


def test_faults(tmp_path):
    cases = run_part("faults", tmp_path, "--only", "cache truncated")
    assert set(cases) == {"cache truncated"}
