import copy

import pytest
import torch
from torch import nn

from smi.errors import UserError
from smi.optim import create_optimizer, set_lr, set_schedules

NAMES = pytest.mark.parametrize("name", ["AdamW", "LARS", "LARC", "SGD"])


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
    with pytest.raises(UserError, match="'Adam': choose AdamW, LARS, LARC or SGD"):
        create_optimizer(network(), name="Adam", lr=0.1, lr_vectors=None, weight_decay=0.0)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.predictor = nn.Linear(4, 2)
        self.teacher = nn.Linear(3, 4).requires_grad_(False)


@NAMES
def test_weight_decay_of_vectors(name):
    matrices, vectors = create_optimizer(
        network(), name=name, lr=0.2, lr_vectors=0.1, weight_decay=1e-4, decay_vectors=True
    ).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (1e-4, 1e-4)
    assert (matrices["peak_lr"], vectors["peak_lr"]) == (0.2, 0.1)


@pytest.mark.parametrize("name", ["LARS", "LARC"])
def test_vectors_are_adapted_only_if_they_decay(name):
    def moved(decay_vectors):
        module = nn.Linear(2, 2)
        nn.init.ones_(module.bias)
        module.bias.grad = torch.full((2,), 100.0)
        optimizer = create_optimizer(
            module,
            name=name,
            lr=1.0,
            lr_vectors=None,
            weight_decay=0.0,
            decay_vectors=decay_vectors,
        )
        optimizer.step()
        return 1 - module.bias.detach()

    torch.testing.assert_close(moved(False), torch.full((2,), 100.0))
    torch.testing.assert_close(moved(True), torch.full((2,), 1e-3))  # a thousandth of its length


def test_a_part_without_a_schedule():
    module = Parts()
    optimizer = create_optimizer(
        module, name="SGD", lr=0.2, lr_vectors=0.1, weight_decay=0.0, constant_lr=["predictor"]
    )
    set_lr(optimizer, 0.25)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    parts = module.encoder, module.predictor
    assert [rates[id(part.weight)] for part in parts] == [0.05, 0.2]
    assert [rates[id(part.bias)] for part in parts] == [0.025, 0.1]
    assert len(rates) == 4
    with pytest.raises(UserError, match=r"Parts has no part 'teacher'; .* encoder, predictor$"):
        create_optimizer(
            module, name="SGD", lr=0.2, lr_vectors=None, weight_decay=0.0, constant_lr=["teacher"]
        )


def test_weight_decay_follows_a_cosine_where_there_is_some():
    optimizer = create_optimizer(
        network(),
        name="AdamW",
        lr=1e-3,
        lr_vectors=None,
        weight_decay=0.04,
        final_weight_decay=0.4,
    )
    for progress, expected in ((0.0, 0.04), (0.5, 0.22), (1.0, 0.4)):
        set_schedules(optimizer, progress, 0.5)
        matrices, vectors = optimizer.param_groups
        assert matrices["weight_decay"] == pytest.approx(expected)
        assert (vectors["weight_decay"], vectors["lr"]) == (0.0, 5e-4)


def test_groups_of_earlier_checkpoints_can_be_scheduled():
    optimizer = create_optimizer(network(), name="LARS", lr=0.2, lr_vectors=0.1, weight_decay=1e-6)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        for key in ("constant_lr", "first_weight_decay", "final_weight_decay"):
            group.pop(key, None)
    optimizer.load_state_dict(state)
    set_schedules(optimizer, 0.5, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05]
