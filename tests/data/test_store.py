import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smi.data import Batch, Batches, Pictures, load, write_bad
from smi.data.decoder import BadFile, Keep
from smi.data.listing import scan
from smi.data.sources import ArraySet, Source
from smi.data.store import ArrayStore, CachedStore, StreamingStore
from smi.data.subset import Subset
from smi.errors import UserError
from support.pictures import Draw


@pytest.fixture
def folder(tmp_path: Path, draw: Draw) -> Path:
    for split, count in (("train", 12), ("val", 4)):
        for i in range(count):
            draw(tmp_path / "set" / split / f"class{i % 2}" / f"{i:02}.png", seed=i)
    return tmp_path / "set"


def same(a: Batch, b: Batch) -> bool:
    """Return whether two batches of files have the same images."""
    assert isinstance(a.images, Pictures)
    assert isinstance(b.images, Pictures)
    return torch.equal(a.images.pixels, b.images.pixels) and torch.equal(
        a.images.shape, b.images.shape
    )


def test_cached_and_streamed_images_are_the_same(folder: Path) -> None:
    cached, streamed = (
        load(folder, resolution=16),
        load(folder, resolution=16, max_cache_bytes=0, num_workers=2),
    )
    assert isinstance(cached, CachedStore)
    assert isinstance(streamed, StreamingStore)
    index = torch.tensor([5, 0, 11, 5])
    assert cached[index].shape == (4, 3, 16, 16)
    assert torch.equal(cached[index], streamed[index])
    assert torch.equal(cached[:], streamed[:])
    assert cached.labels is not None
    assert streamed.labels is not None
    assert cached.labels.tolist() == streamed.labels.tolist() == [0] * 6 + [1] * 6
    one, other = (
        Batches(cached, 4, seed=3).starting_at(2),
        Batches(streamed, 4, seed=3).starting_at(2),
    )
    for _ in range(5):
        a, b = next(one), next(other)
        assert same(a, b)
        assert torch.equal(a.index, b.index)
        assert a.seed == b.seed
    streamed.close()
    cached.close()


SIZES = [(1, 40), (40, 1), (1, 1), (300, 20), (20, 300), (2, 900), (7, 5), (160, 120), (33, 32)]


@pytest.fixture
def shapes(tmp_path: Path, draw: Draw) -> Path:
    """Return a folder of files of many shapes, some of them turned by their EXIF data."""
    for i, size in enumerate(SIZES * 2):
        exif = Image.Exif()
        exif[0x0112] = (1, 6, 3, 8, 5)[i % 5]
        suffix = "jpg" if i % 2 else "png"
        draw(tmp_path / "shapes" / f"{i:02}.{suffix}", seed=i, size=size, exif=exif)
    return tmp_path / "shapes"


@pytest.mark.parametrize("resolution", [16, 21])
def test_images_of_many_shapes_are_the_same_cached_and_streamed(
    shapes: Path, resolution: int
) -> None:
    stores = [
        load(shapes, resolution=resolution, keep=keep, max_cache_bytes=size, num_workers=2)
        for keep in ("aspect", "square")
        for size in (10**9, 0)
    ]
    assert [type(store) for store in stores] == [CachedStore, StreamingStore] * 2
    index = torch.tensor([3, 17, 0, 3, *range(18)])
    (cached, _), (streamed, loaded) = (store.start(index)() for store in stores[:2])
    assert isinstance(cached, Pictures)
    assert isinstance(streamed, Pictures)
    assert torch.equal(loaded, index)
    assert torch.equal(cached.shape, streamed.shape)
    assert torch.equal(cached.start, streamed.start)
    assert torch.equal(cached.pixels, streamed.pixels)
    assert len(cached.pixels) == int((3 * cached.shape.prod(1)).sum())  # no bytes of other images
    assert set(cached.shape.amin(1).tolist()) == {resolution}
    assert cached.shape.amax() > 1.9 * resolution
    squares = [store.start_squares(index)()[0] for store in stores]
    squares += [stores[2].start(index)()[0], stores[3].start(index)()[0], stores[0][index]]
    for square in squares:
        assert torch.equal(square, cached.squares(resolution))
    assert [len(store.start(index[:0])()[0]) for store in stores] == [0] * 4
    for store in stores:
        store.close()


def test_bad_files_among_many_shapes_are_replaced(shapes: Path) -> None:
    for name in ("00.png", "05.jpg"):
        (shapes / name).write_bytes(b"")
    stores = [
        load(shapes, resolution=8, max_cache_bytes=size, max_bad_share=0.5) for size in (9**9, 0)
    ]
    pictures = []
    for store in stores:
        images, index = store.start(torch.tensor([0, 5, 7]))()
        assert index.tolist() == [1, 6, 7]
        part, positions = Subset(store, torch.tensor([0, 4, 5, 7])).start(torch.tensor([2, 0, 1]))()
        assert positions.tolist() == [3, 1, 1]  # 6 and 1 are not in the subset
        assert isinstance(images, Pictures)
        assert isinstance(part, Pictures)
        assert torch.equal(part[0], images[2])
        assert torch.equal(part[1], part[2])
        pictures.append(images)
        store.close()
    assert torch.equal(pictures[0].pixels, pictures[1].pixels)


