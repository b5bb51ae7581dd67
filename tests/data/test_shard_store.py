"""Stream shards: every image once, nothing fetched twice, losses counted, resumed anywhere."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch

from smi.data import Batches, load
from smi.data import order as order_module
from smi.data.ring import NUM_KEPT, Ring
from smi.data.shards import read_index
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
        "from smi.data.shards import read_index\n"
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
