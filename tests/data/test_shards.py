import json
import os
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from smi.data import load
from smi.data.order import MAX_LANES
from smi.data.shard_files import open_shard
from smi.data.shard_index import INDEX, read_index
from smi.data.shard_store import ShardStore
from smi.data.shards import find_shards
from smi.data.sources import Source
from smi.data.store import CachedStore
from smi.errors import UserError
from support.shards import jpeg, write_tar
from support.web import serving


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smi.data.remote.FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def shards(tmp_path):
    """Five shards to train on, of 3 to 7 images, and one to validate on."""
    number = 0
    for shard in range(5):
        members = []
        for _ in range(3 + shard):
            members += [
                (f"{number:04}.jpg", jpeg(number)),
                (f"{number:04}.cls", b"%d" % (number % 3)),
            ]
            number += 1
        write_tar(tmp_path / "set" / f"train-{shard:03}.tar", members)
    write_tar(
        tmp_path / "set" / "val-000.tar",
        [
            m
            for i in range(4)
            for m in ((f"{i}.png", jpeg(100 + i, "PNG")), (f"{i}.cls", b"%d" % i))
        ],
    )
    return tmp_path / "set"


def as_parquet(folder, out):
    """Write the same shards as Hugging Face does."""
    out.mkdir()
    names = {"names": ["a", "b", "c", "d"], "_type": "ClassLabel"}
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": names}}}
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", picture), ("label", pa.int64())], metadata={"huggingface": json.dumps(about)}
    )
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            contents = [(m.name, archive.extractfile(m).read()) for m in archive]
        images = [{"bytes": data, "path": None} for name, data in contents if ".cls" not in name]
        labels = [int(data) for name, data in contents if ".cls" in name]
        table = pa.table({"image": images, "label": labels}, schema=schema)
        pq.write_table(table, out / f"{path.stem}.parquet", row_group_size=2)
    return out


def test_a_store_of_shards_has_the_images_of_the_files(shards, tmp_path):
    files = tmp_path / "files"
    for split, names in (("train", range(25)), ("val", range(100, 104))):
        for i in names:
            (files / split).mkdir(parents=True, exist_ok=True)
            kind = "JPEG" if split == "train" else "PNG"
            (files / split / f"{i:04}.jpg").write_bytes(jpeg(i, kind))
    for source in (shards, as_parquet(shards, tmp_path / "parquet")):
        for split in ("train", "val"):
            expected = load(files, split, resolution=16)
            cached = load(source, split, resolution=16)
            streamed = load(source, split, resolution=16, max_cache_bytes=0, num_workers=1)
            assert isinstance(cached, CachedStore)
            assert isinstance(streamed, ShardStore)
            for store in (cached, streamed):
                assert torch.equal(store[:], expected[:])
                assert store.labels.tolist() == (
                    [i % 3 for i in range(25)] if split == "train" else [0, 1, 2, 3]
                )
                store.close()
            expected.close()


def test_the_classes_of_parquet_have_names(shards, tmp_path):
    source = Source(as_parquet(shards, tmp_path / "parquet"))
    assert source.split("train").classes == ("a", "b", "c", "d")
    assert source.split("pretrain").labels is None


def test_words_are_classes_of_all_splits(tmp_path):
    """A word of one split only does not change the numbers of the others."""
    for split, words in (("train", ["dog", "cat", "eel"]), ("val", ["dog", "eel"])):
        members = [
            member
            for i, word in enumerate(words)
            for member in (
                (f"{i}.jpg", jpeg(i)),
                (f"{i}.json", json.dumps({"label": word, "path": f"{word}/{i}.jpg"}).encode()),
            )
        ]
        write_tar(tmp_path / "set" / f"{split}-0.tar", members)
    source = Source(tmp_path / "set")
    assert source.split("train").classes == source.split("val").classes == ("cat", "dog", "eel")
    assert source.split("train").labels.tolist() == [1, 0, 2]
    assert source.split("val").labels.tolist() == [1, 2]
    assert source.split("val").image_name(1) == "eel/1.jpg"


