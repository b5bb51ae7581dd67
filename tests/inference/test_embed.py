"""smi embed and smi neighbours: once each through the real entry point, then within this process, where torch need not be loaded again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import smi.inference.embed
from smi.cli import main
from smi.data import load as load_images
from smi.errors import UserError
from smi.evaluation import extract
from smi.inference.embed import Neighbour, embed, neighbours
from smi.inference.sheet import (
    CAPTION,
    COLUMNS,
    GAP,
    GROUP_GAP,
    HEADER,
    INK_COLOUR,
    MARGIN,
    ROW_GAP,
    SIDE,
)
from smi.nn import create_encoder
from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import Pretrained, load, square

ODD = [
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
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A network of random weights, for squares of 20 pixels that become 16."""
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
    """Features that are the pixels, between -1 and 1."""
    about = {
        "encoder": {"name": "torch.nn.Flatten"},
        "image_size": 8,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    save_encoder(tmp_path / "pixels.safetensors", {}, about)
    return tmp_path / "pixels.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Names of many kinds, and in between a file that is no image."""
    for seed, name in enumerate(ODD):
        draw(tmp_path / "odd" / name, seed)
    (tmp_path / "odd" / "broken.jpg").write_bytes(b"nothing")
    (tmp_path / "odd" / "notes.txt").write_text("no image")
    return tmp_path / "odd"


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for i in range(23):
        draw(tmp_path / "flat" / f"{i:02}.png", i)
    return tmp_path / "flat"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def command(*arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        monkeypatch.setattr(sys, "argv", ["smi", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return command


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )  # support.homemade.Net is here
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "smi", *arguments]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=120, check=False, env=environment
    )


# ------------------------------------------------------------------------------------------------------------------------------- embed


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
        "warning: 1 file cannot be read as an image and is left out: broken.jpg (not an image in a supported format)\n"
    )
    line, speed = result.stdout.rstrip("\n").split("; ")
    assert line == "features.npz: 8 images × 8 features of net.safetensors (SMI, epoch 15)"
    assert speed.endswith(" images/s")
    found = np.load("features.npz", allow_pickle=False)
    assert set(found) == {"features", "files", "about"}  # some have no label, so none has
    assert found["files"].tolist() == ODD
    about = json.loads(found["about"].item())
    assert about["encoder"] == load(encoder).digest()
    assert (about["image_size"], about["resolution"]) == (16, 20)
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
    """What evaluation computes, from a cache of decoded images."""
    net = load(encoder)
    store = load_images(
        folder, "pretrain", resolution=net.resolution, num_workers=1, max_bad_share=1
    )
    h = extract(net, store, mean=net.mean, std=net.std, size=net.image_size, batch_size=batch_size)
    store.close()
    return h.numpy()


@pytest.mark.parametrize("batch_size", [1, 5, 256])
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_the_numbers_of_evaluation_to_the_bit(encoder, flat, batch_size, suffix):
    (flat / "05.png").write_bytes(b"")
    (flat / "06.png").write_bytes(b"")
    (flat / "22.png").write_bytes(b"")
    out = embed(encoder, data=flat, out=f"features.{suffix}", batch_size=batch_size, num_workers=1)
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


def test_all_of_a_sorted_folder_with_labels(encoder, tmp_path):
    places = [
        "train/cat/1.png",
        "train/cat/2.png",
        "train/dog/1.png",
        "val/bird/9.png",
        "val/cat/3.png",
    ]
    for seed, place in enumerate(places):
        draw(tmp_path / "set" / place, seed)
    found = np.load(embed(encoder, data="set", out="features.npz", num_workers=1))
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
    without = np.load(embed(encoder, data="set", out="features.npz", num_workers=1))
    assert without["files"].tolist() == ["other.png", *places]
    assert "labels" not in without
    assert "classes" not in without


def test_a_folder_without_splits_is_not_divided(encoder, tmp_path):
    """A tenth of these would be held out from pretraining."""
    for i in range(40):
        draw(tmp_path / "set" / "ab"[i % 2] / f"{i:02}.png", i)
    found = np.load(embed(encoder, data="set", out="features.npz", num_workers=1))
    assert found["files"].tolist() == sorted(found["files"].tolist())
    assert (len(found["files"]), found["labels"].tolist()) == (40, [0] * 20 + [1] * 20)


