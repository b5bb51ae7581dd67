import json
import sys
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file

from smi.cli import main
from smi.nn import create_encoder
from smi.runs.checkpoint import save_encoder
from support.inference import UNUSUAL_NAMES, draw


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with a cache of its own."""
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """Write a network of random weights, for squares of 20 pixels that are resized to 16."""
    made = create_encoder("support.homemade.Net", image_size=16)
    about = {
        "encoder": {"name": "support.homemade.Net"},
        "image_size": 16,
        "resolution": 20,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
    }
    save_encoder(
        tmp_path / "net.safetensors",
        made.network.state_dict(),
        about | {"about": {"method": "SMI", "epoch": 15.0}},
    )
    return tmp_path / "net.safetensors"


@pytest.fixture
def pixels(tmp_path: Path) -> Path:
    """Write an encoder that returns the pixels, between -1 and 1."""
    about = {
        "encoder": {"name": "torch.nn.Flatten"},
        "image_size": 8,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    save_encoder(tmp_path / "pixels.safetensors", {}, about)
    return tmp_path / "pixels.safetensors"


@pytest.fixture
def published(tmp_path: Path) -> dict[str, str]:
    """Write random weights of a network of timm, as a file and as a folder of its hub.

    Return the sources by kind. The network of the folder is for images of 96 pixels.
    """
    network = timm.create_model("resnet10t", num_classes=3)
    (tmp_path / "hub").mkdir()
    save_file(network.state_dict(), tmp_path / "r10.safetensors")
    save_file(network.state_dict(), tmp_path / "hub" / "model.safetensors")
    config = {"input_size": [3, 96, 96], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    about = {"architecture": "resnet10t", "num_classes": 3, "pretrained_cfg": config}
    (tmp_path / "hub" / "config.json").write_text(json.dumps(about))
    return {
        "file": "timm:resnet10t@r10.safetensors",
        "tag": "timm:resnet10t.c3_in1k@r10.safetensors",
        "folder": f"local-dir:{tmp_path / 'hub'}",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Draw images with unusual names, and add files that are not images."""
    for seed, name in enumerate(UNUSUAL_NAMES):
        draw(tmp_path / "odd" / name, seed)
    (tmp_path / "odd" / "broken.jpg").write_bytes(b"nothing")
    (tmp_path / "odd" / "notes.txt").write_text("no image")
    return tmp_path / "odd"


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Draw 23 images in one folder."""
    for i in range(23):
        draw(tmp_path / "flat" / f"{i:02}.png", i)
    return tmp_path / "flat"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in this process, where torch is already loaded."""

    def command(*arguments: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        monkeypatch.setattr(sys, "argv", ["smi", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return command
