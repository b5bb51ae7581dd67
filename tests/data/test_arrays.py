import gzip
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import smi
from smi.cli import main
from smi.data import load
from smi.data.arrays import is_array_file, read_arrays
from smi.data.folders import is_held_out
from smi.data.sources import Source, all_images, dataset_label
from smi.errors import UserError

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def plain_rgb(image: np.ndarray) -> np.ndarray:
    """Convert one uint8 image [H, W, C] to [3, S, S] as the documentation says, pixel by pixel."""
    height, width, channels = image.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    result = np.empty((3, side, side), dtype=np.uint8)
    for y in range(side):
        for x in range(side):
            pixel = [int(value) for value in image[top + y, left + x]]
            if channels == 1:
                pixel = pixel * 3
            elif channels == 2:
                pixel = [*pixel, 0]
            elif channels == 4:
                share = pixel[3] / 255
                pixel = [int(value * share + 255 * (1 - share) + 0.5) for value in pixel[:3]]
            result[:, y, x] = pixel
    return result


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 3),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    channels=st.integers(0, 4),
    first=st.booleans(),
    is_column_major=st.booleans(),
)
def test_every_shape_of_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    height: int,
    width: int,
    channels: int,
    first: bool,
    is_column_major: bool,
) -> None:
    images = pixels(count, height, width, max(channels, 1))
    stored = images.transpose(0, 3, 1, 2) if first else images
    stored = images[..., 0] if channels == 0 else stored
    path = tmp_path_factory.mktemp("a") / "a.npy"
    np.save(path, np.asfortranarray(stored) if is_column_major else np.ascontiguousarray(stored))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns about read-only arrays
        store = load(path)
    assert store.resolution == min(height, width)
    assert store.labels is None
    expected = np.stack([plain_rgb(image) for image in images])
    assert np.array_equal(store[:].numpy(), expected)


def test_channels_are_last_if_they_could_be_either(tmp_path: Path) -> None:
    images = pixels(2, 3, 3, 3)
    np.save(tmp_path / "a.npy", images)
    assert np.array_equal(load(tmp_path / "a.npy")[:].numpy(), images.transpose(0, 3, 1, 2))


def test_bytes_of_a_npy_file_are_mapped_and_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, pixels(10, 8, 8))
    before = path.read_bytes()
    (part,) = read_arrays(path).train.parts
    assert part.strides[1] == 0  # three channels of one memory
    base = part
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    part[0] = 7
    assert path.read_bytes() == before


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int16", ">u2", "float16", "float32", "f8"])
def test_other_numbers_are_scaled_by_percentiles(
    tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = RANDOM.integers(0, 120, (50, 8, 8)).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    images = read_arrays(tmp_path / "a.npy").train
    low, high = np.percentile(values.astype(float), (0.1, 99.9))
    assert images.value_range == pytest.approx((low, high), abs=1)
    low, high = images.value_range
    expected = np.clip((values.astype(float) - low) / (high - low), 0, 1) * 255
    assert np.abs(images.parts[0][:, 1] - expected).max() <= 0.5 + 1e-3


def test_a_sentence_says_how_values_are_scaled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ramp = np.linspace(203, 4003, 40 * 64).round().astype(np.uint16).reshape(40, 8, 8)
    np.save(tmp_path / "a.npy", ramp)
    for _ in range(2):  # it is said once
        load(tmp_path / "a.npy")
    expected = (
        "16-bit images: values from 206 to 4,000 become 0 to 255 "
        "(percentiles 0.1 and 99.9 of 40 images)\n"
    )
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_long_integers_that_fit_are_bytes(tmp_path: Path, dtype: str) -> None:
    values = pixels(4, 6, 6)
    np.save(tmp_path / "a.npy", values.astype(dtype))
    images = read_arrays(tmp_path / "a.npy").train
    assert images.value_range is None
    assert np.array_equal(images.parts[0][:, 0], values)
    np.save(tmp_path / "b.npy", values.astype(dtype) + 1000)
    assert read_arrays(tmp_path / "b.npy").train.value_range is not None


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 8, 8)
    values[0, 0, :3] = np.nan, np.inf, -np.inf
    np.save(tmp_path / "a.npy", values)
    images = read_arrays(tmp_path / "a.npy").train
    assert images.parts[0][0, 0, 0, :3].tolist() == [0, 255, 0]
    assert images.value_range is not None
    assert images.value_range[1] <= 1
    np.save(tmp_path / "b.npy", np.full((3, 8, 8), np.nan))
    with pytest.raises(UserError, match="no finite values"):
        load(tmp_path / "b.npy")


def test_an_encoder_range_replaces_that_of_the_images(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((2, 8, 8), 600, dtype=np.uint16))
    images = Source(tmp_path / "a.npy", value_range=(100, 1100)).split("train")
    assert images.value_range == (100, 1100)
    assert set(np.unique(images.parts[0])) == {128}