def test_a_named_set_of_files_has_words_for_its_classes(encoder, tmp_path):
    for split in ("train", "val"):
        for name in ("n01440764", "n03888257"):
            draw(tmp_path / "imagenette2-320" / split / name / "a.JPEG", 0)
    table = pq.read_table(
        embed(encoder, data="imagenette", out="features.parquet", root=tmp_path, num_workers=1)
    )
    assert table["file"].to_pylist()[0] == "train/n01440764/a.JPEG"
    assert table["label"].to_pylist() == [0, 1, 0, 1]
    assert json.loads(table.schema.metadata[b"smi"])["classes"] == ["tench", "parachute"]


def test_a_set_of_pixels_is_train_then_val(encoder):
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


def test_parquet_has_every_name_and_groups_of_rows(encoder, folder, monkeypatch):
    """Also one that is not text."""
    (folder / os.fsdecode(b"caf\xe9.png")).write_bytes((folder / "b.png").read_bytes())
    monkeypatch.setattr(
        smi.inference.embed, "GROUP", 4 * 8 * 4
    )  # four rows or more; of the second batch one is broken
    out = embed(encoder, data=folder, out="features.parquet", batch_size=2, num_workers=1)
    file = pq.ParquetFile(out)
    table = file.read()
    assert table["file"].to_pylist() == [*ODD[:3], "caf\\udce9.png", *ODD[3:]]
    assert table.schema.names == ["file", "features"]
    assert str(table.schema.field("features").type).endswith("float>[8]")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [5, 4]
    assert json.loads(table.schema.metadata[b"smi"])["encoder"] == load(encoder).digest()
    archive = np.load(embed(encoder, data=folder, out="features.npz", batch_size=2, num_workers=1))
    assert np.array_equal(archive["features"], np.stack(table["features"].to_numpy()))
    assert archive["files"][3] == os.fsdecode(b"caf\xe9.png")  # which opens the file


def test_the_same_file_twice(encoder, flat):
    first, second = (
        embed(encoder, data=flat, out=f"{name}.npz", num_workers=1).read_bytes() for name in "ab"
    )
    assert first == second


