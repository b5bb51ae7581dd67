"""Judge encoders without labels: known spectra, plain references, collapse."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.errors import UserError
from smi.evaluation.label_free import (
    MAX_IMAGES,
    alpha_req,
    cluster_learnability,
    label_free,
    lidar,
    rank_me,
    retrieval,
    sample,
)
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


def measure(encoder, store, crops, **settings):
    whole = torch.randn(len(store), 12, generator=torch.Generator().manual_seed(0))
    return label_free(encoder, store, crops, whole, **settings)


def test_features_that_views_do_not_change_find_every_image(store, crops):
    result = measure(Colour(1.0), store, crops)
    assert (result.retrieval, result.num_images) == (1, 200)


def test_equal_features_find_no_image_but_by_chance(store, crops):
    assert measure(Colour(0.0), store, crops).retrieval <= 0.02


def test_views_that_change_colours_make_it_harder(store, crops):
    jitter = replace(crops.policy.views[0], jitter_p=1.0, brightness=0.4, hue=0.1)
    harder = Views(replace(crops.policy, views=(jitter, jitter)))
    result = measure(Colour(1.0), store, harder, seed=3)
    assert 0.005 < result.retrieval < 0.9
    assert result.lidar < 3  # of three colours
    assert result == measure(Colour(1.0), store, harder, seed=3)
    assert result != measure(Colour(1.0), store, harder, seed=4)


def test_rank_me_of_known_spectra():
    assert rank_me(torch.eye(5)) == pytest.approx(5)
    assert rank_me(torch.ones(6, 4)) == pytest.approx(1)
    assert rank_me(torch.zeros(6, 4)) == 1
    assert rank_me(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(
        np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    )


@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
def test_rank_me_is_that_of_singular_values(shape):
    h = torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(1)) ** 3
    shares = torch.linalg.svdvals(h) / torch.linalg.svdvals(h).sum()
    assert rank_me(h) == pytest.approx(float((-(shares * shares.log()).sum()).exp()))


def views_of(n=40, q=6, dim=5, noise=0.3):
    generator = torch.Generator().manual_seed(2)
    scales = torch.arange(1.0, dim + 1, dtype=torch.double)
    means = torch.randn(n, 1, dim, dtype=torch.double, generator=generator) * scales
    return means + noise * torch.randn(n, q, dim, dtype=torch.double, generator=generator)


def test_lidar_is_the_rank_of_the_generalised_eigenvalues():
    h = views_of()
    within = torch.stack([torch.cov(rows.T) for rows in h]).mean(0)
    within += 1e-4 * within.diagonal().mean() * torch.eye(5)
    between = torch.cov(h.mean(1).T)
    values = torch.linalg.eigvals(torch.linalg.inv(within) @ between).real - 1 / 6
    shares = values / values.sum()
    assert lidar(h) == pytest.approx(float((-(shares * shares.log()).sum()).exp()))


def test_lidar_ignores_scale_and_axes():
    h = views_of()
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.double))[0]
    assert lidar(1e-3 * h) == pytest.approx(lidar(h))
    assert lidar(h @ turn) == pytest.approx(lidar(h))


@pytest.mark.parametrize("views", [4, 16])
def test_lidar_does_not_count_the_noise_of_few_views(views):
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(800, views, 96, dtype=torch.double, generator=generator)
    signal = torch.zeros(800, 1, 96, dtype=torch.double)
    signal[..., :8] = 2 * torch.randn(800, 1, 8, dtype=torch.double, generator=generator)
    assert 6 < lidar(signal + noise) < 9
    assert lidar(noise) < 2.5


def test_lidar_needs_enough_views():
    assert lidar(torch.randn(4, 3, 9)) is None


def test_lidar_without_variation_is_one():
    assert lidar(torch.ones(4, 3, 2)) == 1


@pytest.mark.parametrize("decay", [0.5, 1.0, 2.0])
def test_alpha_req_is_the_power_of_the_eigenvalues(decay):
    generator = torch.Generator().manual_seed(3)
    axes = torch.linalg.qr(torch.randn(200, 60, dtype=torch.double, generator=generator))[0]
    axes = torch.linalg.qr(axes - axes.mean(0))[0]
    eigenvalues = torch.arange(1.0, 61, dtype=torch.double) ** -decay
    assert alpha_req(axes * eigenvalues.sqrt() + 5) == pytest.approx(decay, rel=1e-6)


def test_alpha_req_needs_rank():
    assert alpha_req(torch.randn(50, 3)) is None


def test_clusters_are_learnable_if_there_are_clusters(clusters):
    features, _ = clusters(400, 16, 20, spread=0.01)
    noise = torch.randn(400, 64, generator=torch.Generator().manual_seed(4))
    assert cluster_learnability(features) > 0.9
    assert cluster_learnability(noise) < 0.5
    assert cluster_learnability(torch.ones(30, 4)) == 1  # a collapsed encoder
    assert cluster_learnability(noise, seed=1) == cluster_learnability(noise, seed=1)


def test_one_image_is_no_error(store, crops):
    one = ArrayStore(ArraySet("one", "pretrain", (np.zeros((1, 3, 8, 8), np.uint8),)))
    result = measure(Colour(1.0), one, crops)
    assert result.retrieval == 1
    assert result.learnability == 0
    assert result.alpha_req is None


@pytest.mark.parametrize("count", [1, 7, MAX_IMAGES, MAX_IMAGES + 1, 3 * MAX_IMAGES + 5])
def test_a_sample_is_spread_over_all_images(count):
    index = sample(range(count))
    assert len(index) == len(set(index.tolist())) == min(count, MAX_IMAGES)
    assert index[0] == 0
    assert index[-1] >= count - 1 - count / MAX_IMAGES


def test_features_that_are_not_finite_are_refused(store, crops):
    with pytest.raises(UserError, match="not finite"):
        measure(Colour(float("nan")), store, crops)


def test_retrieval_compares_the_first_two_views():
    h = torch.eye(4)[:, None].repeat(1, 2, 1)
    assert retrieval(h) == 1
    h[0, 1] = h[1, 0]
    assert retrieval(h) == 0.75


def test_the_encoder_stays_as_it_was(store, crops):
    encoder = Colour(1.0)
    encoder.norm.eval()
    measure(encoder, store, crops)
    assert encoder.training
    assert not encoder.norm.training
    assert encoder.norm.num_batches_tracked == 0
