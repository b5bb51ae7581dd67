"""`smi embed`: once through the real entry point, then in this process."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import smi
import smi.inference.feature_files
from smi.data import load as load_images
from smi.device import Runtime
from smi.errors import UserError
from smi.evaluation import extract
from smi.inference.embed import embed
from smi.runs.encoder import Pretrained, load
from support.inference import UNUSUAL_NAMES, assert_refused, but, draw, names_in, start

pytestmark = pytest.mark.usefixtures("home")
ONE_WORKER = Runtime(num_workers=1)
ONE = ("--num-workers", "1")


def test_embed_from_the_command_line(encoder, folder, home):
    result = start(
        "embed",
        "net.safetensors",
        "--data",
        "odd",
        "--out",
        "features.npz",
        "--num-workers",
        "1",
        "--batch-size",
        "3",
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == (
        "warning: 1 file cannot be read as an image and is left out: "
        "broken.jpg (not an image in a supported format)\n"
    )
    line, speed = result.stdout.rstrip("\n").split("; ")
    assert line == "features.npz: 8 images × 8 features of net.safetensors (SMI, epoch 15)"
    assert speed.endswith(" images/s")
    found = np.load("features.npz", allow_pickle=False)
    assert set(found) == {"features", "files", "about"}  # some have no label, so none has
    assert found["files"].tolist() == UNUSUAL_NAMES
    about = json.loads(found["about"].item())
    assert about["encoder"] == load(encoder).digest()
    assert (about["image_size"], about["resolution"], about["crop"]) == (16, 20, 18)
    assert about["precision"] == "float32"
    assert (about["mean"], about["std"], about["smi"]) == (
        [0.5, 0.4, 0.3],
        [0.2, 0.3, 0.4],
        smi.__version__,
    )
    assert names_in(Path(".")) == sorted(
        ["features.npz", "net.safetensors", "odd", *(f"odd/{name}" for name in names_in(folder))]
    )
    assert not home.exists()


def evaluated(encoder: Path, folder: Path, batch_size: int) -> np.ndarray:
    """Compute features as evaluation does, from a cache of decoded images."""
    net = load(encoder)
    store = load_images(
        folder, "pretrain", resolution=net.resolution, num_workers=1, max_bad_share=1
    )
    h = extract(net, store, mean=net.mean, std=net.std, size=net.image_size, batch_size=batch_size)
    store.close()
    return h.numpy()


@pytest.mark.parametrize("batch_size", [1, 5, 256])
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_features_equal_those_of_evaluation_to_the_bit(encoder, flat, batch_size, suffix):
    (flat / "05.png").write_bytes(b"")
    (flat / "06.png").write_bytes(b"")
    (flat / "22.png").write_bytes(b"")
    out = embed(
        encoder, data=flat, out=f"features.{suffix}", batch_size=batch_size, runtime=ONE_WORKER
    )
    assert out == Path(f"features.{suffix}")
    kept = [i for i in range(23) if i not in (5, 6, 22)]
    if suffix == "npz":
        features, files = np.load(out)["features"], np.load(out)["files"].tolist()
    else:
        table = pq.read_table(out)
        features, files = np.stack(table["features"].to_numpy()), table["file"].to_pylist()
    assert files == [f"{i:02}.png" for i in kept]
    assert features.dtype == np.float32
    assert features.tobytes() == evaluated(encoder, flat, batch_size)[kept].tobytes()


def test_a_folder_with_splits_and_classes(encoder, tmp_path):
    places = [
        "train/cat/1.png",
        "train/cat/2.png",
        "train/dog/1.png",
        "val/bird/9.png",
        "val/cat/3.png",
    ]
    for seed, place in enumerate(places):
        draw(tmp_path / "set" / place, seed)
    found = np.load(embed(encoder, data="set", out="features.npz", runtime=ONE_WORKER))
    assert found["files"].tolist() == places
    assert found["labels"].dtype == np.int64
    assert [found["classes"][label] for label in found["labels"]] == [
        "cat",
        "cat",
        "dog",
        "bird",
        "cat",
    ]
    draw(tmp_path / "set" / "other.png", 9)
    without = np.load(embed(encoder, data="set", out="features.npz", runtime=ONE_WORKER))
    assert without["files"].tolist() == ["other.png", *places]
    assert "labels" not in without
    assert "classes" not in without


def test_a_folder_without_splits_is_not_divided(encoder, tmp_path):
    """Pretraining would hold out a tenth of these images."""
    for i in range(40):
        draw(tmp_path / "set" / "ab"[i % 2] / f"{i:02}.png", i)
    found = np.load(embed(encoder, data="set", out="features.npz", runtime=ONE_WORKER))
    assert found["files"].tolist() == sorted(found["files"].tolist())
    assert (len(found["files"]), found["labels"].tolist()) == (40, [0] * 20 + [1] * 20)


def test_a_named_dataset_has_class_names_in_words(encoder, tmp_path):
    for split in ("train", "val"):
        for name in ("n01440764", "n03888257"):
            draw(tmp_path / "imagenette2-320" / split / name / "a.JPEG", 0)
    table = pq.read_table(
        embed(
            encoder,
            data="imagenette",
            out="features.parquet",
            runtime=Runtime(root=tmp_path, num_workers=1),
        )
    )
    assert table["file"].to_pylist()[0] == "train/n01440764/a.JPEG"
    assert table["label"].to_pylist() == [0, 1, 0, 1]
    assert json.loads(table.schema.metadata[b"smi"])["classes"] == ["tench", "parachute"]


def test_an_array_dataset_is_train_then_val(encoder):
    found = np.load(embed(encoder, data="digits", out="features.npz"))
    net = load(encoder)
    splits = [load_images("digits", split) for split in ("train", "val")]
    h = [extract(net, store, mean=net.mean, std=net.std, size=16).numpy() for store in splits]
    assert np.array_equal(found["features"], np.concatenate(h))
    assert np.array_equal(found["labels"], torch.cat([store.labels for store in splits]).numpy())
    num = len(splits[0])
    assert found["files"][[0, num - 1, num, -1]].tolist() == [
        "train/0",
        f"train/{num - 1}",
        "val/0",
        f"val/{len(splits[1]) - 1}",
    ]


def test_parquet_escapes_names_and_has_row_groups(encoder, folder, monkeypatch):
    """A file name need not be valid UTF-8."""
    (folder / os.fsdecode(b"caf\xe9.png")).write_bytes((folder / "b.png").read_bytes())
    monkeypatch.setattr(
        smi.inference.feature_files, "ROW_GROUP_BYTES", 4 * 8 * 4
    )  # four rows or more; of the second batch one is broken
    out = embed(encoder, data=folder, out="features.parquet", batch_size=2, runtime=ONE_WORKER)
    file = pq.ParquetFile(out)
    table = file.read()
    assert table["file"].to_pylist() == [*UNUSUAL_NAMES[:3], "caf\\udce9.png", *UNUSUAL_NAMES[3:]]
    assert table.schema.names == ["file", "features"]
    assert str(table.schema.field("features").type).endswith("float>[8]")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [5, 4]
    assert json.loads(table.schema.metadata[b"smi"])["encoder"] == load(encoder).digest()
    archive = np.load(
        embed(encoder, data=folder, out="features.npz", batch_size=2, runtime=ONE_WORKER)
    )
    assert np.array_equal(archive["features"], np.stack(table["features"].to_numpy()))
    assert archive["files"][3] == os.fsdecode(b"caf\xe9.png")  # which opens the file


def test_equal_features_make_equal_files(encoder, flat):
    first, second = (
        embed(encoder, data=flat, out=f"{name}.npz", runtime=ONE_WORKER).read_bytes()
        for name in "ab"
    )
    assert first == second


def test_csv_has_a_line_for_each_image(encoder, flat, tmp_path):
    smi.embed(encoder, data=flat, out=tmp_path / "f.csv", quiet=True)
    smi.embed(encoder, data=flat, out=tmp_path / "f.npz", quiet=True)
    with (tmp_path / "f.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    arrays = np.load(tmp_path / "f.npz")
    assert head[:2] == ["file", "h0"]
    assert [line[0] for line in lines] == arrays["files"].tolist()
    features = np.array([line[1:] for line in lines], dtype=np.float32)
    assert (features == arrays["features"]).all()


def test_features_are_never_all_in_memory(tmp_path):
    """The features take 200 MB. The peak is measured in a process of its own."""
    code = """
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from smi.runs.checkpoint import save_encoder
from smi.inference.embed import embed
from smi.imports import trust