def test_a_folder_is_listed_once_for_all_splits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = []
    monkeypatch.setattr("smi.data.folders.scan", lambda root: scans.append(root) or scan(root))
    source = Source(folder)
    stores = [load(source, split, resolution=8) for split in ("pretrain", "train", "val")]
    assert len(scans) == 1
    assert [len(store) for store in stores] == [12, 12, 4]
    assert torch.equal(stores[0][:], load(folder, "pretrain", resolution=8)[:])
    assert len(scans) == 2


def test_an_unknown_shape_is_a_user_error(folder: Path) -> None:
    with pytest.raises(UserError, match="keep must be aspect or square, not 'whole'"):
        load(folder, keep="whole")  # type: ignore[arg-type]


def test_the_number_of_workers_changes_nothing(folder: Path) -> None:
    stores = [load(folder, resolution=8, max_cache_bytes=0, num_workers=n) for n in (1, 3)]
    batches = [Batches(store, 3, seed=0).batch(5) for store in stores]
    assert same(batches[0], batches[1])
    for store in stores:
        store.close()


def test_pretraining_has_no_labels(folder: Path) -> None:
    store = load(folder, "pretrain", resolution=8)
    assert store.labels is None
    assert store.classes is None
    assert torch.equal(store[:], load(folder, "train", resolution=8)[:])
    assert load(folder, "val", resolution=8).classes == ("class0", "class1")
    assert not any("label" in name for name in vars(Batches(store, 2, seed=0).batch(0)))


def break_files(folder: Path) -> None:
    (folder / "train/class0/00.png").write_bytes(b"")
    (folder / "train/class1/05.png").write_text("not an image")


def test_bad_files_are_replaced_and_listed(folder: Path, tmp_path: Path) -> None:
    good = load(folder, resolution=8)
    rows = [{0: 1, 8: 9}.get(i, i) for i in range(12)]  # in place of a bad one, the next good one
    expected = good[torch.tensor(rows)]
    break_files(folder)
    store = load(folder, resolution=8, max_bad_share=0.5)
    assert torch.equal(store[:], expected)
    assert store.labels is not None
    assert good.labels is not None
    assert store.labels.tolist() == good.labels[torch.tensor(rows)].tolist()
    assert [bad.path for bad in store.bad] == ["train/class0/00.png", "train/class1/05.png"]
    write_bad(tmp_path / "bad.txt", store.bad)
    assert (tmp_path / "bad.txt").read_text().splitlines()[0] == "train/class0/00.png\tempty file"


def test_streaming_takes_the_next_good_file(folder: Path) -> None:
    expected = load(folder, resolution=8)[torch.tensor([1, 9, 3])]
    break_files(folder)
    store = load(folder, resolution=8, max_cache_bytes=0, max_bad_share=0.5)
    for _ in range(2):
        images, index = store.start_squares(torch.tensor([0, 8, 3]))()
        assert torch.equal(images, expected)
        assert index.tolist() == [1, 9, 3]
    assert {bad.path for bad in store.bad} == {"train/class0/00.png", "train/class1/05.png"}
    store.close()


def test_a_step_is_the_same_cached_or_streamed_with_bad_files(folder: Path) -> None:
    break_files(folder)
    (folder / "train/class1/11.png").write_bytes(b"")  # the last: the next good one is the first
    stores = [
        load(folder, resolution=8, max_bad_share=0.5, max_cache_bytes=size) for size in (10**9, 0)
    ]
    assert len(stores[0]) == len(stores[1])
    cached, streamed = (Batches(store, 5, seed=1) for store in stores)
    for step in range(6):
        a, b = cached.batch(step), streamed.batch(step)
        assert same(a, b)
        assert torch.equal(a.index, b.index)
    for store in stores:
        store.close()


def test_streaming_frees_its_rows(folder: Path) -> None:
    """Check it after a reader that stops early, and after an error."""
    store = load(folder, resolution=8, max_cache_bytes=0, max_bad_share=0.0)
    assert isinstance(store, StreamingStore)
    batches = Batches(store, 4, seed=0)
    for _ in range(5):
        reading = batches.starting_at(0)
        next(reading)
        reading.close()
    assert len(store._free_rows) == store._num_rows <= 12
    break_files(folder)
    for _ in range(3):
        with pytest.raises(UserError):
            store[:]
    assert len(store._free_rows) == store._num_rows <= 12
    store.close()


