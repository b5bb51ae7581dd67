"""Run a benchmark in its quick form; its numbers mean nothing, and none is checked."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.digits import environment
from support.two_machines import why_not

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(name: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a benchmark in a process, and return what it printed."""
    result = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_feeding(tmp_path):
    pytest.importorskip("torchvision")
    out = tmp_path / "feeding.json"
    result = run_benchmark("feeding.py", "--quick", "--out", str(out))
    (measured,) = json.loads(out.read_text())["rounds"]
    rates = [value for name, value in measured.items() if name.startswith(("smi", "DataLoader"))]
    assert len(rates) == 10  # 32 px from memory; 160 and 224 px from memory and files
    assert min(rates) > 0
    waits = [measured[f"{gpu} 1"] for gpu in ("T4", "A100", "8 × A100")]
    assert all(0 <= share <= 1 for share in waits)
    assert "ours ÷ the DataLoader's" in result.stdout
    assert "| smi, 224 px, files |" in result.stdout


def test_scale(tmp_path):
    sizes = ["--files=5000", "--names=1000", "--shards=100", f"--folder={tmp_path}"]
    run_benchmark("scale.py", *sizes, "--out", str(tmp_path / "a.json"))
    lines = json.loads((tmp_path / "a.json").read_text())["lines"]
    assert [line["count"] for line in lines[:5]] == [5000, 5000, 256, 256, 5000]
    assert lines[4]["megabytes"] < 5000 * 2048 * 4 / 1e6  # features are on the disk


@pytest.mark.parametrize(
    ("check", "rows"),
    [("syncs", ["SMI", "BarlowTwins"]), ("views", ["cifar10", "pirl"]), ("memory", ["float32"])],
)
def test_checks_for_a_gpu_run_on_a_cpu_too(check, rows, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    gpu = importlib.import_module("gpu")
    monkeypatch.setattr(sys, "argv", ["gpu.py", check, "--device", "cpu", "--tiny"])
    gpu.main()
    first_words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert set(rows) <= set(first_words)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there are no TAP interfaces here")
@pytest.mark.long
def test_machines(tmp_path):
    out = tmp_path / "machines.json"
    result = run_benchmark("machines.py", "--quick", "--out", str(out))
    results = json.loads(out.read_text())
    every, fourth = results["steps"].values()
    parameters = 1_883_808
    assert every["bytes"][0] == pytest.approx(4 * parameters, rel=0.02)  # gradients
    assert fourth["bytes"][0] == pytest.approx(3 * parameters, rel=0.02)  # weights, two moments
    assert results["knn"].keys() == {"1", "4"}
    assert "| SMI, average_every 4 |" in result.stdout