trust()

def peak(size):
    about = {"encoder": {"name": "torch.nn.Flatten"}, "image_size": size}
    about |= {"mean": [0, 0, 0], "std": [1, 1, 1]}
    save_encoder(Path("pixels.safetensors"), {}, about)
    for suffix in ("npz", "parquet"):
        embed("pixels.safetensors", data="digits", out=f"features.{suffix}", batch_size=32)
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

small = peak(8)
print(peak(96) - small)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    features = 1797 * 3 * 96 * 96 * 4
    assert (tmp_path / "features.npz").stat().st_size > features
    assert (
        int(result.stdout.splitlines()[-1]) < 0.85 * features
    )  # about half: what the writer of Parquet takes for itself
    for suffix in ("npz", "parquet"):
        (tmp_path / f"features.{suffix}").unlink()


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(encoder, flat, monkeypatch, suffix, error):
    out = embed(encoder, data=flat, out=f"features.{suffix}", runtime=ONE_WORKER)
    before, names = out.read_bytes(), names_in(Path("."))
    forward, calls = Pretrained.forward, []

    def fail_at_second(self, x):
        calls.append(len(x))
        if len(calls) == 2:
            raise error
        return forward(self, x)

    monkeypatch.setattr(Pretrained, "forward", fail_at_second)
    with pytest.raises(error):
        embed(encoder, data=flat, out=out, batch_size=4, runtime=ONE_WORKER)
    assert calls == [4, 4]
    assert names_in(Path(".")) == names
    assert out.read_bytes() == before


