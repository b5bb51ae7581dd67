import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from smi.optim import clip_gradients


def test_each_gradient_is_clipped_on_its_own():
    long, short, none, double = (nn.Parameter(torch.zeros(2, 2)) for _ in range(4))
    double.data = double.data.double()
    long.grad, short.grad = torch.full((2, 2), 3.0), torch.full((2, 2), 0.5)
    double.grad = torch.full((2, 2), 5.0, dtype=torch.float64)
    clip_gradients([long, short, none, double], 3.0)
    torch.testing.assert_close(long.grad, torch.full((2, 2), 3 * 3 / (6 + 1e-6)))
    assert torch.equal(short.grad, torch.full((2, 2), 0.5))  # shorter gradients keep every bit
    assert none.grad is None
    torch.testing.assert_close(double.grad.norm().item(), 3 * 10 / (10 + 1e-6))


def test_a_gradient_of_zero_stays_zero():
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.zeros(3)
    clip_gradients([p], 1e-3)
    assert torch.equal(p.grad, torch.zeros(3))


def test_clipping_does_not_wait_for_the_device():
    with FakeTensorMode():  # reading a value raises
        p = nn.Parameter(torch.ones(3, device="cuda"))
        p.grad = torch.ones_like(p)
        clip_gradients([p], 3.0)
