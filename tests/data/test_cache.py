import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from smi.data.cache import cache_bytes, is_cached, open_cache
from smi.data.decoder import Keep, bands, decode_picture
from smi.data.folders import FileSet, read_folder
from smi.errors import UserError
from support.pictures import Draw

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

OPEN = """
import sys
from pathlib import Path
from smi.data.cache import open_cache
from smi.data.folders import read_folder
print(open_cache(read_folder(Path(sys.argv[1])).train, 16, Path(sys.argv[2])).pixels.sum())
"""
HANG = """
import time
import smi.data.cache
smi.data.cache.sync = lambda path: (print("decoded, not renamed", flush=True), time.sleep(60))
"""


@pytest.fixture
def files(tmp_path: Path, draw: Draw) -> FileSet:
    for i in range(40):
        draw(tmp_path / "set" / f"{i}.png", i)
    return read_folder(tmp_path / "set").train


def builder(files: FileSet, cache: Path, script: str = OPEN) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, str(files.root), str(cache)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def caches(cache: Path) -> list[Path]:
    return list(cache.glob("*/*"))


def decoded(files: FileSet, row: int, keep: Keep = "aspect") -> bytes:
    path = str(files.root / files.entries[row].path)
    return b"".join(bands(decode_picture(path, 16, keep)[0]))


@pytest.mark.parametrize("keep", ["aspect", "square"])
def test_rows_are_the_decoded_files(
    files: FileSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: Keep
) -> None:
    cache = open_cache(files, 16, tmp_path / "cache", keep=keep)
    assert cache.bad == {}
    for row in range(len(files)):
        assert cache.image(row).tobytes() == decoded(files, row, keep)
        assert cache.image(row).shape == (3, 16, 20 if keep == "aspect" else 16)
    assert "decoding 40 images" in capsys.readouterr().err
    again = open_cache(files, 16, tmp_path / "cache", keep=keep)
    assert np.array_equal(cache.pixels, again.pixels)
    assert np.array_equal(cache.start, again.start)
    assert capsys.readouterr().err == ""


def test_the_size_of_a_cache_is_estimated_from_headers(
    files: FileSet, tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, size in enumerate([(500, 20), (20, 31), (64, 64), (1, 9)]):
        draw(tmp_path / "set" / f"other{i}.jpg", i, size=size)
    files = read_folder(tmp_path / "set").train
    cache = open_cache(files, 16, tmp_path / "cache")
    assert cache_bytes(files, 16, "aspect") == cache.num_bytes  # all headers are read
    assert len(cache.pixels) >= cache.num_bytes  # there may be gaps between images
    assert cache_bytes(files, 16, "square") == 44 * 3 * 16 * 16
    monkeypatch.setattr("smi.data.cache.NUM_SAMPLED_HEADERS", 15)
    assert cache_bytes(files, 16, "aspect") == pytest.approx(cache.num_bytes, rel=0.2)


def test_a_cache_is_made_below_the_limits_only(
    files: FileSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    size = cache_bytes(files, 16, "aspect")
    assert size == 40 * 3 * 16 * 20
    assert is_cached(files, 16, cache, max_cache_bytes=size)
    assert not is_cached(files, 16, cache, max_cache_bytes=size - 1)
    assert is_cached(files, 16, cache, keep="square", max_cache_bytes=size - 1)
    monkeypatch.setattr("smi.data.cache.free_bytes", lambda _: 2 * size - 1)
    assert not is_cached(files, 16, cache, max_cache_bytes=size)
    open_cache(files, 16, cache)
    assert is_cached(files, 16, cache, max_cache_bytes=size)  # it exists: the disk does not matter
    assert not is_cached(files, 16, cache, max_cache_bytes=size - 1)


def test_a_changed_file_rebuilds_and_removes_the_old_cache(
    files: FileSet, tmp_path: Path, draw: Draw
) -> None:
    before = open_cache(files, 16, tmp_path / "cache").image(7).copy()
    draw(files.root / files.entries[7].path, seed=1000)
    after = open_cache(read_folder(files.root).train, 16, tmp_path / "cache")
    assert not np.array_equal(before, after.image(7))
    draw(tmp_path / "set" / "new.png")
    assert len(open_cache(read_folder(files.root).train, 16, tmp_path / "cache")) == 41
    assert len(caches(tmp_path / "cache")) == 1
    open_cache(files, 8, tmp_path / "cache")
    assert len(caches(tmp_path / "cache")) == 2
    open_cache(files, 8, tmp_path / "cache", keep="square")
    assert len(caches(tmp_path / "cache")) == 3


def test_two_processes_build_a_cache_once(files: FileSet, tmp_path: Path) -> None:
    processes = [builder(files, tmp_path / "cache") for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    expected = open_cache(files, 16, tmp_path / "cache").pixels.sum()
    assert [output for output, _ in outputs] == [f"{expected}\n"] * 2
    assert sum("decoding" in error for _, error in outputs) == 1
    assert len(caches(tmp_path / "cache")) == 1


def test_a_killed_build_leaves_no_valid_cache(files: FileSet, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with builder(files, cache, HANG + OPEN) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "decoded, not renamed\n"
        process.kill()
    (left,) = caches(cache)
    assert left.name.startswith("partial-")
    assert open_cache(files, 16, cache).image(3).tobytes() == decoded(files, 3)
    (made,) = caches(cache)
    assert made != left


def test_a_cache_that_cannot_be_written_is_a_user_error(files: FileSet, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"caching .* failed: (Not a directory|File exists)"):
        open_cache(files, 16, tmp_path / "file" / "cache")


def test_an_interrupted_build_stops_its_workers(
    files: FileSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("smi.terminal.Progress.advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_cache(files, 16, tmp_path / "cache")
    assert caches(tmp_path / "cache") == []
