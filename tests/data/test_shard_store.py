"""Stream shards: every image once, nothing fetched twice, losses counted, resumed anywhere."""

import errno
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from smi.data import Batches, load
from smi.data import order as order_module
from smi.data.ring import NUM_KEPT, Ring
from smi.data.shard_index import read_index
from smi.errors import UserError
from support.shards import jpeg, write_tar
from support.web import serving

NUM_SHARDS, PER_SHARD = 12, 10
NUM_IMAGES = NUM_SHARDS * PER_SHARD


@pytest.fixture(autouse=True)
def _small_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("smi.data.remote.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(order_module, "BLOCK_BYTES", 1)  # a shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(NUM_SHARDS):
        members = [(f"{i}.jpg", jpeg(shard * PER_SHARD + i)) for i in range(PER_SHARD)]
        write_tar(folder / f"{shard:03}.tar", members)
    index = [
        {"name": path.name, "bytes": path.stat().st_size, "images": PER_SHARD}
        for path in sorted(folder.glob("*.tar"))
    ]
    (folder / "shards.json").write_text(json.dumps({"shards": index}))
    return folder


@pytest.fixture
def web(folder):
    with serving(folder) as web:
        yield web


def stream(source, **settings):
    return load(
        source,
        "pretrain",
        resolution=8,
        keep="square",
        max_cache_bytes=0,
        num_workers=1,
        **settings,
    )


def all_of(web):
    return web.url(f"{{000..{NUM_SHARDS - 1:03}}}.tar")


def test_an_epoch_has_every_image_once_and_fetches_every_shard_once(web, folder, tmp_path):
    plain = load(folder, "pretrain", resolution=8, keep="square")
    store = stream(all_of(web))
    batches = Batches(store, 12, seed=0)
    assert batches.steps_per_epoch == 10
    reading = batches.starting_at(0)
    seen = Counter()
    for _ in range(10):
        batch = next(reading)
        assert torch.equal(batch.images, plain[batch.index])
        seen.update(batch.index.tolist())
        assert len(list((tmp_path / "home").glob("ring/*/*"))) <= 4 * (2 * 4 + NUM_KEPT) + 1
    reading.close()
    assert seen == Counter(range(NUM_IMAGES))
    # lanes of 30 images end within shards of 10: none is on a border; two steps are read ahead
    fetched = {name: count for name, count in web.gets.items() if name.endswith(".tar")}
    assert len(fetched) == NUM_SHARDS
    assert sum(fetched.values()) <= NUM_SHARDS + 8
    store.close()
    plain.close()
    assert not list((tmp_path / "home").glob("ring/*"))


@pytest.mark.parametrize("step", [3, 14])
def test_a_resumed_run_reads_the_same_images_from_the_blocks_it_needs(web, step):
    store = stream(all_of(web))
    reading = Batches(store, 12, seed=1).starting_at(0)
    expected = [next(reading) for _ in range(step + 3)][step:]
    reading.close()
    store.close()
    web.gets.clear()
    store = stream(all_of(web))
    batches = Batches(store, 12, seed=1)
    for number, batch in enumerate(expected):
        again = batches.batch(step + number)
        assert torch.equal(again.index, batch.index)
        assert torch.equal(again.images, batch.images)
    store.close()
    assert len([name for name in web.gets if name.endswith(".tar")]) <= NUM_SHARDS


def test_a_step_has_the_same_images_for_any_number_of_processes(folder):
    store = stream(folder)
    whole = Batches(store, 12, seed=2).index(4)
    for world_size in (2, 3, 4):
        parts = [
            Batches(store, 12 // world_size, seed=2, rank=rank, world_size=world_size).index(4)
            for rank in range(world_size)
        ]
        assert torch.equal(torch.cat(parts), whole)
    store.close()


@pytest.mark.parametrize("fault", [503, "cut"])
def test_a_store_that_fails_now_and_then_loses_nothing(web, folder, fault):
    plain = load(folder, "pretrain", resolution=8, keep="square")
    for shard in range(NUM_SHARDS):
        web.faults[f"{shard:03}.tar"] = [fault] * (shard % 4)
    store = stream(all_of(web))
    reading = Batches(store, 12, seed=0).starting_at(0)
    seen = [next(reading) for _ in range(10)]
    assert sorted(torch.cat([batch.index for batch in seen]).tolist()) == list(range(NUM_IMAGES))
    assert all(torch.equal(batch.images, plain[batch.index]) for batch in seen)
    assert store.bad == []
    reading.close()
    store.close()
    plain.close()


def test_a_lost_shard_is_replaced_counted_and_listed(web, folder, capsys):
    plain = load(folder, "pretrain", resolution=8, keep="square")
    web.faults["005.tar"] = [503] * 1000
    store = stream(all_of(web))
    reading = Batches(store, 12, seed=0).starting_at(0)
    seen = [next(reading) for _ in range(10)]
    counts = Counter(torch.cat([batch.index for batch in seen]).tolist())
    assert counts.total() == NUM_IMAGES
    assert not set(counts) & set(range(50, 60))
    assert {*range(NUM_IMAGES)} - {*counts} == {*range(50, 60)}  # all others are still there
    assert all(torch.equal(batch.images, plain[batch.index]) for batch in seen)
    (bad,) = store.bad
    assert bad.path.endswith("005.tar")
    assert "a shard is lost" in capsys.readouterr().err
    reading.close()
    store.close()
    plain.close()


def test_too_many_lost_shards_stop_the_run(web):
    for shard in range(2):
        web.faults[f"{shard:03}.tar"] = [404] * 1000
    store = stream(all_of(web))
    sentence = r"2 of 12 shards .* 20 of 120 images, above the accepted share of 10%"
    with pytest.raises(UserError, match=sentence):
        print([Batches(store, 12, seed=0).batch(step) for step in range(10)])
    store.close()


def test_a_damaged_shard_is_lost_and_a_damaged_image_is_replaced(folder, tmp_path):
    for path in folder.glob("*.tar"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "shards.json").write_bytes((folder / "shards.json").read_bytes())
    damaged = bytearray((tmp_path / "003.tar").read_bytes())
    damaged[512:560] = bytes(48)  # the beginning of its first image
    (tmp_path / "003.tar").write_bytes(damaged)
    damaged = bytearray((tmp_path / "007.tar").read_bytes())
    damaged[:512] = b"x" * 512  # its first header
    (tmp_path / "007.tar").write_bytes(damaged)
    store = stream(tmp_path)
    images = [Batches(store, 12, seed=0).batch(step).index for step in range(10)]
    counts = Counter(torch.cat(images).tolist())
    assert set(range(NUM_IMAGES)) - set(counts) == {30, *range(70, 80)}
    assert sorted(bad.path.rpartition("/")[2] for bad in store.bad) == ["0.jpg", "007.tar"]
    store.close()


def test_images_in_turn_need_no_order(folder, web):
    plain = load(folder, "pretrain", resolution=8, keep="square")
    store = stream(all_of(web))
    assert torch.equal(store[:], plain[:])
    del web.gets["000.tar"]  # whose first images were looked at
    assert {name: n for name, n in web.gets.items() if ".tar" in name} == {
        f"{i:03}.tar": 1 for i in range(1, NUM_SHARDS)
    }
    store.close()
    plain.close()


def test_processes_of_a_machine_share_what_they_fetch(web, tmp_path):
    shards = read_index([web.url(f"{i:03}.tar") for i in range(3)])
    first, second = (Ring(shards, tmp_path / "ring" / "a") for _ in range(2))
    paths = {ring.get(1).path for ring in (first, second)}
    assert web.gets["001.tar"] == 1
    assert len(paths) == 1
    first.close()
    assert next(iter(paths)).exists()  # the second still uses it
    second.close()
    assert not (tmp_path / "ring" / "a").exists()


def test_what_a_killed_process_has_left_is_used_or_removed(web, tmp_path):
    script = (
        "import os, sys, pathlib\n"
        "from smi.data.ring import Ring\n"
        "from smi.data.shard_index import read_index\n"
        "Ring(read_index([sys.argv[1]]), pathlib.Path(sys.argv[2])).get(0)\n"
        "os.kill(os.getpid(), 9)"
    )

    def kill_one() -> None:
        web.gets.clear()
        subprocess.run(
            [sys.executable, "-c", script, web.url("001.tar"), str(tmp_path / "ring" / "a")],
            check=False,
            env=os.environ,
        )
        assert web.gets["001.tar"] == 1

    shards = read_index([web.url("001.tar")])
    kill_one()
    same = Ring(shards, tmp_path / "ring" / "a")
    assert len(same.get(0)) == PER_SHARD
    assert web.gets["001.tar"] == 1  # not fetched again
    same.close()
    assert not list(tmp_path.glob("ring/*"))
    kill_one()
    another = Ring(shards, tmp_path / "ring" / "b")
    another.get(0)
    assert [path.name for path in tmp_path.glob("ring/*")] == ["b"]
    another.close()


def rewritten(folder, tmp_path, **changed):
    """Copy the shards, with other contents for some of them; the index stays."""
    for path in folder.iterdir():
        content = changed.get(path.stem, path.read_bytes())
        if content is not None:
            (tmp_path / path.name).write_bytes(content)
    return tmp_path


def tar_of(tmp_path, num_images, suffix=".jpg"):
    write_tar(tmp_path / "made" / "a.tar", [(f"{i}{suffix}", jpeg(i)) for i in range(num_images)])
    return (tmp_path / "made" / "a.tar").read_bytes()


def test_a_shard_with_fewer_images_than_its_index_says(folder, tmp_path):
    (tmp_path / "a").mkdir()
    fewer = rewritten(folder, tmp_path / "a", **{"004": tar_of(tmp_path, 8)})
    size = (fewer / "004.tar").stat().st_size
    index = json.loads((fewer / "shards.json").read_text())
    index["shards"][4]["bytes"] = size  # an index that is wrong only about the images
    (fewer / "shards.json").write_text(json.dumps(index))
    store = stream(fewer)
    images = [Batches(store, 12, seed=0).batch(step).index for step in range(10)]
    counts = Counter(torch.cat(images).tolist())
    assert set(range(NUM_IMAGES)) - set(counts) == {48, 49}
    assert [bad.reason for bad in store.bad] == ["the shard has fewer images"] * 2
    store.close()


def test_a_shard_without_images_is_lost(folder, tmp_path):
    (tmp_path / "a").mkdir()
    none = rewritten(folder, tmp_path / "a", **{"004": tar_of(tmp_path, 3, ".jxl")})
    index = json.loads((none / "shards.json").read_text())
    index["shards"][4]["bytes"] = (none / "004.tar").stat().st_size
    (none / "shards.json").write_text(json.dumps(index))
    store = stream(none)
    batch = Batches(store, 12, seed=0)
    images = torch.cat([batch.batch(step).index for step in range(10)])
    assert not set(images.tolist()) & set(range(40, 50))
    assert "holds no images" in store.bad[0].reason
    store.close()


def test_a_shard_that_only_the_index_knows_is_lost(folder, tmp_path):
    (tmp_path / "a").mkdir()
    missing = rewritten(folder, tmp_path / "a", **{"004": None})
    store = stream(f"{missing}/{{000..011}}.tar")
    batch = Batches(store, 12, seed=0)
    images = torch.cat([batch.batch(step).index for step in range(10)])
    assert set(range(NUM_IMAGES)) - set(images.tolist()) == set(range(40, 50))
    store.close()
    (missing / "shards.json").unlink()
    with pytest.raises(UserError, match=r"the shard .*004\.tar cannot be read: No such file"):
        stream(f"{missing}/{{000..011}}.tar")


def test_all_shards_lost_is_one_sentence(web):
    for shard in range(NUM_SHARDS):
        web.faults[f"{shard:03}.tar"] = [404] * 1000
    store = stream(all_of(web), max_bad_share=1)
    with pytest.raises(UserError, match="12 of 12 shards"):
        store[:]
    store.close()


def test_a_full_disk_is_not_a_lost_shard(web, monkeypatch):
    class Full:
        def get_file(self, *arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

    store = stream(all_of(web))
    monkeypatch.setattr("smi.data.remote.open_filesystem", lambda url: (Full(), url))
    with pytest.raises(UserError, match="no space left to copy"):
        store[:]
    assert store.bad == []
    store.close()


def test_a_store_that_is_forgotten_removes_what_it_fetched(web, tmp_path):
    store = stream(all_of(web))
    store[:3]
    assert list((tmp_path / "home").glob("ring/*"))
    del store
    gc.collect()
    assert not list((tmp_path / "home").glob("ring/*"))


def test_parquet_is_shared_by_processes(tmp_path):
    table = pa.table({"image": [{"bytes": jpeg(i), "path": None} for i in range(3)]})
    pq.write_table(table, tmp_path / "a.parquet")
    shards = read_index([str(tmp_path / "a.parquet")])
    first, second = (Ring(shards, tmp_path / "ring" / "a") for _ in range(2))
    opened = first.get(0)
    second.get(0)
    second.close()
    assert opened.path.read_bytes()[: opened.size[0]] == jpeg(0)
    first.close()
    assert not opened.path.exists()


def test_closing_gives_up_a_fetch(web, tmp_path):
    web.faults["000.tar"] = ["hang"] * 10
    ring = Ring(read_index([web.url("000.tar")]), tmp_path / "ring" / "a")
    ring.request([0])
    while len(web.faults["000.tar"]) == 10:
        time.sleep(0.01)
    ring.close()
    assert len(web.faults["000.tar"]) == 9  # it is not tried again
    assert not (tmp_path / "ring" / "a").exists()
