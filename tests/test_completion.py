"""Completion in the shells themselves."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smi.cli import COMMANDS

SMI = Path(sys.executable).with_name("smi")


def script(shell: str) -> str:
    result = subprocess.run(
        [str(SMI), "--completion", shell], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stderr == ""
    return result.stdout


def shell_path(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.fixture(scope="module")
def bash_script():
    return script("bash")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], ["pretrain"]),
        (["pretrain", "cifar10-s"], ["cifar10-small"]),
        (["pretrain", "--method", "Bar"], ["BarlowTwins"]),
        (["pretrain", "--optimizer.weight"], ["--optimizer.weight_decay"]),
        (["pretrain", "--precision", "b"], ["bfloat16"]),
        (["pretrain", "--out", ""], []),  # the shell lists files
        (["list", "se"], ["settings"]),
        (["list", "settings", "cifar100"], ["cifar100"]),
        (["doctor", ""], []),  # folders of runs
        (["export", "--to", "onn"], ["onnx"]),
        (["doctor", "--js"], ["--json"]),
    ],
    ids=" ".join,
)
def test_bash_completes(bash_script, words, expected):
    assert bash_completions(bash_script, words) == expected


def bash_completions(script: str, words: list[str]) -> list[str]:
    typed = " ".join(f"'{word}'" for word in ["smi", *words])
    press = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _smi"
    result = subprocess.run(
        [shell_path("bash"), "-c", f'{script}\n{press}; echo "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout.split()


def test_bash_knows_every_command(bash_script):
    known = bash_completions(bash_script, [""])
    assert {command.name for command in COMMANDS} < set(known)


def test_fish_completes():
    code = f"{script('fish')}\ncomplete -C 'smi pretrain --method Bar'"
    result = subprocess.run(
        [shell_path("fish"), "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split()[0] == "BarlowTwins"
    assert result.stderr == ""


def test_zsh_reads_the_script():
    """Completion itself needs a terminal there."""
    code = f"{script('zsh')}\nwhich _smi"
    result = subprocess.run(
        [shell_path("zsh"), "-fc", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "bfloat16" in result.stdout
    assert result.stderr == ""


def test_another_shell_is_refused():
    result = subprocess.run(
        [str(SMI), "--completion", "tcsh"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert "bash" in result.stderr
