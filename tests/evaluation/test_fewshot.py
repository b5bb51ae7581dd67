import numpy as np
import pytest
import scipy.stats
import torch

from smi.data import load
from smi.errors import UserError
from smi.evaluation import few_shot, knn_accuracy, linear_accuracy, pixels
from smi.evaluation.fewshot import shuffle
from smi.intervals import interval


def test_interval_is_students():
    values = [0.61, 0.72, 0.65, 0.7]
    expected = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    assert interval(values) == pytest.approx((np.mean(values), *expected))
    assert interval([0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_a_draw_has_the_same_number_of_each_class(clusters):
    _, labels = clusters(100, 4, 5)
    order, place = shuffle(labels, 3)
    assert sorted(order.tolist()) == list(range(100))
    assert torch.bincount(labels[order[place < 3]]).tolist() == [3] * 5
    assert set(order[place < 2].tolist()) < set(order[place < 3].tolist())
    assert not torch.equal(order, shuffle(labels, 4)[0])


def test_more_labels_are_better_and_the_seed_decides(clusters):
    (features, labels), (test, truth) = (
        clusters(300, 30, 4, spread=3.0),
        clusters(300, 30, 4, spread=3.0, seed=1),
    )
    one, ten = few_shot(features, labels, test, truth, shots=(1, 10), draws=8)
    assert one.low < one.mean < one.high < ten.low
    assert [one, ten] == few_shot(features, labels, test, truth, shots=(1, 10), draws=8)
    assert (
        one.draws != few_shot(features, labels, test, truth, shots=(1,), draws=8, seed=1)[0].draws
    )
    assert one == few_shot(features, labels, test, truth, shots=(1,), draws=8)[0]
    assert (
        "1 labelled image of each of 4 classes, mean and 95 % interval over 8 draws" in one.protocol
    )


def test_neither_scale_nor_shift_of_features_matters(clusters):
    (features, labels), (test, truth) = (
        clusters(100, 8, 3, spread=2.0),
        clusters(100, 8, 3, spread=2.0, seed=1),
    )
    plain, moved = (
        few_shot(a * h + b, labels, a * t + b, truth, draws=4, shots=(2,))[0]
        for h, t, a, b in [(features, test, 1, 0), (features, test, 64, 512)]
    )
    assert plain.mean == pytest.approx(moved.mean, abs=0.01)


def test_a_small_class_gives_all_its_images(clusters):
    features, labels = clusters(100, 8, 3)
    keep = torch.cat([(labels == 0).nonzero()[:2, 0], (labels > 0).nonzero()[:, 0]])
    (result,) = few_shot(features[keep], labels[keep], features, labels, shots=(5,), draws=3)
    assert result.smallest == 2
    assert "(2 where a class has no more)" in result.protocol


def test_mistakes_are_sentences(clusters):
    features, labels = clusters(40, 8, 4)
    for wrong in ({"shots": (1000,)}, {"shots": (0,)}, {"draws": 1}):
        with pytest.raises(UserError):
            few_shot(features, labels, features, labels, **wrong)


def test_pixels_of_digits():
    """Raw pixels are the baseline of every encoder; their accuracy on digits is known."""
    train, test = load("digits", "train"), load("digits", "val")
    data = pixels(train), train.labels, pixels(test), test.labels
    one, five, ten = few_shot(*data, draws=10)
    assert one.mean == pytest.approx(0.62, abs=0.06)
    assert five.mean == pytest.approx(0.85, abs=0.04)
    assert ten.mean == pytest.approx(0.90, abs=0.03)
    assert linear_accuracy(*data).top1 > 0.95
    assert knn_accuracy(*data).top1 > 0.95
