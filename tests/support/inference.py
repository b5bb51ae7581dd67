"""Images, commands and mistakes for the tests of `smi embed` and `smi neighbours`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

TESTS = Path(__file__).parents[1]
UNUSUAL_NAMES = [
    "a/deep/y.png",
    "a/x.jpg",
    "b.png",
    "new\nline.png",
    "quo'te\".png",
    "train/t.png",
    "val/z.webp",
    "été 日本.png",
]


def draw(path: Path, seed: int, size: tuple[int, int] = (20, 16)) -> Path:
    """Write an image of 4 x 4 coloured blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path)
    return path


def names_in(folder: Path) -> list[str]:
    """List all paths in a folder, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which can import `support`."""
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "smi", *arguments, "--trust"]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=120, check=False, env=environment
    )


def but(command: tuple[str, ...], option: int | str, value: str) -> tuple[str, ...]:
    """Replace one word of a command, or the value of an option."""
    place = option if isinstance(option, int) else command.index(option) + 1
    return *command[:place], value, *command[place + 1 :]


def assert_refused(
    command: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], sentence: str
) -> None:
    """Assert that a mistake gives one sentence and exit code 2, and leaves no file."""
    for name in ("empty", "bad", "folder.npz"):
        Path(name).mkdir()
    for i in range(3):
        Path(f"bad/{i}.png").write_bytes(b"nothing")
    names = names_in(Path("."))
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert sentence in err
    assert names_in(Path(".")) == names
