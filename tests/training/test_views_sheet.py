"""Test `smi data --views`: once in a new process, then in this one, which has imported torch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smi.cli import main
from smi.device import Runtime
from smi.training.views_sheet import write_sheet
from smi.views.png import draw_tile


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr."""
        monkeypatch.setattr(sys, "argv", ["smi", "data", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photographs"
    root.mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((60, 50)).save(root / f"{i}.png")
    return root


def test_a_named_dataset_has_its_own_recipe(tmp_path):
    command = [sys.executable, "-m", "smi", "data", "digits", "--views", "views.png", "--rows", "3"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "views.png: 3 images of digits, 4 draws of the views of digits (8 px)\n"
    with Image.open(tmp_path / "views.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.size == (9 * 96 + 4 * 20 + 4 * 4, 22 + 3 * 96 + 2 * 4)
    assert [path.name for path in tmp_path.iterdir()] == ["views.png"]


@pytest.mark.parametrize("recipe", ["cifar10", "cifar10-multicrop", "cifar10-jigsaw"])
def test_a_folder_with_a_recipe(run, tmp_path, folder, recipe):
    code, output, errors = run(
        str(folder), "--recipe", recipe, "--views", "sheet.png", "--rows", "99"
    )
    assert (code, errors) == (0, "")
    assert recipe in output
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert np.asarray(sheet).std() > 10


def test_a_folder_gets_the_views_that_pretraining_would_use(run, tmp_path, folder):
    code, output, errors = run(str(folder), "--views", "views.png", "--rows", "2")
    assert (code, errors) == (0, "")
    assert "draws of the views of cifar10 (32 px)" in output
    for name in ("a.png", "b.png"):  # by the name of that recipe
        assert run(str(folder), "--recipe", "cifar10-small", "--views", name)[0] == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_seed_decides_images_and_draws(run, tmp_path, folder):
    for name, seed in (("a.png", "1"), ("b.png", "1"), ("c.png", "2")):
        assert run(str(folder), "--recipe", "cifar10", "--seed", seed, "--views", name)[0] == 0
    a, b, c = ((tmp_path / name).read_bytes() for name in ("a.png", "b.png", "c.png"))
    assert a == b != c


def test_from_python_it_returns_the_path_and_can_be_quiet(tmp_path, folder, capsys):
    out = tmp_path / "sheet.png"
    options = {"recipe": "cifar10", "out": out, "rows": 2, "runtime": Runtime(num_workers=1)}
    assert write_sheet(str(folder), **options, quiet=True) == out
    assert capsys.readouterr().out == ""
    quiet = out.read_bytes()
    assert write_sheet(str(folder), **options) == out
    assert capsys.readouterr().out.startswith(f"{out}: 2 images of {folder}, ")
    assert out.read_bytes() == quiet


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-here", "--views", "views.png"), "nothing-here"),
        (("digits", "--views", "views.png", "--recipe", "cifar"), "there is no policy 'cifar'"),
        (("digits", "--views", "views.jpg"), "must end in .png"),
        (("digits", "--views", "nowhere/views.png"), "there is no folder nowhere"),
        (("nothing-here", "--views", "views.png", "--recipe", "cifar10"), "nothing-here"),
        (("digits", "--rows", "0"), "--help"),
        (("digits", "--seed", "x"), "--help"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, tmp_path, folder, arguments, message):
    code, output, errors = run(*arguments)
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert message in errors
    assert not (tmp_path / "views.png").exists()


def test_an_image_that_is_not_square_keeps_its_shape():
    tile = np.asarray(draw_tile(torch.zeros(3, 10, 20, dtype=torch.uint8), 40))
    assert tile.shape == (40, 40, 3)
    assert tile[10:30].max() == 0
    assert tile[:10].min() == tile[30:].min() == 255
    assert np.asarray(draw_tile(torch.zeros(3, 8, 8, dtype=torch.uint8), 24)).max() == 0
