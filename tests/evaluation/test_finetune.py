import pytest
import torch
from torch import nn

from smi.errors import UserError
from smi.evaluation import Task, Training, extract_labelled, fine_tune, linear_accuracy
from smi.evaluation.finetune import MIN_STEPS, sample_each_class
from support.colours import UNIT, colours, policy


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def test_fine_tuning_trains_a_copy_on_a_share_of_the_labels():
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
    """The features of this network do not contain the class, so only training it can help."""
    train = colours(300)
    blind = Small()
    with torch.no_grad():
        blind[0].weight.copy_(
            blind[0].weight.mean(1, keepdim=True).expand_as(blind[0].weight)
        )  # sees only grey
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
