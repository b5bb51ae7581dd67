import hashlib
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from smi.data import Store, load
from smi.data.arrays import read_arrays
from smi.data.cache import cache_folder
from smi.data.decoder import decode
from smi.data.describe import describe_folder
from smi.data.folders import read_folder
from smi.data.sources import resolve_source
from smi.data.value_range import range_of_files, to_bytes
from support.pictures import Draw

RANDOM = np.random.default_rng(0)


def write(path: Path, values: np.ndarray) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return values


def cells(count: int) -> np.ndarray:
    """Return dark 12-bit images, as microscopes write them."""
    return RANDOM.integers(100, 3000, (count, 12, 12)).astype(np.uint16)


@pytest.fixture
def microscopy(tmp_path: Path) -> Path:
    for i, image in enumerate(cells(12)):
        write(tmp_path / "cells" / "train" / "ab"[i % 2] / f"{i:02}.tif", image)
    for i, image in enumerate(cells(4)):
        write(tmp_path / "cells" / "val" / "ab"[i % 2] / f"{i}.tif", image * 4)
    return tmp_path / "cells"


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(["uint16", "int32", "float32"]),
    low=st.floats(-70_000, 70_000),
    width=st.floats(0.01, 70_000),
    seed=st.integers(0, 100),
)
def test_a_file_and_an_array_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, low: float, width: float, seed: int
) -> None:
    values = np.random.default_rng(seed).uniform(low - width, low + 2 * width, (16, 16))
    values = np.clip(values, 0, 65_535).astype(dtype) if dtype == "uint16" else values.astype(dtype)
    path = tmp_path_factory.mktemp("a") / "a.tif"
    write(path, values)
    planes, _ = decode(str(path), 16, (low, low + width))
    decoded = np.frombuffer(planes[1], np.uint8).reshape(16, 16)
    assert np.array_equal(decoded, to_bytes(values[None], (low, low + width))[0])
    expected = np.clip((values.astype(np.float64) - low) / width, 0, 1) * 255
    assert np.abs(decoded - expected).max() <= 0.51


def test_arrays_are_converted_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = RANDOM.integers(0, 5000, (11, 4, 6, 6)).astype(np.uint16)
    np.save(tmp_path / "a.npy", deep)
    at_once = read_arrays(tmp_path / "a.npy").train
    for values in (1, 300):  # less than an image, two images
        monkeypatch.setattr("smi.data.value_range.VALUES_PER_CHUNK", values)
        in_chunks = read_arrays(tmp_path / "a.npy").train
        assert np.array_equal(in_chunks.parts[0], at_once.parts[0])


def test_nan_is_black_and_infinity_is_cut_off(tmp_path: Path) -> None:
    values = np.array([[np.nan, np.inf], [-np.inf, 0.5]], dtype=np.float32)
    write(tmp_path / "a.tif", values)
    planes, _ = decode(str(tmp_path / "a.tif"), 2, (0, 1))
    assert list(planes[0]) == [0, 255, 0, 128]
    assert to_bytes(values, (0, 1)).tolist() == [[0, 255], [0, 128]]


