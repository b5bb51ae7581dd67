import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smi.data.order import MAX_LANES, ShardOrder, Shuffled
from smi.seeds import permutation


def whole(order, epoch: int, batch_size: int) -> torch.Tensor:
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    return torch.cat([order.images(step, 0, batch_size) for step in steps])


def test_shuffled_is_a_permutation_cut_into_steps():
    order = Shuffled(23, 5, seed=3)
    assert order.steps_per_epoch == 4
    for epoch in (1, 0):
        assert torch.equal(whole(order, epoch, 5), permutation(23, 3, epoch)[:20])
    assert torch.equal(order.images(2, 1, 4), permutation(23, 3, 0)[11:14])


shard_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda s: sum(s) >= 64)


@given(shard_sizes, st.integers(1, 64), st.integers(1, 500))
def test_every_image_comes_once_in_an_epoch_but_for_the_rest(sizes, batch_size, block_bytes):
    num_images = np.array(sizes)
    order = ShardOrder(num_images, num_images * 10, batch_size, 0, block_bytes=block_bytes)
    assert order.steps_per_epoch == num_images.sum() // batch_size
    for epoch in (0, 3):
        images = whole(order, epoch, batch_size)
        assert len(images.unique()) == len(images) == order.steps_per_epoch * batch_size
        assert images.min() >= 0
        assert images.max() < num_images.sum()


@given(shard_sizes, st.sampled_from([8, 24, 30]), st.integers(0, 30), st.integers(1, 500))
def test_any_step_and_part_is_the_same_from_a_new_order(sizes, batch_size, step, block_bytes):
    """A resumed run, and a run of another number of processes, see the same images."""
    arguments = (np.array(sizes), np.array(sizes) * 10, batch_size, 7)
    used = ShardOrder(*arguments, block_bytes=block_bytes)
    for earlier in range(step):
        used.images(earlier, 0, batch_size)
    images = used.images(step, 0, batch_size)
    for world_size in (1, 2, 3, 5, 6):
        share = batch_size // world_size
        parts = [
            ShardOrder(*arguments, block_bytes=block_bytes).images(step, r * share, (r + 1) * share)
            for r in range(world_size)
        ]
        assert torch.equal(torch.cat(parts), images[: share * world_size])


def test_epochs_and_seeds_have_other_orders():
    sizes = np.full(10, 100)
    one, other = (ShardOrder(sizes, sizes, 50, seed, block_bytes=300) for seed in (0, 1))
    assert not torch.equal(whole(one, 0, 50), whole(one, 1, 50))
    assert not torch.equal(whole(one, 0, 50), whole(other, 0, 50))


@given(shard_sizes, st.sampled_from([8, 12, 7]), st.integers(1, 300))
def test_the_shards_of_a_step_hold_its_images(sizes, batch_size, block_bytes):
    num_images = np.array(sizes)
    starts = np.concatenate([[0], num_images.cumsum()])
    order = ShardOrder(num_images, num_images * 10, batch_size, 0, block_bytes=block_bytes)
    for step in range(order.steps_per_epoch - 1):
        images = order.images(step, 0, batch_size).numpy()
        held = {shard for block in order.shards(step, 0, batch_size) for shard in block}
        needed = set((np.searchsorted(starts, images, side="right") - 1).tolist())
        if batch_size // order.num_lanes <= min(sizes):  # a step lies in two blocks at most
            assert needed <= held


def test_blocks_are_read_one_after_another():
    """Every shard belongs to one block of an epoch, or to two if it is on the border of lanes."""
    sizes = np.full(64, 100)
    order = ShardOrder(sizes, np.full(64, 10), 80, 0, block_bytes=40)
    assert order.num_lanes == MAX_LANES
    current: dict[int, set[int]] = {}
    reads = 0
    for step in range(order.steps_per_epoch):
        images = order.images(step, 0, 80).reshape(8, 10)
        for lane, of_lane in enumerate(images):
            shards = set((of_lane // 100).tolist())
            reads += len(shards - current.get(lane, set()))
            current[lane] = current.get(lane, set()) | shards
            assert len(shards) <= 8  # two blocks of four
    assert reads == 64  # lanes of 800 images are eight shards


def test_processes_do_not_share_shards_where_they_divide_the_lanes():
    sizes = np.full(64, 100)
    seen = []
    for rank in range(4):
        order = ShardOrder(sizes, np.full(64, 10), 80, 0, block_bytes=40)
        steps = range(order.steps_per_epoch)
        images = torch.cat([order.images(s, rank * 20, (rank + 1) * 20) for s in steps])
        seen.append(set((images // 100).tolist()))
    assert [len(shards) for shards in seen] == [16] * 4
    assert len(set.union(*seen)) == 64


@pytest.mark.parametrize("step", [0, 123_456, 300_000])
def test_a_billion_images_need_little(step):
    """10⁹ images in 10⁵ shards: any step of any epoch, from nothing."""
    sizes = np.full(100_000, 10_000) + np.arange(100_000) % 7 - 3
    order = ShardOrder(sizes, sizes * 100_000, 4096, 0)
    assert 240_000 < order.steps_per_epoch < 250_000
    images = order.images(step, 0, 4096)
    assert len(images.unique()) == 4096
    assert int(images.max()) < sizes.sum()
    held = sum(len(block) for _, _, block in order._blocks.values())
    assert held <= MAX_LANES * 10_004  # one shard of a gigabyte each
