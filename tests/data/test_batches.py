import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smi.data import Batches
from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.errors import UserError
from smi.seeds import derive

PIXELS = np.arange(64, dtype=np.uint8).reshape(64, 1, 1, 1).repeat(3, axis=1)


def store(n: int) -> ArrayStore:
    return ArrayStore(ArraySet("numbers", "pretrain", (PIXELS[:n],)))


@settings(max_examples=40)
@given(
    n=st.integers(8, 64),
    batch=st.integers(1, 4),
    seed=st.integers(0, 2**40),
    start=st.integers(0, 40),
)
def test_resuming_at_any_step_gives_the_same_batches(
    n: int, batch: int, seed: int, start: int
) -> None:
    resumed = Batches(store(n), batch, seed=seed).starting_at(start)
    for step in range(start, start + 3):
        expected, actual = Batches(store(n), batch, seed=seed).batch(step), next(resumed)
        assert torch.equal(expected.images, actual.images)
        assert torch.equal(expected.index, actual.index)
        assert expected.images[:, 0, 0, 0].tolist() == expected.index.tolist()
        assert torch.equal(
            torch.rand(3, generator=expected.generator()),
            torch.rand(3, generator=actual.generator()),
        )


@settings(max_examples=40)
@given(
    n=st.integers(12, 64),
    world=st.integers(1, 4),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
)
def test_an_epoch_shows_every_image_at_most_once_over_all_ranks(
    n: int, world: int, batch: int, seed: int, epoch: int
) -> None:
    ranks = [
        Batches(store(n), batch, seed=seed, rank=rank, world_size=world) for rank in range(world)
    ]
    steps = ranks[0].steps_per_epoch
    assert steps == n // (world * batch)
    images = [
        i
        for step in range(epoch * steps, (epoch + 1) * steps)
        for rank in ranks
        for i in rank.index(step).tolist()
    ]
    assert len(images) == len(set(images)) == steps * world * batch


@settings(max_examples=20)
@given(world=st.sampled_from([1, 2, 4]), step=st.integers(0, 30), seed=st.integers(0, 2**40))
def test_ranks_share_one_global_batch(world: int, step: int, seed: int) -> None:
    one = Batches(store(64), 8, seed=seed).index(step)
    ranks = [
        Batches(store(64), 8 // world, seed=seed, rank=rank, world_size=world).index(step)
        for rank in range(world)
    ]
    assert torch.equal(torch.cat(ranks), one)


def test_epochs_seeds_steps_and_ranks_differ() -> None:
    batches = Batches(store(64), 64, seed=0)
    assert not torch.equal(batches.index(0), batches.index(1))
    assert not torch.equal(batches.index(0), Batches(store(64), 64, seed=1).index(0))
    assert (
        len(
            {
                derive(seed, "batch", step, rank)
                for seed in range(4)
                for step in range(4)
                for rank in range(4)
            }
        )
        == 64
    )


def test_the_order_is_that_of_published_runs() -> None:
    """Guard the order of images: a change here changes every run and belongs in the changelog."""
    assert derive(0, "batch", 0, 0) == 3906402232612198476
    assert Batches(store(8), 8, seed=0).index(0).tolist() == [7, 3, 0, 6, 5, 4, 2, 1]


def test_mistakes_are_user_errors() -> None:
    with pytest.raises(
        UserError,
        match="numbers has 8 images, fewer than one batch of 3 on each of 4 processes: make the",
    ):
        Batches(store(8), 3, seed=0, world_size=4)
    with pytest.raises(UserError, match="1 image or more"):
        Batches(store(8), 0, seed=0)
    with pytest.raises(UserError, match="rank 2 is not one of 2"):
        Batches(store(8), 1, seed=0, rank=2, world_size=2)