def test_members_of_one_key_are_one_image(tmp_path):
    write_tar(
        tmp_path / "a.tar",
        [
            ("x/1.jpg", jpeg(1)),
            ("x/1.seg.png", jpeg(2, "PNG")),
            ("x/1.txt", b"words"),
            ("y/1.cls", b"7"),
            ("y/1.jpeg", jpeg(3)),
            ("2.cls", b"5"),  # without an image
            ("3.json", b"{broken"),
            ("3.webp", jpeg(4)),
        ],
    )
    (shard,) = read_index([str(tmp_path / "a.tar")])
    opened = open_shard(shard, tmp_path)
    assert shard.num_images == 3
    assert opened.names == ["x/1.jpg", "y/1.jpeg", "3.webp"]
    assert opened.labels == [None, "7", None]
    content = (tmp_path / "a.tar").read_bytes()
    assert content[opened.start[1] : opened.start[1] + opened.size[1]] == jpeg(3)


def test_long_names_are_read(tmp_path):
    name = "folder/" + "n" * 300
    write_tar(tmp_path / "a.tar", [(f"{name}.jpg", jpeg(1)), (f"{name}.cls", b"2")])
    (shard,) = read_index([str(tmp_path / "a.tar")])
    assert open_shard(shard, tmp_path).names == [f"{name}.jpg"]


def test_splits_by_name(tmp_path):
    names = ["data/train-00000-of-2.tar", "data/train-00001-of-2.tar", "data/test-00000-of-1.tar"]
    for name in [*names, "data/validation-00000-of-1.tar", "contest.tar"]:
        write_tar(tmp_path / name, [("1.jpg", jpeg(1))])
    found = find_shards(
        [str(path) for path in sorted(tmp_path.rglob("*.tar"))], "set", str(tmp_path)
    )
    assert [shard.location.rpartition("/")[2] for shard in found.train.shards] == [
        "contest.tar",
        "train-00000-of-2.tar",
        "train-00001-of-2.tar",
    ]
    assert [s.location.rpartition("/")[2] for s in found.val.shards] == [
        "validation-00000-of-1.tar"
    ]
    alone = find_shards([str(tmp_path / names[2])], "set", str(tmp_path))
    assert len(alone.train) == 1  # a test shard that is named alone is meant
    with pytest.raises(UserError, match="no shards to validate on"):
        alone.split("val")


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_headers_behind_a_url_are_read_by_ranges_once(shards, tmp_path, kind):
    folder = shards if kind == "tar" else as_parquet(shards, tmp_path / "parquet")
    if kind == "tar":  # large members, between which headers are looked up
        write_tar(
            folder / "train-000.tar", [(f"{i}.jpg", jpeg(i) + bytes(10**6)) for i in range(3)]
        )
    with serving(folder) as web:
        urls = [web.url(f"train-{i:03}.{kind}") for i in range(5)]
        assert [shard.num_images for shard in read_index(urls)] == [3, 4, 5, 6, 7]
        size = (folder / f"train-000.{kind}").stat().st_size
        if kind == "tar":
            assert web.bytes_sent["train-000.tar"] < size / 10
        before = web.gets.total()
        read_index(urls)
        assert web.gets.total() - before == 0  # from the cache; shards.json is missing
        assert len(list((tmp_path / "cache" / "shards").glob("*.json"))) == 1


def test_an_index_beside_the_shards_saves_reading_headers(shards):
    index = [
        {
            "name": f"train-{i:03}.tar",
            "images": 3 + i,
            "bytes": (shards / f"train-{i:03}.tar").stat().st_size,
        }
        for i in range(5)
    ]
    (shards / INDEX).write_text(json.dumps({"shards": index}))
    with serving(shards) as web:
        urls = [web.url(f"train-{i:03}.tar") for i in range(5)]
        assert [shard.num_images for shard in read_index(urls)] == [3, 4, 5, 6, 7]
        assert web.gets == {INDEX: 1}
        write_tar(shards / "train-001.tar", [("1.jpg", jpeg(1)), ("2.jpg", jpeg(2))])
        assert [shard.num_images for shard in read_index(urls)] == [3, 2, 5, 6, 7]  # has changed


def test_a_server_without_ranges_sends_a_shard_once(shards):
    with serving(shards, ranges=False) as web:
        (shard,) = read_index([web.url("train-004.tar")])
        assert shard.num_images == 7


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "cannot be read"), (b"no tar at all" * 100, "cannot be read")]
)
def test_a_broken_shard_without_an_index_is_one_sentence(tmp_path, content, reason):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(UserError, match=f"a.tar {reason}"):
        Source(tmp_path / "a.tar").split("train")


