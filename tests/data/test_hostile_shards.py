"""Shards and their index with false facts: a sentence, and no file is lost."""

import io
import json
import tarfile

import pytest

from smi.data.remote import LostError, describe
from smi.data.shard_files import count_images, open_shard
from smi.data.shard_index import read_index
from smi.data.shard_writer import write_shards
from smi.errors import UserError
from support.shards import jpeg, write_tar


def test_an_index_with_a_false_number_of_images_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "train-000000.tar"
    write_tar(path, [("0.jpg", jpeg(0)), ("1.jpg", jpeg(1))])
    shard = {"name": path.name, "bytes": path.stat().st_size}
    for number in (10**12, -1, 1e999, "x"):
        index = {"shards": [shard | {"images": number}]}
        (tmp_path / "shards.json").write_text(json.dumps(index))
        assert [found.num_images for found in read_index([str(path)])] == [2]


@pytest.mark.parametrize("kind", [b"x", b"L", b"g"])
def test_an_endless_chain_of_headers_is_a_sentence(tmp_path, kind):
    info = tarfile.TarInfo("x")
    info.type = kind
    path = tmp_path / "chain.tar"
    path.write_bytes(info.tobuf(tarfile.USTAR_FORMAT) * 3000)
    try:
        assert count_images(describe(str(path))) == 0
    except UserError as error:
        assert "cannot be read" in str(error)  # noqa: PT017


def test_a_member_that_leads_back_is_a_sentence(tmp_path):
    path = tmp_path / "back.tar"
    write_tar(path, [("0.jpg", jpeg(0)), ("1.jpg", jpeg(1))])
    content = bytearray(path.read_bytes())
    content[124:136] = b"\xff" * 10 + b"\xfc\x00"  # a size below 0
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content[:512]):06o}\0 ".encode()
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        count_images(describe(str(path)))


def test_an_image_beyond_the_end_is_lost(tmp_path):
    path = tmp_path / "cut.tar"
    info = tarfile.TarInfo("0.jpg")
    info.size = 10**9
    path.write_bytes(info.tobuf() + bytes(512))
    with pytest.raises(LostError):
        open_shard(describe(str(path)), tmp_path)


def test_parquet_with_false_sizes_is_a_sentence(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = io.BytesIO()
    images = [{"bytes": bytes(50_000_000), "path": "x"}]
    parquet.write_table(pa.table({"image": images}), file, compression="zstd")
    (tmp_path / "bomb.parquet").write_bytes(file.getvalue())
    with pytest.raises(UserError, match="bytes of values"):
        count_images(describe(str(tmp_path / "bomb.parquet")))


def test_shards_remove_only_shards(tmp_path):
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    out.mkdir()
    (photos / "a.jpg").write_bytes(jpeg(0))
    (out / "precious.txt").write_text("x")
    (tmp_path / "beside.tar").write_text("x")
    names = ("precious.txt", "../beside.tar", "", "..", 7)
    index = {"shards": [{"name": name, "bytes": 1, "images": 1} for name in names]}
    (out / "shards.json").write_text(json.dumps(index))
    write_shards(str(photos), out=str(out))
    assert (out / "precious.txt").is_file()
    assert (tmp_path / "beside.tar").is_file()
