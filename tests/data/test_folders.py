import os
from pathlib import Path

import pytest

from smi.data.folders import is_held_out, read_folder
from smi.errors import UserError


def touch(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def names(files: object) -> list[str]:
    return [entry.path for entry in files.entries]  # type: ignore[attr-defined]


def test_flat(tmp_path: Path) -> None:
    folder = read_folder(
        touch(tmp_path / "set", "b.JPG", "a.png", "notes.txt", ".hidden.png", "__MACOSX/c.png")
    )
    assert names(folder.train) == ["a.png", "b.JPG"]
    assert folder.train.labels is None
    assert folder.val is None
    assert [entry.path for entry in folder.ignored] == ["notes.txt"]
    with pytest.raises(UserError, match="no images to validate on"):
        folder.split("val")


def test_nested_without_classes(tmp_path: Path) -> None:
    assert (
        read_folder(touch(tmp_path / "set", "2019/may/a.png", "2019/june/b.png")).train.labels
        is None
    )
    beside = read_folder(touch(tmp_path / "other", "cat/a.png", "dog/b.png", "c.png"))
    assert beside.train.labels is None
    assert beside.val is None


def test_new_files_do_not_change_the_held_out_files(tmp_path: Path) -> None:
    paths = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(100)]
    folder = read_folder(touch(tmp_path / "set", *paths))
    assert folder.held_out
    assert folder.train.classes == ("cat", "dog")
    assert folder.val is not None
    assert 5 < len(folder.val) < 40
    assert {*names(folder.train), *names(folder.val)} == set(paths)
    assert not {*names(folder.train)} & {*names(folder.val)}
    more = read_folder(touch(tmp_path / "set", *(f"cat/more{i}.png" for i in range(50))))
    assert more.val is not None
    assert {*names(folder.val)} <= {*names(more.val)}
    assert {*names(folder.train)} <= {*names(more.train)}


def test_train_and_val(tmp_path: Path) -> None:
    folder = read_folder(
        touch(
            tmp_path / "set",
            "train/dog/a.png",
            "train/cat/b.png",
            "val/dog/deep/c.png",
            "val/emu/d.png",
            "extra/e.png",
        )
    )
    assert folder.val is not None
    assert folder.train.classes == folder.val.classes == ("cat", "dog", "emu")
    assert folder.train.labels is not None
    assert folder.train.labels.tolist() == [0, 1]
    assert folder.val.labels is not None
    assert folder.val.labels.tolist() == [1, 2]
    assert (folder.num_images, len(folder.train), len(folder.val), folder.held_out) == (
        5,
        2,
        2,
        False,
    )
    assert names(folder.all_files()) == [
        "extra/e.png",
        "train/cat/b.png",
        "train/dog/a.png",
        "val/dog/deep/c.png",
        "val/emu/d.png",
    ]
    assert folder.all_files().labels is None  # one has none
    (tmp_path / "set" / "extra" / "e.png").unlink()
    files = read_folder(tmp_path / "set").all_files()
    assert files.labels is not None
    assert (files.labels.tolist(), files.classes) == ([0, 1, 1, 2], ("cat", "dog", "emu"))


def test_a_flat_val_has_no_labels(tmp_path: Path) -> None:
    folder = read_folder(
        touch(tmp_path / "set", "train/dog/a.png", "train/cat/b.png", "validation/c.png")
    )
    assert folder.val is not None
    assert folder.val.labels is None
    assert folder.train.labels is not None


def test_only_train(tmp_path: Path) -> None:
    paths = [f"Train/{name}/{i}.png" for name in ("cat", "dog") for i in range(100)]
    folder = read_folder(touch(tmp_path / "set", *paths))
    assert folder.held_out
    assert folder.val is not None
    assert all(is_held_out(path.removeprefix("Train/")) for path in names(folder.val))


def test_links(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere", "a.png")
    root = touch(tmp_path / "set", "b.png")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "nowhere.png").symlink_to(tmp_path / "absent.png")
    assert names(read_folder(root).train) == ["b.png", "linked/a.png", "nowhere.png"]


def test_a_name_that_is_not_text(tmp_path: Path) -> None:
    root = touch(tmp_path / "set", "a.png")
    try:
        touch(root, "b\udcff.png")
    except OSError:
        pytest.skip("this file system wants names to be text")
    assert len(read_folder(root).train) == 2


def test_mistakes_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        read_folder(tmp_path / "absent")
    with pytest.raises(UserError, match="holds no files named like images"):
        read_folder(touch(tmp_path / "set", "notes.txt"))


def test_a_link_to_itself_and_an_unreadable_folder_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "good.png")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("smi.data.folders.os.scandir", refuse)
    folder = read_folder(tmp_path)
    assert [entry.path for entry in folder.train.entries] == ["good.png", "self.jpg"]
    assert [entry.path for entry in folder.ignored] == ["closed"]