# ------ .npz


def test_the_names_of_keras(tmp_path: Path) -> None:
    train, test = pixels(7, 8, 8), pixels(3, 8, 8)
    y_train, y_test = np.array([5, 0, 5, 9, 0, 9, 9]), np.array([9, 7, 0], dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_train=train, y_train=y_train, x_test=test, y_test=y_test)
    first, second = load(tmp_path / "a.npz"), load(tmp_path / "a.npz", "val")
    assert first.classes == second.classes == ("0", "5", "7", "9")
    assert first.labels is not None
    assert second.labels is not None
    assert first.labels.tolist() == [1, 0, 1, 3, 0, 3, 3]
    assert second.labels.tolist() == [3, 2, 0]
    assert np.array_equal(second[:].numpy()[:, 2], test)
    pretrain = load(tmp_path / "a.npz", "pretrain")
    assert (len(pretrain), pretrain.labels) == (7, None)
    assert [len(images) for images in all_images(tmp_path / "a.npz")] == [7, 3]


@pytest.mark.parametrize(("parts", "held_out"), [(("val",), 3), (("val", "test"), 4)])
def test_the_names_of_medmnist(tmp_path: Path, parts: tuple[str, ...], held_out: int) -> None:
    arrays = {"train_images": pixels(6, 8, 8, 3), "train_labels": np.array([[0], [1]] * 3)}
    for count, part in zip((3, 4), parts, strict=False):
        arrays |= {f"{part}_images": pixels(count, 8, 8, 3), f"{part}_labels": np.ones((count, 1))}
        arrays[f"{part}_labels"] = arrays[f"{part}_labels"].astype(np.uint8)
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    val = load(tmp_path / "a.npz", "val")
    assert len(val) == held_out
    assert val.labels is not None
    assert val.labels.tolist() == [1] * held_out
    assert np.array_equal(val[:].numpy(), arrays[f"{parts[-1]}_images"].transpose(0, 3, 1, 2))


def test_a_tenth_of_labelled_images_is_held_out(tmp_path: Path) -> None:
    images = pixels(200, 5, 5)
    labels = np.array(["cat", "dog"] * 100)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    held_out = [i for i in range(200) if is_held_out(f"{i}")]
    kept = [i for i in range(200) if i not in held_out]
    train, val = load(tmp_path / "a.npz"), load(tmp_path / "a.npz", "val")
    assert np.array_equal(val[:].numpy()[:, 0], images[held_out])
    assert np.array_equal(train[:].numpy()[:, 0], images[kept])
    assert train.classes == ("cat", "dog")
    assert val.labels is not None
    assert val.labels.tolist() == [i % 2 for i in held_out]
    (whole,) = all_images(tmp_path / "a.npz")  # in the order of the file
    assert np.array_equal(whole.parts[0][:, 1], images)


def test_the_only_images_may_have_any_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", cells=pixels(4, 8, 8), weights=np.ones(4))
    assert len(load(tmp_path / "a.npz", "pretrain")) == 4
    with pytest.raises(UserError, match="no images to validate on"):
        load(tmp_path / "a.npz", "val")


def test_labels_that_are_not_classes_are_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(4, 8, 8), labels=np.ones((4, 14)))
    assert load(tmp_path / "a.npz").labels is None
    assert "labels of type float64 [4, 14] are not used" in capsys.readouterr().err


# ------ idx


def write_idx(path: Path, array: np.ndarray, compress: bool) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = header + array.tobytes()
    path.write_bytes(gzip.compress(data) if compress else data)


@pytest.mark.parametrize("ending", ["-idx{}-ubyte", ".idx{}-ubyte", "-idx{}.ubyte"])
@pytest.mark.parametrize("compress", [False, True])
def test_mnist_files(tmp_path: Path, ending: str, compress: bool) -> None:
    arrays = {"train": (pixels(6, 9, 9), [3, 1, 4, 1, 5, 9]), "t10k": (pixels(2, 9, 9), [5, 3])}
    suffix = ".gz" if compress else ""
    for part, (images, labels) in arrays.items():
        write_idx(tmp_path / f"{part}-images{ending.format(3)}{suffix}", images, compress)
        label_path = tmp_path / f"{part}-labels{ending.format(1)}"  # never compressed
        write_idx(label_path, np.array(labels, dtype=np.uint8), False)
    source = Source(tmp_path / f"train-images{ending.format(3)}{suffix}")
    train, val = load(source), load(source, "val")
    assert np.array_equal(train[:].numpy()[:, 0], arrays["train"][0])
    assert np.array_equal(val[:].numpy()[:, 0], arrays["t10k"][0])
    assert val.classes == ("1", "3", "4", "5", "9")
    assert val.labels is not None
    assert val.labels.tolist() == [3, 1]
    with pytest.raises(UserError, match="give a file such as train-images-idx3-ubyte"):
        load(tmp_path / f"train-labels{ending.format(1)}")


