import copy
import math

import lightly.utils.lars
import pytest
import torch
from torch import nn

from smi.optim import LARS

SHAPES = [(5, 3), (4, 3, 2, 2), (3,), (), (1, 1)]


def reference(params, grads, mus, *, lr, weight_decay, momentum=0.9, eta=1e-3):
    """Compute one step with lists of floats, one coordinate after the other."""
    for p, g, mu, matrix in zip(
        params, grads, mus, (len(shape) > 1 for shape in SHAPES), strict=True
    ):
        if g is None:
            continue
        if matrix:
            g = [gi + weight_decay * pi for gi, pi in zip(g, p, strict=True)]
            param_norm, update_norm = math.hypot(*p), math.hypot(*g)
            q = eta * param_norm / update_norm if param_norm > 0 and update_norm > 0 else 1.0
            g = [q * gi for gi in g]
        for i in range(len(p)):
            mu[i] = momentum * mu[i] + g[i]
            p[i] -= lr * mu[i]


def gradients(step, generator):
    """Random, but for a zero, a missing and a first missing one."""
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    if step == 1:
        grads[0] = torch.zeros(SHAPES[0], dtype=torch.float64)
    if step == 2:
        grads[1] = grads[2] = None
    if step == 0:
        grads[4] = None
    return grads


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("zero", [None, 0, 2])
@pytest.mark.parametrize("together", [False, True])
def test_equals_its_definition(weight_decay, zero, together, monkeypatch):
    if together:  # as on a GPU: all of one kind at a time
        kinds = {True: "matrices", False: "vectors"}

        def batches(params):
            having = [p for p in params if p.grad is not None]
            return [
                batch for kind in kinds if (batch := [p for p in having if (p.ndim > 1) == kind])
            ]

        monkeypatch.setattr("smi.optim.lars._batches", batches)
    generator = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in SHAPES
    ]
    if zero is not None:
        params[zero].data.zero_()
    optimizer = LARS(params, 0.3, weight_decay=weight_decay)
    plain = [p.detach().flatten().tolist() for p in params]
    mus = [[0.0] * p.numel() for p in params]
    for step in range(6):
        grads = gradients(step, generator)
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()
        reference(
            plain,
            [None if g is None else g.flatten().tolist() for g in grads],
            mus,
            lr=0.3,
            weight_decay=weight_decay,
        )
        for p, g, expected in zip(params, grads, plain, strict=True):
            torch.testing.assert_close(
                p.detach().flatten(),
                torch.tensor(expected, dtype=torch.float64),
                rtol=1e-12,
                atol=1e-14,
            )
            assert (
                (p.grad is None) if g is None else torch.equal(p.grad, g)
            )  # gradients are the caller's


def test_a_zero_matrix_and_a_zero_gradient_have_a_factor_of_one():
    zero, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    LARS([zero, still], 0.5).step()
    torch.testing.assert_close(zero.detach(), torch.full((2, 2), -0.5))
    assert torch.equal(still.detach(), torch.ones(2, 2))


def test_agrees_with_lightly():
    # Theirs uses |g| + weight_decay * |p| for the length of g + weight_decay * p, adds 1e-8, and
    # scales every parameter with weight decay. Both are equal if gradient and parameter have the
    # same direction, so this case is compared; vectors have no weight decay.
    matrix, vector = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    ours = [nn.Parameter(matrix.clone()), nn.Parameter(vector.clone())]
    theirs = [nn.Parameter(matrix.clone()), nn.Parameter(vector.clone())]
    optimizer = LARS(ours, 0.2, weight_decay=0.01)
    peer = lightly.utils.lars.LARS(
        [{"params": theirs[:1], "weight_decay": 0.01}, {"params": theirs[1:]}], lr=0.2, momentum=0.9
    )
    for step in range(5):
        for params in (ours, theirs):
            params[0].grad = (step + 1.0) * params[0].detach()
            params[1].grad = torch.full_like(params[1], step - 2.0)
        optimizer.step()
        peer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=0)


def test_state_dict_round_trip_is_exact():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    x = torch.randn(16, 4)

    def train(module, optimizer, num_steps):
        for _ in range(num_steps):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

    optimizer = LARS(module.parameters(), 0.1, weight_decay=1e-3)
    train(module, optimizer, 3)
    resumed = copy.deepcopy(module)
    other = LARS(resumed.parameters(), 7.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(module, optimizer, 3)
    train(resumed, other, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), resumed.parameters(), strict=True)
    )
    for a, b in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(a["mu"], b["mu"])


def test_closure_and_mistakes():
    p = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([p], 0.1)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4
    assert (p < 1).all()
    for knob in (
        {"lr": -1.0},
        {"lr": 1.0, "momentum": -0.1},
        {"lr": math.nan},
        {"lr": 1.0, "weight_decay": -1.0},
    ):
        with pytest.raises(ValueError, match="0 or more"):
            LARS([p], **knob)


def test_half_precision_and_mixed_types():
    params = [
        nn.Parameter(torch.randn(3, 2, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float32, torch.float64)
    ]
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.randn_like(p)
    LARS(params, 10.0).step()
    for p, b in zip(params, before, strict=True):
        assert p.isfinite().all()
        assert not torch.equal(p, b)
