"""The command line through its real entry point."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import smi

SMI = Path(sys.executable).with_name("smi")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SMI), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_cost_prints_the_papers_table():
    result = run("cost")
    assert result.returncode == 0
    assert result.stderr == ""
    for number in ("137.43", "274.87", "103.07", "12.88", "24(256×255)"):
        assert number in result.stdout


def test_cost_json_and_measure():
    result = run("cost", "--batch", "8", "--dim", "16", "--devices", "1", "--measure", "--json")
    assert result.returncode == 0
    assert result.stderr == ""
    assert len(json.loads(result.stdout)["losses"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("cost", "--batch", "0"),
        ("cost", "--dim", "many"),
        ("cost", "--devices", "-1"),
        ("cost", "--bath", "3"),
        ("csot",),
        (),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "--help" in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["cost", "--help"], ["cost"]])
def test_answers_without_torch(arguments):
    code = (
        "import sys, smi.cli; sys.argv = ['smi', *sys.argv[1:]]\n"
        "try: smi.cli.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_module_and_version():
    result = subprocess.run(
        [sys.executable, "-m", "smi", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == f"smi {smi.__version__}\n"


def test_a_closed_pipe_is_not_a_traceback():
    """A reader that is gone before anything is written, and a disk that is full."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for buffering in ({}, {"PYTHONUNBUFFERED": "1"}):
        command = f"{SMI} cost | (exec 0<&-; sleep 0.5)"
        result = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment | buffering,
        )
        assert result.stderr == ""


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full, which Linux has"
)
def test_a_full_disk_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [str(SMI), "cost"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == "smi: No space left on device\n"


def test_too_large_to_measure_is_one_sentence():
    result = run("cost", "--measure", "--batch", "100000", "--dim", "1000000000")
    assert result.returncode == 2
    assert result.stderr.startswith("smi: the memory here does not suffice")
    assert len(result.stderr.splitlines()) == 1


def test_public_names():
    assert smi.SMILoss is smi.losses.SMILoss
    assert smi.nn.Queue
    assert set(dir(smi)) >= {"SMILoss", "losses", "nn"}
    with pytest.raises(AttributeError, match="no attribute 'SMILos'"):
        _ = smi.SMILos