def test_parquet_without_images(tmp_path):
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no column with the bytes of images \(words\)"):
        load(tmp_path / "a.parquet", resolution=8)


def test_a_folder_of_images_may_hold_an_archive(shards):
    (shards / "beside.jpg").write_bytes(jpeg(1))
    assert len(Source(shards).split("train")) == 1


def test_few_shards_have_few_lanes(shards):
    store = load(shards, "pretrain", resolution=8, max_cache_bytes=0)
    assert store.order(8, 0).order.num_lanes == 4
    assert MAX_LANES == 8
    store.close()


def labelled(*labels):
    """Return the members of a tar file with a label each."""
    return [
        member
        for i, label in enumerate(labels)
        for member in (
            (f"{i}.jpg", jpeg(i)),
            (f"{i}.json", json.dumps({} if label is None else {"label": label}).encode()),
        )
    ]


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        ((0, 10, 9), ("0", "9", "10"), [0, 2, 1]),
        ((0, "cat", 1), ("0", "1", "cat"), [0, 2, 1]),
        (("01", "1", "007"), ("01", "1", "007"), [0, 1, 2]),
        ((0, 1, -1), None, None),
        ((0, 1, None), None, None),
        ((0, 1, [1]), None, None),
        ((0, 1, 1.5), None, None),
        (("9" * 5000, "8", "7"), ("7", "8", "9" * 200), [2, 1, 0]),
    ],
)
def test_labels_of_any_kind(tmp_path, labels, classes, numbers):
    write_tar(tmp_path / "set" / "a.tar", labelled(*labels))
    images = Source(tmp_path / "set").split("train")
    assert images.classes == classes
    assert (None if images.labels is None else images.labels.tolist()) == numbers


def test_words_in_parquet(tmp_path):
    pictures = [{"bytes": jpeg(i), "path": None} for i in range(4)]
    table = pa.table({"label": ["cat", "dog", "cat", "eel"], "image": pictures})
    pq.write_table(table, tmp_path / "a.parquet")
    images = Source(tmp_path / "a.parquet").split("train")
    assert images.classes == ("cat", "dog", "eel")
    assert images.labels.tolist() == [0, 1, 0, 2]


def test_a_broken_shard_leaves_the_names_and_labels_of_others(shards):
    read_index([str(path) for path in sorted(shards.glob("*.tar"))])  # kept in the cache
    content = bytearray((shards / "train-001.tar").read_bytes())
    content[:512] = b"x" * 512
    info = (shards / "train-001.tar").stat()
    (shards / "train-001.tar").write_bytes(content)
    os.utime(shards / "train-001.tar", ns=(info.st_atime_ns, info.st_mtime_ns))
    store = load(shards, "pretrain", resolution=16, max_bad_share=0.5)
    assert [bad.path for bad in store.bad] == [f"train-001.tar/{row}" for row in range(4)]
    assert load(shards, "val", resolution=16).labels.tolist() == [0, 1, 2, 3]
    assert Source(shards).split("train").labels is None  # some images have none


def test_a_rewritten_shard_of_the_same_size_is_counted_again(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, [(f"{i}.jpg", b"x" * 100) for i in range(6)])
    size = path.stat().st_size
    assert read_index([str(path)])[0].num_images == 6
    write_tar(path, [(f"{i}.jpg", b"x" * 100) for i in range(5)])
    assert path.stat().st_size == size
    assert read_index([str(path)])[0].num_images == 5


def test_probes_read_the_headers_of_few_shards(shards):
    """Of a head, only the first shards of each split are looked into."""
    with serving(shards) as web:
        pattern = web.url("{train-000,train-001,train-002,train-003,train-004,val-000}.tar")
        source = Source(pattern)
        whole = source.split("train")
        web.gets.clear()
        head = whole.head(3)
        assert head.labels.tolist() == [0, 1, 2]
        assert set(web.gets) <= {"train-000.tar", "val-000.tar"}


def test_shards_without_images_are_one_sentence(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.txt", b"words")])
    with pytest.raises(UserError, match="hold no images"):
        load(tmp_path / "a.tar", resolution=8)