def test_the_range_is_that_of_the_training_files(
    microscopy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((microscopy / "train").rglob("*.tif"))
    values = np.stack([np.asarray(Image.open(file)) for file in files])
    low, high = np.percentile(values, (0.1, 99.9))
    expected = (np.floor(low), np.ceil(high))
    for split in ("pretrain", "train", "val"):
        assert resolve_source(microscopy, split).value_range == expected
    assert capsys.readouterr().err == (
        f"16-bit images: values from {expected[0]:,.0f} to {expected[1]:,.0f} become 0 to 255 "
        "(percentiles 0.1 and 99.9 of 12 files)\n"
    )


def test_a_large_folder_is_sampled_evenly(tmp_path: Path) -> None:
    for i in range(200):
        write(tmp_path / f"{i:03}.png", np.full((4, 4), 1000 + i, dtype=np.uint16))
    assert range_of_files(read_folder(tmp_path).train) == (1000, 1196)  # every fourth file


def test_large_images_are_thinned(tmp_path: Path) -> None:
    ramp = np.linspace(0, 60_000, 1000 * 700).reshape(1000, 700).astype(np.uint16)
    write(tmp_path / "a.tif", ramp)
    assert range_of_files(read_folder(tmp_path).train) == pytest.approx((60, 59_940), abs=300)


def test_eight_bits_have_no_range_and_the_same_cache(tmp_path: Path, draw: Draw) -> None:
    for i, suffix in enumerate(("png", "tif", "jpg")):
        draw(tmp_path / "photos" / f"{i}.{suffix}", i)
    files = resolve_source(tmp_path / "photos", "train")
    assert files.value_range is None
    key = hashlib.sha256(b"1 32")
    for path in sorted((tmp_path / "photos").iterdir()):
        info = path.stat()
        key.update(f"\0{path.name}\0{info.st_size} {info.st_mtime_ns}".encode())
    folder = cache_folder(files, 32, tmp_path, "aspect")
    assert folder.name == key.hexdigest()[:32]  # that of earlier versions


def test_damaged_files_are_passed_over(microscopy: Path) -> None:
    expected = range_of_files(read_folder(microscopy).train)
    (microscopy / "train" / "a" / "empty.tif").touch()
    (microscopy / "train" / "a" / "text.tif").write_text("hello")
    cut = (microscopy / "train" / "a" / "00.tif").read_bytes()[:100]
    (microscopy / "train" / "a" / "cut.tif").write_bytes(cut)
    assert range_of_files(read_folder(microscopy).train) == expected


def test_a_constant_folder_is_black(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "flat" / f"{i}.tif", np.full((8, 8), 500.25, dtype=np.float32))
    store = load(tmp_path / "flat", resolution=8)
    assert store[:].max() == 0


@pytest.mark.parametrize("cached", [True, False])
def test_stores_scale_the_files(microscopy: Path, cached: bool) -> None:
    def opened(split: str) -> Store:
        return load(
            microscopy,
            split,
            resolution=12,
            num_workers=1,
            max_cache_bytes=10**9 if cached else 0,
        )

    store = opened("val")
    assert store.value_range is not None
    low, high = store.value_range
    files = sorted((microscopy / "val").rglob("*.tif"))
    for file, image in zip(files, store[:].numpy(), strict=True):
        values = np.asarray(Image.open(file)).astype(np.float64)
        expected = np.clip((values - low) / (high - low), 0, 1) * 255
        assert np.abs(image - expected).max() <= 0.51
    store.close()
    train = opened("train")
    assert train[:].float().std() > 60  # the upper byte would be 0 to 11
    train.close()


def test_the_cache_records_the_range(microscopy: Path, tmp_path: Path) -> None:
    store = load(microscopy, resolution=12, cache=tmp_path / "cache", num_workers=1)
    (record,) = (tmp_path / "cache").glob("*/*/files.json")
    assert tuple(json.loads(record.read_text())["value_range"]) == store.value_range
    before = store[:]
    for file in (microscopy / "train").rglob("*.tif"):
        write(file, np.asarray(Image.open(file)) * 2)
    after = load(microscopy, resolution=12, cache=tmp_path / "cache", num_workers=1)
    assert after.value_range != store.value_range
    assert torch.allclose(after[:].float(), before.float(), atol=2)


def test_floats_and_integers_of_32_bits_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, image in enumerate(cells(4)):
        write(tmp_path / "float" / f"{i}.tif", image.astype(np.float32) / 3000)
        write(tmp_path / "long" / f"{i}.tif", image.astype(np.int32) * 1000)
    for name, kind in (("float", "floating-point"), ("long", "32-bit")):
        described = describe_folder(read_folder(tmp_path / name))
        assert described.unreadable == []
        assert described.value_range is not None
        assert "become 0 to 255" in described.text()
        assert f"{kind} images: values from" in capsys.readouterr().err
        store = load(tmp_path / name, resolution=12, num_workers=1)
        assert store[:].float().std() > 60
        store.close()


def test_a_warning_about_16_bit_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        size = struct.pack(">I", len(data))
        return size + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + np.full(3 * 8, 3000, dtype=">u2").tobytes()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(row * 8)) + chunk(b"IEND", b"")
    (tmp_path / "colour.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + data)
    assert resolve_source(tmp_path, "train").value_range is None
    assert "Pillow reads only the upper byte" in capsys.readouterr().err
