import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from smi.data import load
from smi.errors import UserError
from smi.evaluation import (
    FeatureSplits,
    Task,
    Training,
    extract_labelled,
    light,
    linear_accuracy,
    train_linear,
)
from smi.evaluation.linear_sgd import (
    LEARNING_RATES,
    SGD_MOMENTUM,
    SGD_WEIGHT_DECAY,
    _Heads,
    choose_lr,
)
from smi.evaluation.logistic import nearly_best
from support.colours import UNIT, colours, policy


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train"), load("digits", "val")


def rows(network, stores):
    parts = [part for store in stores for part in extract_labelled(network, store, **UNIT)]
    return FeatureSplits(*parts)


def test_heads_take_the_same_steps_as_sgd_of_pytorch():
    """Three learning rates side by side equal three separate classifiers."""
    lrs, x, y = [0.1, 1.0, 3.0], torch.rand(20, 64, 5), torch.randint(4, (20, 64))
    heads = _Heads(5, 4, lrs, torch.device("cpu"))
    separate = [nn.Linear(5, 4) for _ in lrs]
    for head, lr in zip(separate, lrs, strict=True):
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
    for i, head in enumerate(separate):
        torch.testing.assert_close(
            heads.scores(x[0])[:, i], head(x[0]).detach(), rtol=1e-4, atol=1e-5
        )


def test_a_diverging_learning_rate_does_not_affect_others():
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


def test_the_linear_classifier_is_nearly_as_good_as_the_exact_one(digits):
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


def test_the_encoder_does_not_change_and_the_seed_decides():
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


def test_learning_rates_are_chosen_on_training_images_only():
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


def test_settings_within_half_a_standard_error_are_nearly_best():
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


def test_light_views_are_crops_and_flips_only():
    view = light("cifar10", size=24, **UNIT).views[0]
    assert (view.size, view.scale, view.flip_p) == (24, (0.2, 1.0), 0.5)
    assert (view.jitter_p, view.gray_p, view.blur_p, view.solarize_p) == (0, 0, 0, 0)
    assert light("digits", size=8, **UNIT).views[0].flip_p == 0
    assert light("my-photos", size=64, **UNIT).views[0].scale == (0.08, 1.0)
    assert len(light("cifar10", size=24, **UNIT).views) == 1