@pytest.mark.parametrize("compress", [False, True])
def test_a_damaged_idx_file(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / f"images-idx3-ubyte{'.gz' if compress else ''}"
    write_idx(path, pixels(4, 8, 8), compress)
    data = path.read_bytes()
    for size in (0, 3, 10, len(data) - 5):
        path.write_bytes(data[:size])
        with pytest.raises(UserError, match="cannot be read") as error:
            load(path)
        assert "\n" not in str(error.value)


# ------ mistakes


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((4, 8, 8), dtype=bool), "values of type bool"),
        (np.zeros((4, 8, 8), dtype=complex), "values of type complex128"),
        (np.zeros((0, 8, 8), dtype=np.uint8), "no images"),
        (np.zeros((4, 8, 0), dtype=np.uint8), "no images"),
        (np.array(7, dtype=np.uint8), r"is \[\]: images are"),
        (np.zeros((4, 64), dtype=np.uint8), r"\[4, 64\]: images are \[n, H, W\]"),
        (np.zeros((4, 8, 8, 8), dtype=np.uint8), "1 to 4 channels"),
        (np.zeros((64, 64, 3), dtype=np.uint8), "like one image"),
        (np.array([[["a"]]], dtype=object), "Python objects"),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_other_arrays_are_refused(
    tmp_path: Path, array: np.ndarray, sentence: str, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        np.save(path, array)
    else:
        np.savez(path, images=array, labels=np.arange(4))
    with pytest.raises(UserError, match=sentence) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_names_that_do_not_say_which_array_holds_the_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=pixels(2, 8, 8), b=pixels(2, 8, 8))
    with pytest.raises(UserError, match=r"holds a \[2, 8, 8\], b \[2, 8, 8\]: name its images"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", features=np.ones((4, 8)))
    with pytest.raises(UserError, match=r"holds features \[4, 8\]"):
        load(tmp_path / "b.npz")


def test_as_many_labels_as_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(4, 8, 8), labels=np.arange(3))
    with pytest.raises(UserError, match="4 images and 3 labels"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_damaged_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    save: Callable[..., None] = np.save if suffix == "npy" else np.savez
    save(path, pixels(9, 8, 8))
    data = path.read_bytes()
    for content in (b"", b"hello", data[:7], data[:100], data[: len(data) * 2 // 3]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read") as error:
            load(path)
        assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(UserError, match="there is no file"):
        load(path)


def test_names_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    assert not is_array_file(tmp_path / "folder.npz")
    assert is_array_file("x/mnist.npz")
    assert is_array_file("train-images-idx3-ubyte.gz")
    assert not is_array_file("photos.zip")
    assert not is_array_file("digits")
    assert dataset_label(tmp_path / "mnist.npz") == "mnist.npz"
    assert dataset_label(tmp_path) == f"{tmp_path.name}/"
    (tmp_path / "a.doc").touch()
    with pytest.raises(UserError, match="give the folder that holds the images"):
        load(tmp_path / "a.doc")


# ------ commands


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["smi", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_commands_take_an_array_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.arange(120) % 2
    images = RANDOM.integers(200, 1200, (120, 12, 10)) * (1 + labels[:, None, None])
    np.savez("cells.npz", images=images.astype(np.uint16), labels=labels)
    assert run(monkeypatch, "data", "cells.npz") == 0
    text = capsys.readouterr().out
    assert "cells.npz: 10 x 10 pixels" in text
    assert "classes     2: 0, 1" in text
    assert "become 0 to 255" in text
    flags = ("--epochs", "1", "--batch-size", "16", "--device", "cpu")
    assert run(monkeypatch, "pretrain", "--data", "cells.npz", "--out", "run", *flags) == 0
    assert run(monkeypatch, "evaluate", "run", "--protocol", "knn") == 0
    assert "cells.npz" in capsys.readouterr().out
    assert run(monkeypatch, "embed", "run", "--data", "cells.npz", "--out", "h.npz") == 0
    with np.load("h.npz") as features:
        assert len(features["features"]) == 120
        assert np.array_equal(features["labels"], labels)
    encoder = smi.load("run/encoder.safetensors")
    (whole,) = all_images("cells.npz")
    assert encoder.value_range == smi.load("run").value_range == whole.value_range
    # A file with the same values gives the same input.
    Image.fromarray(images[7, 1:11].astype(np.uint16)).save("seven.tif")
    seven = torch.from_numpy(whole.parts[0][7].copy())
    assert torch.equal(encoder.transform("seven.tif"), encoder.transform(seven))


def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros((4, 64)))
    assert run(monkeypatch, "data", "a.npy") == 2
    assert "images are [n, H, W]" in capsys.readouterr().err
    assert run(monkeypatch, "data", "absent.npz") == 2
    assert "there is no file" in capsys.readouterr().err
