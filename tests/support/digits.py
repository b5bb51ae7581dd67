"""Pretrain on the digits with a network of a few hundred weights, in this process or another."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import smi
from support.forked import Forked

TESTS = Path(__file__).parents[1]
SMI = [str(Path(sys.executable).with_name("smi"))]
TINY = ["--encoder", "support.homemade.Net", "--batch-size", "64", "--log.probe_images", "200"]
WIDTHS = ["--method.widths", "[16, 16]"]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | more


def command(
    *arguments: str, program: list[str] = SMI, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run `smi` in another process, forked from one that has imported torch; or a program."""
    if program == SMI:
        return run_script(*SMI, *arguments, cwd=TESTS, **more)
    return subprocess.run(
        [*program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=environment(**more),
        cwd=TESTS,
    )


def run_script(
    script: str | Path, *arguments: object, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in another process, forked from one that has imported torch."""
    forked = Forked(script, *arguments, env=environment(**more), cwd=cwd)
    try:
        output, errors = forked.communicate(timeout=600)
    finally:
        forked.kill()
    return subprocess.CompletedProcess(arguments, forked.returncode or 0, output, errors)


def digits(out: Path, *arguments: str) -> list[str]:
    """Return the words of a command that pretrains on the digits."""
    return ["pretrain", "digits", "--out", str(out), *TINY, *arguments]


def tiny(out: Path, **overrides: object) -> smi.Run:
    """Pretrain for one epoch of 25 steps, in this process."""
    settings = {"encoder": "support.homemade.Net", "epochs": 1, "method.widths": [8, 8]}
    return smi.pretrain("digits", out=out, overrides=settings | overrides)


def same(a: object, b: object, where: str = "") -> None:
    """Assert that nested values are equal to the bit."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def same_run(a: Path, b: Path) -> None:
    """Assert that two runs have the same checkpoint and the same metrics, but for times."""
    states = [
        torch.load(folder / "checkpoints" / "last.pt", weights_only=True) for folder in (a, b)
    ]
    for state in states:
        del state["journal"]["position"]  # the lengths of lines differ with their times
    same(*states)
    lines = [[{**line, "timing": None} for line in smi.Run(folder).lines()] for folder in (a, b)]
    same(*lines)
