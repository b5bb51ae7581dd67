import pytest
import torch
from torch import nn

from smi.nn import Ema, mlp


def kinds(module):
    return [type(layer).__name__ for layer in module]


def test_mlp_is_the_projector_of_barlow_twins_by_default():
    head = mlp(6, 8, 8, 4)
    assert kinds(head) == [
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]
    assert [layer.bias for layer in head if isinstance(layer, nn.Linear)] == [None] * 3
    assert head(torch.randn(3, 6)).shape == (3, 4)


def test_one_layer_has_no_norm_and_no_activation():
    assert kinds(mlp(6, 4)) == ["Linear"]


def test_only_layers_without_a_norm_have_a_bias():
    def biases(head):
        return [layer.bias is not None for layer in head if isinstance(layer, nn.Linear)]

    assert biases(mlp(6, 8, 4, bias=True)) == [False, True]
    assert biases(mlp(6, 8, 4, bias=True, last_norm=True)) == [False, False]
    assert biases(mlp(6, 8, 4, bias=True, norm=False)) == [True, True]


def test_last_norm_has_no_scale_and_shift():
    head = mlp(6, 8, 4, last_norm=True)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert [norm.affine for norm in head if isinstance(norm, nn.BatchNorm1d)] == [True, False]
    z = head(torch.randn(50, 6))
    torch.testing.assert_close(z.mean(0), torch.zeros(4), atol=1e-5, rtol=0)


def test_activation_can_be_chosen():
    assert kinds(mlp(6, 8, 4, norm=False, activation=nn.GELU)) == ["Linear", "GELU", "Linear"]


def test_ema_starts_as_a_copy_without_gradient():
    encoder, head = nn.Linear(3, 5), mlp(5, 4, 2)
    ema = Ema(encoder, head).eval()
    x = torch.randn(4, 3, requires_grad=True)
    out = ema(x)
    torch.testing.assert_close(out, head.eval()(encoder(x)).detach())
    assert not out.requires_grad
    assert not any(parameter.requires_grad for parameter in ema.parameters())
    assert all(parameter.requires_grad for parameter in (*encoder.parameters(), *head.parameters()))
    assert not {p.data_ptr() for p in ema.parameters()} & {
        p.data_ptr() for p in (*encoder.parameters(), *head.parameters())
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_ema_moves_by_one_minus_momentum(momentum):
    module = mlp(3, 4, 2, bias=True)
    ema = Ema(module)
    before = [parameter.clone() for parameter in ema.parameters()]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn_like(parameter)
    ema.follow(module, momentum=momentum)
    for old, new, followed in zip(before, ema.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(new, momentum * old + (1 - momentum) * followed.detach())


def test_ema_has_statistics_of_its_own():
    module = mlp(3, 4, 2)
    ema = Ema(module)
    ema(torch.randn(5, 3) + 3)
    assert torch.equal(module[1].running_mean, torch.zeros(4))
    moved = ema.network[0][1].running_mean.clone()
    assert moved.abs().max() > 0
    ema.follow(module, momentum=0.5)
    assert torch.equal(ema.network[0][1].running_mean, moved)
