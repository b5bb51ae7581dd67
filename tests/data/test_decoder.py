import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from smi.data import decoder
from smi.data.decoder import UnreadableError, bands, decode, decode_picture, stored_size
from support.pictures import enormous

QUADRANTS = np.zeros((32, 32, 3), dtype=np.uint8)
QUADRANTS[:16, :16] = (250, 10, 10)
QUADRANTS[:16, 16:] = (10, 250, 10)
QUADRANTS[16:, :16] = (10, 10, 250)
QUADRANTS[16:, 16:] = (240, 240, 20)


def pixels(path: Path, resolution: int = 32) -> np.ndarray:
    return (
        np.frombuffer(b"".join(decode(str(path), resolution)[0]), np.uint8)
        .reshape(3, resolution, resolution)
        .transpose(1, 2, 0)
    )


@pytest.mark.parametrize(
    ("suffix", "mode"),
    [("jpg", "RGB"), ("jpg", "L"), ("jpg", "CMYK")]
    + [("png", mode) for mode in ("RGB", "L", "LA", "P", "RGBA", "1")]
    + [
        ("webp", "RGB"),
        ("webp", "RGBA"),
        ("bmp", "RGB"),
        ("bmp", "L"),
        ("bmp", "P"),
        ("bmp", "1"),
        ("gif", "P"),
        ("gif", "L"),
    ]
    + [("tiff", mode) for mode in ("RGB", "L", "LA", "P", "RGBA", "CMYK", "1")],
)
def test_every_format_and_mode_gives_the_picture(tmp_path: Path, suffix: str, mode: str) -> None:
    image = Image.fromarray(QUADRANTS).convert(mode)
    image.save(tmp_path / f"a.{suffix}", **({"quality": 95} if suffix in ("jpg", "webp") else {}))
    expected = np.asarray(image.convert("RGB"), dtype=int)
    actual = pixels(tmp_path / f"a.{suffix}").astype(int)
    centres = [(8, 8), (8, 24), (24, 8), (24, 24)] if mode != "1" else [(0, 0)]
    assert all(np.abs(actual[y, x] - expected[y, x]).max() < 25 for y, x in centres)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)).save(
        tmp_path / f"a.{suffix}"
    )
    assert np.array_equal(
        pixels(tmp_path / f"a.{suffix}", 16)[..., 1], np.arange(256).reshape(16, 16)
    )


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
def test_transparent_pixels_become_white(tmp_path: Path, suffix: str) -> None:
    image = Image.fromarray(QUADRANTS).convert("RGBA")
    image.putalpha(
        Image.fromarray(np.repeat([[0], [255]], 16, axis=0).repeat(32, axis=1).astype(np.uint8))
    )
    image.save(tmp_path / f"a.{suffix}")
    actual = pixels(tmp_path / f"a.{suffix}")
    assert actual[8, 8].min() == 255
    assert actual[24, 8, 2] > 200


def test_transparent_palette_and_grey(tmp_path: Path) -> None:
    palette = Image.new("P", (8, 8), 3)
    palette.putpalette([0, 0, 0] * 256)
    palette.save(tmp_path / "p.png", transparency=3)
    Image.new("L", (8, 8), 7).save(tmp_path / "l.png", transparency=7)
    assert pixels(tmp_path / "p.png", 8).min() == 255
    assert pixels(tmp_path / "l.png", 8).min() == 255


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, suffix: str, orientation: int) -> None:
    image = Image.fromarray(QUADRANTS)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / f"a.{suffix}", exif=exif, **({"quality": 95} if suffix != "png" else {}))
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image), dtype=int)
    actual = pixels(tmp_path / f"a.{suffix}").astype(int)
    assert all(
        np.abs(actual[y, x] - expected[y, x]).max() < 25
        for y, x in [(8, 8), (8, 24), (24, 8), (24, 24)]
    )


def test_only_the_first_frame_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert pixels(tmp_path / "a.gif", 8)[0, 0].tolist() == [255, 0, 0]


def test_the_centre_is_kept(tmp_path: Path) -> None:
    wide = np.zeros((16, 48, 3), dtype=np.uint8)
    wide[:, 16:32] = 255
    Image.fromarray(wide).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png", 16).min() == 255
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "b.png")
    assert pixels(tmp_path / "b.png", 16).min() == 255


def test_a_large_jpeg_shrinks_to_the_same_picture(tmp_path: Path) -> None:
    Image.fromarray(QUADRANTS).resize((1600, 1600), Image.Resampling.NEAREST).save(
        tmp_path / "a.jpg", quality=95
    )
    actual = pixels(tmp_path / "a.jpg").astype(int)
    assert np.abs(actual[8, 8] - QUADRANTS[8, 8]).max() < 25


def test_the_content_decides_about_the_format(tmp_path: Path) -> None:
    Image.fromarray(QUADRANTS).save(tmp_path / "a.png", format="JPEG")
    _, info = decode(str(tmp_path / "a.png"), 8)
    assert (info.format, info.width, info.height, info.mode) == ("JPEG", 32, 32, "RGB")