def test_parquet_without_pyarrow_is_refused(encoder, flat, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"pip install 'smi-ssl\[parquet\]'"):
        embed("no-run-is-looked-for", data=flat, out="features.parquet")
    embed(encoder, data=flat, out="features.npz", runtime=ONE_WORKER)


# --------------------------------------------------------------------------------------- mistakes

EMBED = ("embed", "net.safetensors", "--data", "flat", "--out", "features.npz")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (but(EMBED, 1, "nowhere"), "there is no run or encoder nowhere"),
        (but(EMBED, 1, "flat"), "flat is not a run"),
        (but(EMBED, "--data", "nowhere"), "there is no dataset or folder 'nowhere'"),
        (but(EMBED, "--data", "empty"), "holds no files named like images"),
        (but(EMBED, "--data", "bad"), "none of the 3 files in"),
        (but(EMBED, "--out", "features.txt"), "must end in one of these, not 'features.txt'"),
        (but(EMBED, "--out", "nowhere/features.npz"), "there is no folder nowhere"),
        (but(EMBED, "--out", "folder.npz"), "folder.npz is a folder"),
        ((*EMBED, "--device", "warp"), "there is no device 'warp'"),
        ((*EMBED, "--batch-size", "0"), "--help"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(command, encoder, flat, arguments, sentence):
    assert_refused(command, arguments, sentence)


def test_a_wrong_output_is_reported_first(flat):
    for out in ("features.txt", "nowhere/features.npz"):
        with pytest.raises(UserError, match=r"must end|there is no folder"):
            embed("no-run-is-looked-for", data=flat, out=out)


def test_precision_is_recorded_and_hardly_changes_features(encoder, flat):
    full, less = (
        np.load(embed(encoder, data=flat, out=f"{name}.npz", precision=name, runtime=ONE_WORKER))
        for name in ("float32", "bfloat16")
    )
    assert json.loads(less["about"].item())["precision"] == "bfloat16"
    assert less["features"].dtype == np.float32
    assert not np.array_equal(full["features"], less["features"])
    np.testing.assert_allclose(less["features"], full["features"], rtol=0.05, atol=0.05)


def test_several_processes_are_refused(encoder, flat, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="from one process: start it without torchrun"):
        embed(encoder, data=flat, out="features.npz")
    assert not Path("features.npz").exists()


@pytest.mark.parametrize("kind", ["file", "tag", "folder"])
def test_an_encoder_of_timm(published, flat, command, kind):
    source = published[kind]
    code, out, err = command("embed", source, "--data", "flat", "--out", "f.npz", *ONE)
    assert code == 0, err
    assert out.split("; ")[0] == f"f.npz: 23 images × 512 features of {source}"
    assert err.startswith("the classifier of ")
    assert len(err.splitlines()) == 1
    found = np.load("f.npz")
    assert json.loads(found["about"].item())["encoder"] == load(source).digest()
    images = [flat / name for name in found["files"].tolist()]
    with torch.inference_mode():
        encoder = load(source)
        expected = encoder(encoder.transform(images))
    torch.testing.assert_close(torch.tensor(found["features"]), expected)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("timm:resnet10t@nowhere.pth", "there is no file nowhere.pth"),
        ("timm:resnet10@r10.safetensors", "there is no encoder 'resnet10'"),
        ("timm:resnet18@r10.safetensors", "r10.safetensors does not fit ResNet"),
        ("local-dir:nowhere", "local-dir:nowhere cannot be read"),
    ],
)
@pytest.mark.usefixtures("published", "flat")
def test_an_encoder_that_timm_cannot_build_is_one_sentence(command, source, sentence):
    assert_refused(command, ("embed", source, "--data", "flat", "--out", "f.npz"), sentence)
