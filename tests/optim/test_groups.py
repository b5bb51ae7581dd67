import copy

import pytest
import torch
from torch import nn

from smi.errors import UserError
from smi.optim import create_optimizer, set_lr

NAMES = pytest.mark.parametrize("name", ["AdamW", "LARS", "SGD"])


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


@NAMES
def test_matrices_and_vectors(name):
    module = network()
    module[3].weight.requires_grad_(False)
    optimizer = create_optimizer(module, name=name, lr=0.2, lr_vectors=0.0048, weight_decay=1e-6)
    matrices, vectors = optimizer.param_groups
    assert [p is module[0].weight for p in matrices["params"]] == [True]
    assert {id(p) for p in vectors["params"]} == {
        id(p) for p in (module[0].bias, module[1].weight, module[1].bias, module[3].bias)
    }
    assert (matrices["lr"], matrices["peak_lr"], matrices["weight_decay"]) == (0.2, 0.2, 1e-6)
    assert (vectors["lr"], vectors["peak_lr"], vectors["weight_decay"]) == (0.0048, 0.0048, 0.0)
    assert matrices["betas"][0] == 0.9 if name == "AdamW" else matrices["momentum"] == 0.9


@NAMES
def test_one_learning_rate_and_empty_groups(name):
    both = create_optimizer(network(), name=name, lr=0.2, lr_vectors=None, weight_decay=0.0)
    assert [group["peak_lr"] for group in both.param_groups] == [0.2, 0.2]
    (only,) = create_optimizer(
        nn.Linear(3, 2, bias=False), name=name, lr=0.2, lr_vectors=0.1, weight_decay=0.0
    ).param_groups
    assert only["peak_lr"] == 0.2
    (only,) = create_optimizer(
        nn.BatchNorm1d(3), name=name, lr=0.2, lr_vectors=0.0, weight_decay=0.5
    ).param_groups
    assert (only["peak_lr"], only["weight_decay"]) == (0.0, 0.0)
    with pytest.raises(ValueError, match="empty parameter list"):
        create_optimizer(nn.ReLU(), name=name, lr=0.2, lr_vectors=None, weight_decay=0.0)


@NAMES
def test_steps_without_some_gradients_and_round_trips(name):
    module = network()
    arguments = {"name": name, "lr": 0.01, "lr_vectors": 0.001, "weight_decay": 1e-4}
    optimizer = create_optimizer(module, **arguments)
    set_lr(optimizer, 0.5)
    x = torch.randn(8, 3, 4, 4)

    def step(module, optimizer, used):
        optimizer.zero_grad()
        module[:used](x).square().sum().backward()
        optimizer.step()

    unused = module[3].weight.detach().clone()
    step(module, optimizer, 2)
    assert torch.equal(module[3].weight, unused)
    step(module, optimizer, 4)
    assert not torch.equal(module[3].weight, unused)

    resumed = network()
    resumed.load_state_dict(module.state_dict())
    other = create_optimizer(resumed, **arguments)
    other.load_state_dict(
        copy.deepcopy(optimizer.state_dict())
    )  # otherwise the two would share their momentum
    assert [(g["lr"], g["peak_lr"]) for g in other.param_groups] == [(0.005, 0.01), (0.0005, 0.001)]
    step(module, optimizer, 4)
    step(resumed, other, 4)
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), resumed.parameters(), strict=True)
    )


def test_adamw_is_fused_where_it_can_be():
    arguments = {"name": "AdamW", "lr": 0.1, "lr_vectors": None, "weight_decay": 0.0}
    assert all(group["fused"] for group in create_optimizer(network(), **arguments).param_groups)
    assert not any(
        group["fused"] for group in create_optimizer(network().to("meta"), **arguments).param_groups
    )


def test_unknown_name():
    with pytest.raises(UserError, match="'Adam': choose AdamW, LARS or SGD"):
        create_optimizer(network(), name="Adam", lr=0.1, lr_vectors=None, weight_decay=0.0)