def test_an_enormous_image_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(
        UnreadableError, match="60000 x 60000 pixels, above the limit of 200 megapixels"
    ):
        decode(str(enormous(tmp_path / "a.png")), 8)


def test_a_file_for_which_memory_runs_out_is_not_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(decoder, "decode_picture", fail)
    answer = decoder._answer(-1, 0, str(tmp_path / "a.png"), 8, "square", None)
    assert answer == [errno.ENOMEM, os.strerror(errno.ENOMEM)]


def test_a_file_that_cannot_be_read_for_a_moment_is_not_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(QUADRANTS).save(tmp_path / "a.png")
    failures = [OSError(errno.EIO, "Input/output error")]

    def fail_once(*words: object) -> object:
        if failures:
            raise failures.pop()
        return decode_picture(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "decode_picture", fail_once)
    answer = decoder._answer(-1, 0, str(tmp_path / "a.png"), 8, "square", None)
    assert answer == [0, 8, 8, [32, 32, "PNG", "RGB"]]


def test_an_unreadable_file_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(UnreadableError, match="empty file"):
        decode(str(tmp_path / "empty.jpg"), 8)
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(UnreadableError, match="not an image"):
        decode(str(tmp_path / "text.jpg"), 8)
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(UnreadableError, match="floating-point"):
        decode(str(tmp_path / "float.tiff"), 8)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif", "tiff"])
def test_a_truncated_file_is_not_an_image(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"a.{suffix}")
    data = (tmp_path / f"a.{suffix}").read_bytes()
    (tmp_path / f"a.{suffix}").write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises((OSError, SyntaxError, UnreadableError)):
        decode(str(tmp_path / f"a.{suffix}"), 32)


def test_a_jpeg_of_several_pictures(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert decode(str(tmp_path / "a.jpg"), 8)[1].format == "MPO"
    assert pixels(tmp_path / "a.jpg", 8)[0, 0, 0] > 240


def whole(path: Path, resolution: int) -> np.ndarray:
    return np.asarray(decode_picture(str(path), resolution, "aspect")[0])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((400, 300), (64, 48)),
        ((300, 400), (48, 64)),
        ((300, 300), (48, 48)),
        ((301, 300), (48, 48)),  # the margins on both sides are equal
        ((1000, 300), (96, 48)),  # at most twice as long
        ((1, 900), (48, 96)),
        ((900, 1), (96, 48)),
        ((1, 1), (48, 48)),
        ((5, 3), (80, 48)),
    ],
)
def test_the_shorter_side_is_resized_and_the_longer_one_in_proportion(
    tmp_path: Path, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    for suffix in ("png", "jpg"):
        path = tmp_path / f"a.{suffix}"
        Image.fromarray(noise).save(path)
        assert decode_picture(str(path), 48, "aspect")[0].size == expected
        assert stored_size(str(path), 48, "aspect") == expected
        assert stored_size(str(path), 48, "square") == (48, 48)


@settings(max_examples=60)
@given(
    width=st.integers(1, 120),
    height=st.integers(1, 120),
    resolution=st.integers(1, 40),
    orientation=st.integers(1, 8),
    mode=st.sampled_from(["RGB", "RGBA", "L"]),
)
def test_the_central_square_is_the_same_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory,
    width: int,
    height: int,
    resolution: int,
    orientation: int,
    mode: str,
) -> None:
    path = tmp_path_factory.mktemp("a") / "a.png"
    noise = np.random.default_rng(width).integers(0, 256, (height, width, 4), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(noise).convert(mode).save(path, exif=exif)
    picture = whole(path, resolution)
    h, w, _ = picture.shape
    assert resolution == min(h, w) <= max(h, w) <= 2 * resolution
    assert (h - resolution) % 2 == (w - resolution) % 2 == 0
    top, left = (h - resolution) // 2, (w - resolution) // 2
    square = picture[top : top + resolution, left : left + resolution]
    assert b"".join(bands(Image.fromarray(square))) == b"".join(decode(str(path), resolution)[0])


@pytest.mark.parametrize("size", [(400, 300), (300, 400), (100, 75)])
def test_a_kept_image_has_no_seams(tmp_path: Path, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    image.save(tmp_path / "a.png")
    resized = whole(tmp_path / "a.png", 48)
    at_once = image.resize((resized.shape[1], resized.shape[0]), Image.Resampling.BILINEAR)
    assert np.abs(resized.astype(int) - np.asarray(at_once).astype(int)).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_kept_image_is_turned_upright(tmp_path: Path, orientation: int) -> None:
    image = Image.fromarray(QUADRANTS).resize((60, 32), Image.Resampling.NEAREST)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.png", exif=exif)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(whole(tmp_path / "a.png", 32), expected)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_device_or_a_pipe_is_not_read(tmp_path, scheme):
    """Both would never end; one of them filled the memory once."""
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", "/dev/zero"):
        with pytest.raises(UnreadableError, match="a device or a pipe, not a file"):
            decode_picture(f"{scheme}{path}", 8, "square")