def test_features_are_never_all_in_memory(tmp_path):
    """200 MB of them; the peak is that of a process of its own, after the same for small ones."""
    code = """
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from smi.runs.checkpoint import save_encoder
from smi.inference.embed import embed

def peak(size):
    about = {"encoder": {"name": "torch.nn.Flatten"}, "image_size": size, "mean": [0, 0, 0], "std": [1, 1, 1]}
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
def test_nothing_is_left_of_a_failure_in_the_middle(encoder, flat, monkeypatch, suffix, error):
    """And what was there before stays."""
    out = embed(encoder, data=flat, out=f"features.{suffix}", num_workers=1)
    before, names = out.read_bytes(), names_in(Path("."))
    forward, calls = Pretrained.forward, []

    def fail_at_second(self, x):
        calls.append(len(x))
        if len(calls) == 2:
            raise error
        return forward(self, x)

    monkeypatch.setattr(Pretrained, "forward", fail_at_second)
    with pytest.raises(error):
        embed(encoder, data=flat, out=out, batch_size=4, num_workers=1)
    assert calls == [4, 4]
    assert names_in(Path(".")) == names
    assert out.read_bytes() == before


def test_without_pyarrow_one_sentence_says_so(encoder, flat, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"pip install 'smi-ssl\[parquet\]'"):
        embed("no-run-is-looked-for", data=flat, out="features.parquet")
    embed(encoder, data=flat, out="features.npz", num_workers=1)


# -------------------------------------------------------------------------------------------------------------------------- neighbours


def test_neighbours_from_the_command_line(encoder, folder, home):
    arguments = ["--query", "odd/b.png", "odd/été 日本.png", "--k", "3", "--num-workers", "1"]
    result = start("neighbours", "net.safetensors", "--data", "odd", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(
        "warning: 1 file cannot be read as an image and is left out: broken.jpg"
    )
    header, rule, *lines, empty, last = result.stdout.splitlines()
    assert header.split() == ["query", "rank", "similarity", "file"]
    assert (set(rule), empty) == ({"-", " "}, "")
    assert last == "neighbours.png: 2 × 3 of 8 images, by net.safetensors (SMI, epoch 15)"
    assert len(lines) == 6
    assert lines[0].startswith("odd/b.png  ")
    assert lines[3].startswith("odd/été 日本.png  ")
    table = [re.fullmatch(r"(.*?) +([123])  +(-?\d\.\d{4})  (.*)", line).groups() for line in lines]
    assert [rank for _, rank, _, _ in table] == ["1", "2", "3"] * 2
    assert {file for _, _, _, file in table} <= {name.replace("\n", "\\n") for name in ODD}
    assert "b.png" not in [file for _, _, _, file in table[:3]]
    with Image.open("neighbours.png") as sheet:
        assert sheet.format == "PNG"
        width = 2 * MARGIN + SIDE + GROUP_GAP + 3 * (SIDE + GAP) - GAP
        assert sheet.size == (width, 2 * MARGIN + HEADER + 2 * (SIDE + CAPTION) + ROW_GAP)
    assert names_in(Path("."))[:2] == ["neighbours.png", "net.safetensors"]
    assert not home.exists()


def by_definition(encoder: Path, folder: Path, query: Path, k: int) -> list[tuple[str, float]]:
    """In float64, of all features at once."""
    found = np.load(embed(encoder, data=folder, out="all.npz", num_workers=1))
    bank = found["features"].astype(np.float64)
    with torch.inference_mode():
        q = load(encoder)(load(encoder).transform(query))[0].double().numpy()
    similarity = bank @ q / np.linalg.norm(bank, axis=1) / np.linalg.norm(q)
    order = [
        i for i in np.argsort(-similarity, kind="stable") if (folder / found["files"][i]) != query
    ][:k]
    return [(found["files"][i], similarity[i]) for i in order]


@pytest.mark.parametrize("k", [1, 5, 22])
def test_the_nearest_are_those_of_the_definition(encoder, flat, tmp_path, monkeypatch, k):
    """Whatever batches they come in, for a query that is one of them and one that is not."""
    queries = [flat / "07.png", draw(tmp_path / "other.png", 99)]
    expected = [by_definition(encoder, flat, query, k) for query in queries]
    monkeypatch.setattr(smi.inference.embed, "BATCH", 4)
    found = neighbours(encoder, data=flat, queries=queries, out="sheet.png", k=k, num_workers=1)
    for ours, reference in zip(found, expected, strict=True):
        assert [one.file for one in ours] == [file for file, _ in reference]
        np.testing.assert_allclose(
            [one.similarity for one in ours], [similarity for _, similarity in reference], atol=1e-5
        )


def test_a_query_is_not_its_own_neighbour_under_any_name_but_a_copy_is(pixels, flat, tmp_path):
    (flat / "link.png").symlink_to(flat / "03.png")
    (flat / "copy.png").write_bytes((flat / "03.png").read_bytes())
    (tmp_path / "outside.png").symlink_to("flat/03.png")
    for query in ("flat/03.png", flat / "link.png", "outside.png"):
        (found,) = neighbours(
            pixels, data="flat", queries=[query], out="sheet.png", k=30, num_workers=1
        )
        assert found[0] == Neighbour("copy.png", pytest.approx(1.0), None)
        assert found[1].similarity < 0.9
        assert sorted(one.file for one in found) == sorted(
            {f"{i:02}.png" for i in range(23)} - {"03.png"} | {"copy.png"}
        )


def test_equally_near_images_come_in_the_order_of_their_names(pixels, flat, monkeypatch):
    for name in ("zz.png", "c.png", "aa.png"):
        (flat / name).write_bytes((flat / "03.png").read_bytes())
    monkeypatch.setattr(smi.inference.embed, "BATCH", 4)
    (found,) = neighbours(
        pixels, data=flat, queries=[flat / "03.png"], out="sheet.png", k=2, num_workers=1
    )
    assert [one.file for one in found] == ["aa.png", "c.png"]


def test_an_unreadable_file_is_nobodys_neighbour(pixels, flat):
    """The next image stands in its place, and would come twice."""
    (flat / "04.png").write_bytes(b"nothing")
    (found,) = neighbours(
        pixels, data=flat, queries=[flat / "03.png"], out="sheet.png", k=23, num_workers=1
    )
    assert sorted(one.file for one in found) == [
        f"{i:02}.png" for i in range(23) if i not in (3, 4)
    ]


def test_the_sheet_shows_the_images(pixels, tmp_path):
    """Small ones enlarged by a whole number, in the middle of their place; large ones as a store would shrink them."""
    draw(tmp_path / "set" / "small.png", 1, (16, 16))
    draw(tmp_path / "set" / "odd.png", 2, (50, 70))
    draw(tmp_path / "set" / "large.png", 3, (400, 300))
    draw(tmp_path / "query.png", 1, (8, 8))
    (found,) = neighbours(
        pixels, data="set", queries=["query.png"], out="sheet.png", k=3, num_workers=1
    )
    assert found[0].file == "small.png"
    sheet = np.asarray(Image.open("sheet.png"))
    top = MARGIN + HEADER
    assert sheet.shape[1] == 2 * MARGIN + SIDE + GROUP_GAP + 3 * (SIDE + GAP) - GAP

    def tile(left: int) -> np.ndarray:
        return sheet[top : top + SIDE, left : left + SIDE]

    def pixels_of(name: str, side: int) -> np.ndarray:
        return square(f"set/{name}", side).permute(1, 2, 0).numpy()

    assert np.array_equal(
        tile(MARGIN), np.asarray(Image.open("query.png")).repeat(16, 0).repeat(16, 1)
    )
    assert (
        tuple(sheet[top - 3, MARGIN]) == tuple(sheet[top + 50, MARGIN - 3]) == INK_COLOUR
    )  # its frame
    for column, one in enumerate(found):
        shown = tile(MARGIN + SIDE + GROUP_GAP + column * (SIDE + GAP))
        if one.file == "odd.png":
            assert np.array_equal(
                shown[14:-14, 14:-14], pixels_of("odd.png", 50).repeat(2, 0).repeat(2, 1)
            )
            assert (shown[:14] == 255).all()
        elif one.file == "small.png":
            assert np.array_equal(shown, pixels_of("small.png", 16).repeat(8, 0).repeat(8, 1))
        else:
            assert np.array_equal(shown, pixels_of("large.png", SIDE))
        below = sheet[
            top + SIDE : top + SIDE + CAPTION, MARGIN + SIDE + GROUP_GAP + column * (SIDE + GAP) :
        ][:, : SIDE + GAP]
        assert (below[:, :SIDE] < 200).any()
        assert (below[:, SIDE + 1 : SIDE + GAP] == 255).all()  # words keep to their place


def test_many_neighbours_go_on_below(pixels, flat):
    neighbours(
        pixels, data=flat, queries=[flat / "00.png"], out="sheet.png", k=COLUMNS + 1, num_workers=1
    )
    with Image.open("sheet.png") as sheet:
        width = 2 * MARGIN + SIDE + GROUP_GAP + COLUMNS * (SIDE + GAP) - GAP
        assert sheet.size == (width, 2 * MARGIN + HEADER + 2 * (SIDE + CAPTION) + GAP)


def test_a_set_of_pixels_has_neighbours_with_labels(pixels, tmp_path):
    digits = load_images("digits", "val")
    Image.fromarray(digits[[5]][0].permute(1, 2, 0).numpy()).save("five.png")
    (found,) = neighbours(pixels, data="digits", queries=["five.png"], out="sheet.png", k=4)
    assert found[0] == Neighbour("val/5", pytest.approx(1.0), digits.classes[digits.labels[5]])
    top, left = MARGIN + HEADER, MARGIN + SIDE + GROUP_GAP
    sheet = np.asarray(Image.open("sheet.png"))
    assert np.array_equal(
        sheet[top : top + SIDE, left : left + SIDE], sheet[top : top + SIDE, MARGIN : MARGIN + SIDE]
    )


def test_more_than_there_are_is_said(pixels, flat, command):
    code, said, complained = command(
        "neighbours", str(pixels), "--data", "flat", "--query", "flat/01.png", "--k", "40"
    )
    assert (code, complained) == (0, "40 nearest images were asked for, and flat has only 22\n")
    assert "neighbours.png: 1 × 22 of 23 images" in said


def test_a_folder_of_nothing_but_the_query(pixels, tmp_path, command):
    draw(tmp_path / "one" / "a.png", 0)
    code, _, complained = command(
        "neighbours", str(pixels), "--data", "one", "--query", "one/a.png"
    )
    assert (code, complained) == (0, "8 nearest images were asked for, and one has no other\n")
    assert Path("neighbours.png").exists()


# ---------------------------------------------------------------------------------------------------------------------------- mistakes

EMBED = ("embed", "net.safetensors", "--data", "flat", "--out", "features.npz")
NEIGHBOURS = (
    "neighbours",
    "net.safetensors",
    "--data",
    "flat",
    "--query",
    "flat/01.png",
    "--out",
    "sheet.png",
)


def but(command: tuple[str, ...], option: int | str, value: str) -> tuple[str, ...]:
    place = option if isinstance(option, int) else command.index(option) + 1
    return *command[:place], value, *command[place + 1 :]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (but(EMBED, 1, "nowhere"), "there is no run or encoder nowhere"),
        (but(EMBED, 1, "flat"), "flat is not a run"),
        (but(EMBED, "--data", "nowhere"), "there is no dataset or folder 'nowhere'"),
        (but(EMBED, "--data", "empty"), "holds no files named like images"),
        (but(EMBED, "--data", "bad"), "none of the 3 files in"),
        (but(EMBED, "--out", "features.csv"), "must end in one of these, not 'features.csv'"),
        (but(EMBED, "--out", "nowhere/features.npz"), "there is no folder nowhere"),
        (but(EMBED, "--out", "folder.npz"), "folder.npz is a folder"),
        ((*EMBED, "--device", "warp"), "there is no device 'warp'"),
        ((*EMBED, "--batch-size", "0"), "--help"),
        (but(NEIGHBOURS, 1, "nowhere"), "there is no run or encoder nowhere"),
        (but(NEIGHBOURS, "--data", "nowhere"), "there is no dataset or folder 'nowhere'"),
        (but(NEIGHBOURS, "--data", "empty"), "holds no files named like images"),
        (but(NEIGHBOURS, "--data", "bad"), "none of the 3 files in"),
        (
            but(NEIGHBOURS, "--query", "flat/99.png"),
            "flat/99.png cannot be read: No such file or directory",
        ),
        (
            but(NEIGHBOURS, "--query", "bad/0.png"),
            "bad/0.png cannot be read: not an image in a supported format",
        ),
        (but(NEIGHBOURS, "--out", "sheet.jpg"), "must end in .png"),
        (but(NEIGHBOURS, "--out", "nowhere/sheet.png"), "there is no folder nowhere"),
        (
            but(NEIGHBOURS, "--out", "flat/01.png"),
            "flat/01.png is one of the images: choose another --out",
        ),
        (
            but(NEIGHBOURS, "--out", "flat/../flat/02.png"),
            "is one of the images: choose another --out",
        ),
        ((*NEIGHBOURS, "--k", "0"), "--help"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(command, encoder, flat, arguments, says):
    for name in ("empty", "bad", "folder.npz"):
        Path(name).mkdir()
    for i in range(3):
        Path(f"bad/{i}.png").write_bytes(b"nothing")
    names = names_in(Path("."))
    code, said, complained = command(*arguments)
    assert (code, said) == (2, "")
    assert len(complained.splitlines()) == 1
    assert says in complained
    assert names_in(Path(".")) == names


def test_what_is_wrong_with_the_output_is_said_first(flat):
    for out in ("features.csv", "nowhere/features.npz"):
        with pytest.raises(UserError, match=r"must end|there is no folder"):
            embed("no-run-is-looked-for", data=flat, out=out)
    with pytest.raises(UserError, match="must end"):
        neighbours("no-run-is-looked-for", data=flat, queries=["x.png"], out="sheet.gif")
