import hashlib
import json
import tarfile

import fsspec
import pytest
import torch

from smi.data import load
from smi.data.shard_writer import parse_size, write_shards
from smi.data.sources import Source
from smi.errors import UserError


@pytest.fixture
def photos(tmp_path, draw):
    for split, count in (("train", 12), ("val", 4)):
        for i in range(count):
            draw(tmp_path / "photos" / split / f"class{i % 2}" / f"{i:02}.a.png", seed=i)
    return tmp_path / "photos"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_hold_the_files_their_paths_and_labels(photos, tmp_path):
    out = tmp_path / "shards"
    write_shards(photos, out=str(out), size="8KB", quiet=True)
    files, shards = Source(photos), Source(out)
    for split in ("train", "val"):
        expected = {
            files.split(split).image_name(i): (label, load(photos, split, resolution=8)[[i]])
            for i, label in enumerate(files.split(split).labels)
        }
        written = shards.split(split)
        assert len(written) == len(expected)
        store = load(out, split, resolution=8)
        for i, label in enumerate(written.labels):
            known_label, image = expected[written.image_name(i)]
            assert label == known_label
            assert torch.equal(store[[i]], image)
        assert written.classes == files.split(split).classes
    index = json.loads((out / "shards.json").read_text())["shards"]
    assert [shard["name"] for shard in index][:2] == ["train-000000.tar", "train-000001.tar"]
    assert sum(shard["images"] for shard in index) == 16
    for shard in index:
        data = (out / shard["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["bytes"], shard["sha256"])


def test_a_shard_is_a_mixture(tmp_path, draw):
    for i in range(60):
        draw(tmp_path / "photos" / f"class{i // 20}" / f"{i:02}.png", seed=i)
    write_shards(tmp_path / "photos", out=str(tmp_path / "out"), size="30KB", quiet=True)
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as archive:
        about = [json.load(archive.extractfile(m)) for m in archive if m.name.endswith(".json")]
    assert {item["label"] for item in about} == {"class0", "class1", "class2"}


def test_an_interrupted_command_continues(photos, tmp_path, monkeypatch):
    write_shards(photos, out=str(tmp_path / "whole"), size="8KB", quiet=True)
    written = []
    from smi.data import shard_writer

    write_tar = shard_writer.write_tar

    def stop_at_third(path, items):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        return write_tar(path, items)

    out = tmp_path / "cut"
    monkeypatch.setattr(shard_writer, "write_tar", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        write_shards(photos, out=str(out), size="8KB", quiet=True)
    assert len(list(out.glob("*.tar"))) == 2
    assert not list(out.glob("*partial*"))
    resumed = []
    monkeypatch.setattr(
        shard_writer, "write_tar", lambda path, items: resumed.append(1) or write_tar(path, items)
    )
    write_shards(photos, out=str(out), size="8KB", quiet=True)
    assert contents(out) == contents(tmp_path / "whole")
    assert len(resumed) == len(list(out.glob("*.tar"))) - 2


def test_a_changed_folder_changes_its_shards(photos, tmp_path, draw):
    out = tmp_path / "out"
    write_shards(photos, out=str(out), size="1GB", quiet=True)
    before = contents(out)
    draw(photos / "val" / "class0" / "new.png", seed=77)
    write_shards(photos, out=str(out), size="1GB", quiet=True)
    changed = {name for name, content in contents(out).items() if content != before.get(name)}
    assert changed == {"val-000000.tar", "shards.json"}


def test_shards_are_written_to_a_url(photos, tmp_path):
    memory = fsspec.filesystem("memory")
    try:
        write_shards(photos, out="memory://bucket/set", size="8KB", quiet=True)
        names = [path.rpartition("/")[2] for path in memory.find("/bucket/set")]
        assert names[0] == "shards.json"
        assert len(load("memory://bucket/set", "train", resolution=8)) == 12
        before = memory.info("/bucket/set/train-000000.tar")["created"]
        write_shards(photos, out="memory://bucket/set", size="8KB", quiet=True)
        assert memory.info("/bucket/set/train-000000.tar")["created"] == before
    finally:
        memory.rm("/bucket", recursive=True)


def test_the_command(photos, tmp_path, smi_here):
    done = smi_here("shard", photos, "--out", tmp_path / "out", "--size", "8KB")
    assert done.returncode == 0
    assert f"{tmp_path / 'out'}: 16 images in" in done.stdout + done.stderr
    again = smi_here("shard", tmp_path / "out", "--out", tmp_path / "more")
    assert (again.returncode, "has shards already" in again.stderr) == (2, True)


@pytest.mark.parametrize("text", ["", "256", "MB", "-1MB", "0KB", "nanMB", "infGB", "1TB"])
def test_sizes(text):
    with pytest.raises(UserError, match="such as 256MB"):
        parse_size(text)
    assert parse_size("1.5KB") == 1500
    assert parse_size("2gb") == 2 * 10**9


def test_a_foreign_index_is_not_overwritten(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "shards.json").write_text('{"mine": 1}')
    with pytest.raises(UserError, match="is not an index of shards"):
        write_shards(photos, out=str(tmp_path / "out"))
    assert contents(tmp_path / "out") == {"shards.json": b'{"mine": 1}'}


def test_shards_of_another_size_replace_those_before(photos, tmp_path):
    out = tmp_path / "out"
    (out / "mine").mkdir(parents=True)
    write_shards(photos, out=str(out), size="8KB", quiet=True)
    write_shards(photos, out=str(out), size="1GB", quiet=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "mine",
        "shards.json",
        "train-000000.tar",
        "val-000000.tar",
    ]
    assert len(load(out, "train", resolution=8)) == 12


def test_names_without_a_suffix_of_images_are_read_back(tmp_path, draw):
    paths = [draw(tmp_path / f"{i}.png", seed=i) for i in range(3)]
    for path in paths:
        path.rename(path.with_suffix(".png_large"))
    (tmp_path / "list.txt").write_text("\n".join(f"{i}.png_large" for i in range(3)))
    write_shards(tmp_path / "list.txt", out=str(tmp_path / "out"), quiet=True)
    images = Source(tmp_path / "out").split("train")
    assert sorted(images.image_name(i) for i in range(3)) == [f"{i}.png_large" for i in range(3)]
    assert load(tmp_path / "out", resolution=8)[:].shape == (3, 3, 8, 8)