def test_indices_must_be_in_range(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 3, 6, 6), dtype=np.uint8)
    for store in (
        load(folder, resolution=8),
        ArrayStore(ArraySet("a", "train", (pixels[:3], pixels[3:]))),
    ):
        assert torch.equal(store[[-1]], store[[len(store) - 1]])
        for index in (len(store), -len(store) - 1):
            with pytest.raises(IndexError, match="images"):
                store[[index]]


def test_a_complete_cache_needs_no_lock_and_a_damaged_one_is_rebuilt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(folder, resolution=8)[:]
    with monkeypatch.context() as patch:
        patch.setattr("smi.data.cache.lock", lambda *_: pytest.fail("no lock is needed to read"))
        assert torch.equal(load(folder, resolution=8)[:], expected)
    for file, damage in (
        ("files.json", b"{"),
        ("images.u8", b"short"),
        ("images.npy", b""),
        ("images.npy", b"short"),
        ("sums.npy", b"short"),
    ):
        (path,) = (folder.parent / "home").rglob(file)
        path.write_bytes(damage)
        assert torch.equal(load(folder, resolution=8)[:], expected)


@pytest.mark.parametrize("keep", ["aspect", "square"])
def test_a_cache_with_flipped_bits_is_rebuilt_and_it_is_said(
    folder: Path, keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = load(folder, resolution=8, keep=keep)[:]
    names = ["images.u8", "sums.npy", "files.json", *(["images.npy"] if keep == "aspect" else [])]
    for name in names:
        (path,) = (folder.parent / "home").rglob(name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        capsys.readouterr()
        store = load(folder, resolution=8, keep=keep)
        assert torch.equal(store[:], expected), name
        assert torch.equal(store[:], expected), name
        said = capsys.readouterr().err
        assert said.count("is damaged, so its images are decoded again") == 1, name


def test_a_cache_of_an_earlier_version_has_no_checksums(folder: Path) -> None:
    expected = load(folder, resolution=8)[:]
    (path,) = (folder.parent / "home").rglob("files.json")
    contents = json.loads(path.read_text())
    del contents["checksums"]
    path.write_text(json.dumps(contents))
    path.with_name("sums.npy").unlink()
    before = path.stat().st_mtime_ns
    assert torch.equal(load(folder, resolution=8)[:], expected)
    assert path.stat().st_mtime_ns == before


def test_a_damaged_cache_of_files_that_have_changed_stops_the_run(folder: Path) -> None:
    store = load(folder, resolution=8)
    (path,) = (folder.parent / "home").rglob("images.u8")
    path.write_bytes(bytes(path.stat().st_size))
    next(folder.rglob("*.png")).unlink()
    with pytest.raises(UserError, match="have changed since the start: rerun"):
        store[:]


def test_a_name_with_a_line_break_is_escaped(tmp_path: Path) -> None:
    write_bad(tmp_path / "bad.txt", [BadFile("a\tb\nc\udcff.jpg", "empty file")])
    assert (tmp_path / "bad.txt").read_text() == "a\\tb\\nc\\udcff.jpg\tempty file\n"


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"max_bad_share": float("nan")}])
def test_settings_out_of_range_are_user_errors(folder: Path, options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        load(folder, **options)


def test_too_many_bad_files_stop_the_run(folder: Path) -> None:
    break_files(folder)
    with pytest.raises(
        UserError,
        match=r"2 of 12 files in .* cannot be read as images .*00.png: empty file.* share of 10%",
    ):
        load(folder, resolution=8)
    store = load(folder, resolution=8, max_cache_bytes=0)
    with pytest.raises(UserError, match="of 12 files"):
        store[:]
    store.close()


@pytest.mark.parametrize("max_cache_bytes", [0, 10**9])
def test_only_bad_files_are_a_user_error(tmp_path: Path, max_cache_bytes: int) -> None:
    (tmp_path / "set").mkdir()
    for i in range(3):
        (tmp_path / "set" / f"{i}.png").touch()
    with pytest.raises(UserError, match="none of the 3 files"):
        load(tmp_path / "set", max_cache_bytes=max_cache_bytes, max_bad_share=1)[:]


def test_arrays_in_parts_and_at_another_size() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 3, 6, 6), dtype=np.uint8)
    whole = ArrayStore(ArraySet("a", "train", (pixels,)))
    parts = ArrayStore(ArraySet("a", "train", (pixels[:3], pixels[3:4], pixels[4:])))
    index = torch.tensor([9, 0, 3, 3, 4])
    assert torch.equal(whole[index], torch.from_numpy(pixels)[index])
    assert torch.equal(parts[index], whole[index])
    assert ArrayStore(ArraySet("a", "train", (pixels,)), 12)[index].shape == (5, 3, 12, 12)


def test_a_resolution_of_zero_is_a_user_error(folder: Path) -> None:
    with pytest.raises(UserError, match="1 pixel or more"):
        load(folder, resolution=0)
