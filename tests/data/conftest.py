from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.pictures import Draw


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr("smi.terminal._announced", set())


@pytest.fixture
def draw() -> Draw:
    """Return a function that writes an image; each seed gives another one."""

    def draw(
        path: Path, seed: int = 0, size: tuple[int, int] = (20, 16), **options: object
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path, **options)
        return path

    return draw
