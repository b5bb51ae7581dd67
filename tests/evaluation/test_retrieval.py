"""Measure how often a view of an image finds the other view of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.evaluation.retrieval import rank_me, view_retrieval
from smi.views import Views, policy


class Colour(nn.Module):
    """Return the mean colour of an image, which crops and flips do not change."""

    def __init__(self, gain: float):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.gain * self.norm(x).mean((2, 3)) + 1e-6 * torch.ones(3)


@pytest.fixture
def store():
    """Return 200 images of one colour each."""
    colours = np.random.default_rng(0).integers(0, 256, (200, 3, 1, 1), dtype=np.uint8)
    images = np.broadcast_to(colours, (200, 3, 8, 8)).copy()
    return ArrayStore(ArraySet("colours", "pretrain", (images,)))


@pytest.fixture
def crops():
    """Return views that change no colour."""
    chosen = policy("cifar10", size=8)
    plain = replace(chosen.views[0], jitter_p=0.0, gray_p=0.0, blur_p=0.0)
    return Views(replace(chosen, views=(plain, plain)))


def test_features_that_views_do_not_change_find_every_image(store, crops):
    result = view_retrieval(Colour(1.0), store, crops)
    assert (result.share, result.num_images) == (1, 200)
    assert 2 < result.rank < 3  # of three colours


def test_equal_features_find_no_image_but_by_chance(store, crops):
    result = view_retrieval(Colour(0.0), store, crops)
    assert result.share <= 0.02
    assert result.rank == pytest.approx(1, abs=1e-4)


def test_views_that_change_colours_make_it_harder(store, crops):
    jitter = replace(crops.policy.views[0], jitter_p=1.0, brightness=0.4, hue=0.1)
    harder = Views(replace(crops.policy, views=(jitter, jitter)))
    result = view_retrieval(Colour(1.0), store, harder, seed=3)
    assert 0.005 < result.share < 0.9
    assert result == view_retrieval(Colour(1.0), store, harder, seed=3)
    assert result != view_retrieval(Colour(1.0), store, harder, seed=4)


def test_rank_me_of_known_spectra():
    assert rank_me(torch.eye(5)) == pytest.approx(5)
    assert rank_me(torch.ones(6, 4)) == pytest.approx(1)
    assert rank_me(torch.zeros(6, 4)) == 1
    assert rank_me(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(
        np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    )


def test_the_encoder_stays_as_it_was(store, crops):
    encoder = Colour(1.0)
    view_retrieval(encoder, store, crops)
    assert encoder.training
    assert encoder.norm.num_batches_tracked == 0
