"""`smi neighbours`: once through the real entry point, then in this process."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import smi.inference.neighbours
from smi.data import load as load_images
from smi.device import Runtime
from smi.errors import UserError
from smi.inference.embed import embed
from smi.inference.neighbours import Neighbour, neighbours
from smi.inference.neighbours_sheet import (
    CAPTION_HEIGHT,
    HEADER_HEIGHT,
    INK_COLOUR,
    MAX_COLUMNS,
    QUERY_GAP,
    ROW_GAP,
    SHEET_MARGIN,
    TILE_GAP,
    TILE_SIDE,
)
from smi.runs.encoder import load, square
from support.inference import UNUSUAL_NAMES, assert_refused, but, draw, names_in, start

pytestmark = pytest.mark.usefixtures("home")
ONE_WORKER = Runtime(num_workers=1)


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
    assert {file for _, _, _, file in table} <= {
        name.replace("\n", "\\n") for name in UNUSUAL_NAMES
    }
    assert "b.png" not in [file for _, _, _, file in table[:3]]
    with Image.open("neighbours.png") as sheet:
        assert sheet.format == "PNG"
        width = 2 * SHEET_MARGIN + TILE_SIDE + QUERY_GAP + 3 * (TILE_SIDE + TILE_GAP) - TILE_GAP
        assert sheet.size == (
            width,
            2 * SHEET_MARGIN + HEADER_HEIGHT + 2 * (TILE_SIDE + CAPTION_HEIGHT) + ROW_GAP,
        )
    assert names_in(Path("."))[:2] == ["neighbours.png", "net.safetensors"]
    assert not home.exists()


def by_definition(encoder: Path, folder: Path, query: Path, k: int) -> list[tuple[str, float]]:
    """Compute the nearest images in float64 from all features at once."""
    found = np.load(embed(encoder, data=folder, out="all.npz", runtime=ONE_WORKER))
    bank = found["features"].astype(np.float64)
    with torch.inference_mode():
        q = load(encoder)(load(encoder).transform([query]))[0].double().numpy()
    similarity = bank @ q / np.linalg.norm(bank, axis=1) / np.linalg.norm(q)
    order = [
        i for i in np.argsort(-similarity, kind="stable") if (folder / found["files"][i]) != query
    ][:k]
    return [(found["files"][i], similarity[i]) for i in order]


@pytest.mark.parametrize("k", [1, 5, 22])
def test_the_nearest_agree_with_the_definition(encoder, flat, tmp_path, monkeypatch, k):
    """This holds for every batch size, and for queries inside and outside of the folder."""
    queries = [flat / "07.png", draw(tmp_path / "other.png", 99)]
    expected = [by_definition(encoder, flat, query, k) for query in queries]
    monkeypatch.setattr(smi.inference.neighbours, "EMBED_BATCH_SIZE", 4)
    found = neighbours(
        encoder, data=flat, queries=queries, out="sheet.png", k=k, runtime=ONE_WORKER
    ).rows
    for ours, reference in zip(found, expected, strict=True):
        assert [one.file for one in ours] == [file for file, _ in reference]
        np.testing.assert_allclose(
            [one.similarity for one in ours], [similarity for _, similarity in reference], atol=1e-5
        )


def test_a_query_and_its_links_are_not_its_neighbours_but_a_copy_is(pixels, flat, tmp_path):
    (flat / "link.png").symlink_to(flat / "03.png")
    (flat / "copy.png").write_bytes((flat / "03.png").read_bytes())
    (tmp_path / "outside.png").symlink_to("flat/03.png")
    for query in ("flat/03.png", flat / "link.png", "outside.png"):
        (found,) = neighbours(
            pixels, data="flat", queries=[query], out="sheet.png", k=30, runtime=ONE_WORKER
        ).rows
        assert found[0] == Neighbour("copy.png", pytest.approx(1.0), None)
        assert found[1].similarity < 0.9
        assert sorted(one.file for one in found) == sorted(
            {f"{i:02}.png" for i in range(23)} - {"03.png"} | {"copy.png"}
        )


def test_equally_similar_images_come_in_the_order_of_their_names(pixels, flat, monkeypatch):
    for name in ("zz.png", "c.png", "aa.png"):
        (flat / name).write_bytes((flat / "03.png").read_bytes())
    monkeypatch.setattr(smi.inference.neighbours, "EMBED_BATCH_SIZE", 4)
    (found,) = neighbours(
        pixels, data=flat, queries=[flat / "03.png"], out="sheet.png", k=2, runtime=ONE_WORKER
    ).rows
    assert [one.file for one in found] == ["aa.png", "c.png"]


def test_an_unreadable_file_is_not_a_neighbour(pixels, flat):
    """A store replaces it by the next image, which would be found twice."""
    (flat / "04.png").write_bytes(b"nothing")
    (found,) = neighbours(
        pixels, data=flat, queries=[flat / "03.png"], out="sheet.png", k=23, runtime=ONE_WORKER
    ).rows
    assert sorted(one.file for one in found) == [
        f"{i:02}.png" for i in range(23) if i not in (3, 4)
    ]


def test_the_sheet_shows_the_images(pixels, tmp_path):
    """Small images are enlarged by a whole number and centred, large ones shrunk."""
    draw(tmp_path / "set" / "small.png", 1, (16, 16))
    draw(tmp_path / "set" / "odd.png", 2, (50, 70))
    draw(tmp_path / "set" / "large.png", 3, (400, 300))
    draw(tmp_path / "query.png", 1, (8, 8))
    (found,) = neighbours(
        pixels, data="set", queries=["query.png"], out="sheet.png", k=3, runtime=ONE_WORKER
    ).rows
    assert found[0].file == "small.png"
    sheet = np.asarray(Image.open("sheet.png"))
    top = SHEET_MARGIN + HEADER_HEIGHT
    assert (
        sheet.shape[1]
        == 2 * SHEET_MARGIN + TILE_SIDE + QUERY_GAP + 3 * (TILE_SIDE + TILE_GAP) - TILE_GAP
    )

    def tile(left: int) -> np.ndarray:
        return sheet[top : top + TILE_SIDE, left : left + TILE_SIDE]

    def pixels_of(name: str, side: int) -> np.ndarray:
        return square(f"set/{name}", side).permute(1, 2, 0).numpy()

    assert np.array_equal(
        tile(SHEET_MARGIN), np.asarray(Image.open("query.png")).repeat(16, 0).repeat(16, 1)
    )
    assert (
        tuple(sheet[top - 3, SHEET_MARGIN])
        == tuple(sheet[top + 50, SHEET_MARGIN - 3])
        == INK_COLOUR
    )  # its frame
    for column, one in enumerate(found):
        shown = tile(SHEET_MARGIN + TILE_SIDE + QUERY_GAP + column * (TILE_SIDE + TILE_GAP))
        if one.file == "odd.png":
            assert np.array_equal(
                shown[14:-14, 14:-14], pixels_of("odd.png", 50).repeat(2, 0).repeat(2, 1)
            )
            assert (shown[:14] == 255).all()
        elif one.file == "small.png":
            assert np.array_equal(shown, pixels_of("small.png", 16).repeat(8, 0).repeat(8, 1))
        else:
            assert np.array_equal(shown, pixels_of("large.png", TILE_SIDE))
        below = sheet[
            top + TILE_SIDE : top + TILE_SIDE + CAPTION_HEIGHT,
            SHEET_MARGIN + TILE_SIDE + QUERY_GAP + column * (TILE_SIDE + TILE_GAP) :,
        ][:, : TILE_SIDE + TILE_GAP]
        assert (below[:, :TILE_SIDE] < 200).any()
        assert (
            below[:, TILE_SIDE + 1 : TILE_SIDE + TILE_GAP] == 255
        ).all()  # words keep to their place


def test_the_result_as_data(pixels, flat):
    found = neighbours(pixels, data=flat, queries=[flat / "03.png"], k=2, runtime=ONE_WORKER)
    plain = found.plain()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["sheet"] == "neighbours.png"
    assert plain["images"] == 23
    (query,) = plain["queries"]
    assert query["query"] == str(flat / "03.png")
    assert [one["file"] for one in query["neighbours"]] == [one.file for one in found.rows[0]]
    assert found.rows[0][0].file in found.text()


def test_quiet_prints_nothing(pixels, flat, capsys):
    (flat / "04.png").write_bytes(b"nothing")
    neighbours(pixels, data=flat, queries=[flat / "03.png"], k=40, quiet=True, runtime=ONE_WORKER)
    assert capsys.readouterr() == ("", "")


def test_many_neighbours_take_several_lines(pixels, flat):
    neighbours(
        pixels,
        data=flat,
        queries=[flat / "00.png"],
        out="sheet.png",
        k=MAX_COLUMNS + 1,
        runtime=ONE_WORKER,
    )
    with Image.open("sheet.png") as sheet:
        width = (
            2 * SHEET_MARGIN
            + TILE_SIDE
            + QUERY_GAP
            + MAX_COLUMNS * (TILE_SIDE + TILE_GAP)
            - TILE_GAP
        )
        assert sheet.size == (
            width,
            2 * SHEET_MARGIN + HEADER_HEIGHT + 2 * (TILE_SIDE + CAPTION_HEIGHT) + TILE_GAP,
        )


def test_neighbours_in_an_array_dataset_have_labels(pixels, tmp_path):
    digits = load_images("digits", "val")
    Image.fromarray(digits[[5]][0].permute(1, 2, 0).numpy()).save("five.png")
    (found,) = neighbours(pixels, data="digits", queries=["five.png"], out="sheet.png", k=4).rows
    assert found[0] == Neighbour("val/5", pytest.approx(1.0), digits.classes[digits.labels[5]])
    top, left = SHEET_MARGIN + HEADER_HEIGHT, SHEET_MARGIN + TILE_SIDE + QUERY_GAP
    sheet = np.asarray(Image.open("sheet.png"))
    assert np.array_equal(
        sheet[top : top + TILE_SIDE, left : left + TILE_SIDE],
        sheet[top : top + TILE_SIDE, SHEET_MARGIN : SHEET_MARGIN + TILE_SIDE],
    )


def test_queries_of_16_bits_are_scaled_as_the_folder_is(pixels, tmp_path):
    (tmp_path / "cells").mkdir()
    for i in range(6):
        values = np.random.default_rng(i).integers(100, 3000, (8, 8)).astype(np.uint16)
        Image.fromarray(values).save(tmp_path / "cells" / f"{i}.tif")
    shutil.copy(tmp_path / "cells" / "4.tif", tmp_path / "query.tif")
    found = neighbours(
        pixels, data="cells", queries=["query.tif"], out="sheet.png", k=1, runtime=ONE_WORKER
    )
    assert found.rows[0][0].file == "4.tif"
    assert found.rows[0][0].similarity == pytest.approx(1)


def test_too_few_images_give_a_warning(pixels, flat, command):
    code, said, complained = command(
        "neighbours", str(pixels), "--data", "flat", "--query", "flat/01.png", "--k", "40"
    )
    assert (code, complained) == (0, "40 neighbours were requested, but flat has only 22\n")
    assert "neighbours.png: 1 × 22 of 23 images" in said


def test_a_folder_with_only_the_query(pixels, tmp_path, command):
    draw(tmp_path / "one" / "a.png", 0)
    code, _, complained = command(
        "neighbours", str(pixels), "--data", "one", "--query", "one/a.png"
    )
    assert (code, complained) == (0, "8 neighbours were requested, but one has no other\n")
    assert Path("neighbours.png").exists()


# --------------------------------------------------------------------------------------- mistakes

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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
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
def test_a_mistake_is_one_sentence_and_exit_code_2(command, encoder, flat, arguments, sentence):
    assert_refused(command, arguments, sentence)


def test_a_wrong_output_is_reported_first(flat):
    with pytest.raises(UserError, match="must end"):
        neighbours("no-run-is-looked-for", data=flat, queries=["x.png"], out="sheet.gif")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_encoder_of_timm(published, flat, command, kind):
    source = published[kind]
    arguments = ("--data", "flat", "--query", "flat/03.png", "--k", "2", "--num-workers", "1")
    code, out, err = command("neighbours", source, *arguments)
    assert code == 0, err
    assert out.splitlines()[-1] == f"neighbours.png: 1 × 2 of 23 images, by {source}"
