import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from smi.data import load
from smi.data.sources import ArraySet
from smi.data.store import ArrayStore
from smi.errors import UserError
from smi.evaluation import (
    FeatureSplits,
    Task,
    Training,
    extract_labelled,
    fine_tune,
    light,
    linear_accuracy,
    train_linear,
)
from smi.evaluation.finetune import MIN_STEPS, sample_each_class
from smi.evaluation.linear_sgd import (
    LEARNING_RATES,
    SGD_MOMENTUM,
    SGD_WEIGHT_DECAY,
    _Heads,
    choose_lr,
)
from smi.evaluation.logistic import nearly_best

UNIT = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train"), load("digits", "val")


def policy(data="digits", size=8):
    return light(data, size=size, **UNIT)


def rows(network, stores):
    parts = [part for store in stores for part in extract_labelled(network, store, **UNIT)]
    return FeatureSplits(*parts)


def colours(n=120, classes=3, side=4):
    """Images of one colour each: the class is the channel that shines."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    images = rng.integers(0, 60, (n, 3, side, side), dtype=np.uint8)
    images[np.arange(n), labels] += 150
    return ArrayStore(
        ArraySet("colours", "train", (images,), labels, ("red", "green", "blue")[:classes])
    )


def test_heads_step_as_pytorchs_sgd_does():
    """Three learning rates side by side are three classifiers trained apart."""
    lrs, x, y = [0.1, 1.0, 3.0], torch.rand(20, 64, 5), torch.randint(4, (20, 64))
    heads = _Heads(5, 4, lrs, torch.device("cpu"))
    apart = [nn.Linear(5, 4) for _ in lrs]
    for head, lr in zip(apart, lrs, strict=True):
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(
            head.parameters(), lr=lr, momentum=SGD_MOMENTUM, weight_decay=SGD_WEIGHT_DECAY
        )
        for step in range(20):
            optimizer.zero_grad()
            cross_entropy(head(x[step]), y[step]).backward()
            optimizer.step()
    for step in range(20):
        before = heads.scores(x[step])
        scores, loss = heads.step(x[step], y[step], 1.0)
        torch.testing.assert_close(scores, before)
        torch.testing.assert_close(
            loss, torch.stack([cross_entropy(before[:, i], y[step]) for i in range(3)])
        )
    for i, head in enumerate(apart):
        torch.testing.assert_close(
            heads.scores(x[0])[:, i], head(x[0]).detach(), rtol=1e-4, atol=1e-5
        )


def test_a_learning_rate_that_explodes_leaves_the_others_alone():
    x, y = torch.rand(64, 5), torch.randint(4, (64,))
    alone, beside = (
        _Heads(5, 4, [0.1], torch.device("cpu")),
        _Heads(5, 4, [0.1, 1e38], torch.device("cpu")),
    )
    for _ in range(30):
        alone.step(x, y, 1.0)
        beside.step(x, y, 1.0)
    assert not beside.weight[4:].isfinite().all()
    torch.testing.assert_close(beside.weight[:4], alone.weight)


def test_the_linear_classifier_finds_what_is_there(digits):
    train = digits[0]
    features = rows(nn.Flatten(), digits)
    reported = []
    found = train_linear(
        Task(nn.Flatten(), train, policy(), num_classes=10),
        features,
        training=Training(epochs=12, batch_size=64, watch=reported.append),
    )
    exact = linear_accuracy(*features).top1
    assert exact - 0.15 < found.top1 <= 1  # crops of digits say less than whole ones
    assert found.top5 is not None
    assert found.top5 >= found.top1
    assert found.lr in LEARNING_RATES
    assert [pair[0] for pair in found.validation] == list(LEARNING_RATES)
    assert [epoch.epoch for epoch in found.curves] == list(range(1, 13))
    assert reported == list(found.curves)
    assert found.curves[-1].train_loss < found.curves[0].train_loss
    assert found.top1 == pytest.approx(
        found.curves[-1].test_top1, abs=1e-6
    )  # the last, whatever the best was
    assert found.protocol.endswith("last of 12 epochs, on 183 images")


def test_the_encoder_stays_as_it_was_and_the_seed_decides():
    train = colours()
    encoder = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).train()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    h, y = extract_labelled(encoder, train, **UNIT)

    def train_it(seed):
        return train_linear(
            Task(encoder, train, policy("other", 4), num_classes=3),
            FeatureSplits(h, y, h, y),
            training=Training(epochs=30, batch_size=32, seed=seed),
        )

    once, again, other = train_it(0), train_it(0), train_it(1)
    assert once == again
    assert once.curves != other.curves
    assert encoder.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert once.top5 is None
    assert once.top1 > 0.9


def test_learning_rates_are_judged_on_training_images_alone():
    """Wrong test labels do not change the choice, and a single learning rate is not tried."""
    train = colours()
    h, y = extract_labelled(nn.Flatten(), train, **UNIT)
    task = Task(nn.Flatten(), train, policy("other", 4), num_classes=3)
    training = Training(epochs=3, batch_size=32)
    right = train_linear(task, FeatureSplits(h, y, h, y), training=training)
    wrong = train_linear(task, FeatureSplits(h, y, h, (y + 1) % 3), training=training)
    assert right.validation == wrong.validation
    assert wrong.top1 < 0.2
    given = train_linear(task, FeatureSplits(h, y, h, y), lrs=[0.5], training=training)
    assert given.lr == 0.5
    assert given.validation == ()
    assert "peak learning rate 0.5," in given.protocol


def test_what_counts_as_good():
    assert nearly_best([(0.1, 0.70), (1.0, 0.90), (3.0, 0.901)], 1000) == [1.0, 3.0]
    assert nearly_best([(0.1, 0.70), (1.0, 0.80), (3.0, 0.90)], 1000) == [3.0]
    assert nearly_best([(0.5, float("nan"))], 1000) == [0.5]
    with pytest.raises(UserError, match="too few"):
        choose_lr(
            Task(nn.Flatten(), colours(2, 2), policy("other", 4), num_classes=2),
            torch.rand(2, 48),
            torch.arange(2),
            lrs=LEARNING_RATES,
            training=Training(epochs=1, batch_size=2),
        )


def test_light_views_are_crops_and_flips_alone():
    view = light("cifar10", size=24, **UNIT).views[0]
    assert (view.size, view.scale, view.flip_p) == (24, (0.2, 1.0), 0.5)
    assert (view.jitter_p, view.gray_p, view.blur_p, view.solarize_p) == (0, 0, 0, 0)
    assert light("digits", size=8, **UNIT).views[0].flip_p == 0
    assert light("my-photos", size=64, **UNIT).views[0].scale == (0.08, 1.0)
    assert len(light("cifar10", size=24, **UNIT).views) == 1


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def test_fine_tuning_trains_a_copy_from_the_share_it_is_given():
    train = colours(300)
    encoder = Small().requires_grad_(False).eval()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    task = Task(encoder, train, policy("other", 4), num_classes=3)
    found = fine_tune(task, train, share=0.1, training=Training(epochs=2))
    assert found.num_labels == 30
    assert found.epochs == MIN_STEPS  # an epoch is one batch
    assert found.top1 > 0.9
    assert found.top1 == pytest.approx(found.curves[-1].test_top1, abs=1e-6)
    assert found.curves[-1].epoch == found.epochs
    assert not encoder.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert "30 labelled images (10% of each class)" in found.protocol
    assert fine_tune(task, train, share=0.1, training=Training(epochs=2)) == found
    with pytest.raises(UserError, match="share of labels"):
        fine_tune(task, train, share=0.0)


def test_fine_tuning_moves_the_encoder():
    """A network that throws the class away can only get it back by being trained itself."""
    train = colours(300)
    blind = Small()
    with torch.no_grad():
        blind[0].weight.copy_(
            blind[0].weight.mean(1, keepdim=True).expand_as(blind[0].weight)
        )  # sees grey
    h, y = extract_labelled(blind, train, **UNIT)
    frozen = linear_accuracy(h, y, h, y).top1
    task = Task(blind, train, policy("other", 4), num_classes=3)
    tuned = fine_tune(task, train, share=1.0, training=Training(epochs=600)).top1
    assert frozen < 0.6
    assert tuned > 0.9


@pytest.mark.parametrize("share", [0.001, 0.1, 0.34, 1.0])
def test_a_share_of_each_class(share):
    labels = torch.arange(1000) % 7
    labels[labels == 6] = 5  # a class without images
    chosen = sample_each_class(labels, share, seed=3)
    expected = (torch.bincount(labels, minlength=7) * share).round().clamp(min=1)
    expected[6] = 0
    assert torch.equal(torch.bincount(labels[chosen], minlength=7), expected.long())
    assert torch.equal(chosen, chosen.sort().values)
    assert set(sample_each_class(labels, share / 2, seed=3).tolist()) <= set(chosen.tolist())
