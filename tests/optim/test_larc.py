import copy
import math

import pytest
import torch
from torch import nn

from smi.optim import LARC

SHAPES = [(5, 3), (4, 3, 2, 2), (3,), (), (1, 1)]


def reference(p, g, mu, *, adapts, lr, weight_decay, momentum=0.9, eta=1e-3, eps=1e-8):
    """Compute one step with lists of floats: apex's LARC with clip=False around SGD."""
    param_norm, grad_norm = math.hypot(*p), math.hypot(*g)
    if adapts and param_norm != 0 and grad_norm != 0:
        factor = eta * param_norm / (grad_norm + param_norm * weight_decay + eps)
        g = [factor * (gi + weight_decay * pi) for gi, pi in zip(g, p, strict=True)]
    for i in range(len(p)):
        mu[i] = momentum * mu[i] + g[i]
        p[i] -= lr * mu[i]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("zero", [None, 0, 2])
@pytest.mark.parametrize("adapt_vectors", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_equals_its_definition(weight_decay, zero, adapt_vectors, together, monkeypatch):
    if together:  # as on a GPU: all of one kind at a time
        monkeypatch.setattr("smi.optim.lars._batches", by_kind)
    generator = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in SHAPES
    ]
    if zero is not None:
        params[zero].data.zero_()
    group = {"params": params, "adapt_vectors": adapt_vectors}
    optimizer = LARC([group], 4.8, weight_decay=weight_decay)
    plain = [p.detach().flatten().tolist() for p in params]
    mus = [[0.0] * p.numel() for p in params]
    for step in range(5):
        for i, p in enumerate(params):
            p.grad = torch.randn(SHAPES[i], generator=generator, dtype=torch.float64)
            if (step, i) == (1, 1):
                p.grad.zero_()
            if (step, i) == (2, 0):
                p.grad = None
                continue
            reference(
                plain[i],
                p.grad.flatten().tolist(),
                mus[i],
                adapts=p.ndim > 1 or adapt_vectors,
                lr=4.8,
                weight_decay=weight_decay,
            )
        optimizer.step()
        for p, expected in zip(params, plain, strict=True):
            torch.testing.assert_close(
                p.detach().flatten(),
                torch.tensor(expected, dtype=torch.float64),
                rtol=1e-12,
                atol=1e-14,
            )


def by_kind(params):
    having = [p for p in params if p.grad is not None]
    kinds = [[p for p in having if (p.ndim > 1) == kind] for kind in (True, False)]
    return [kind for kind in kinds if kind]


def test_a_step_does_not_wait_for_the_device():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():  # reading a value raises
        params = [nn.Parameter(torch.ones(3, 2, device="cuda")) for _ in range(2)]
        for p in params:
            p.grad = torch.ones_like(p)
        LARC([{"params": params, "adapt_vectors": True}], 0.1, weight_decay=1e-6).step()


def test_state_dict_round_trip_is_exact():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    x = torch.randn(16, 4)

    def train(module, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

    group = {"params": list(module.parameters()), "adapt_vectors": True}
    optimizer = LARC([group], 0.1, weight_decay=1e-3)
    train(module, optimizer)
    resumed = copy.deepcopy(module)
    other = LARC(resumed.parameters(), 7.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(module, optimizer)
    train(resumed, other)
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), resumed.parameters(), strict=True)
    )
