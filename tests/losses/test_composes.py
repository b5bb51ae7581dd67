"""Compare every loss inside torch.func, torch.compile and torch.export with plain autograd."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

from smi import losses
from support.two_views import TWO_VIEWS

SHAPES = [(6, 16), (6, 5)]  # some losses multiply samples in one case and coordinates in the other
every_loss = pytest.mark.parametrize("loss", TWO_VIEWS.values(), ids=TWO_VIEWS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def total_of(loss):
    return lambda z1, z2: loss(z1, z2).total


def eager_gradients(loss, zs):
    zs = [z.detach().clone().requires_grad_() for z in zs]
    return torch.autograd.grad(loss(*zs).total, zs, materialize_grads=True)


def detached(zs):
    return [z.detach() for z in zs]


@every_loss
@every_shape
def test_grad(loss, shape, views):
    zs = detached(views(*shape))
    got = grad(total_of(loss), argnums=(0, 1))(*zs)
    torch.testing.assert_close(got, eager_gradients(loss, zs))


@every_loss
@every_shape
def test_grad_inside_autocast(loss, shape, views):
    zs = detached(views(*shape, dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = grad(total_of(loss), argnums=(0, 1))(*zs)
    torch.testing.assert_close(got, eager_gradients(loss, zs), rtol=1e-5, atol=1e-6)


@every_loss
@every_shape
def test_vmap(loss, shape, views):
    pairs = [detached(views(*shape)) for _ in range(3)]
    pairs = [[z * (1 + i) + i * z.flip(0) for z in zs] for i, zs in enumerate(pairs)]
    batches = [torch.stack(zs) for zs in zip(*pairs, strict=True)]
    terms = vmap(loss)(*batches)
    expected = [loss(*zs) for zs in pairs]
    torch.testing.assert_close(terms.total, torch.stack([one.total for one in expected]))
    for name in expected[0]:
        torch.testing.assert_close(terms[name], torch.stack([one[name] for one in expected]))
    got = vmap(grad(total_of(loss), argnums=(0, 1)))(*batches)
    gradients = zip(*[eager_gradients(loss, zs) for zs in pairs], strict=True)
    torch.testing.assert_close(got, tuple(map(torch.stack, gradients)))
    one_fixed = vmap(total_of(loss), in_dims=(0, None))(batches[0], pairs[0][1])
    torch.testing.assert_close(one_fixed[0], expected[0].total)


@every_loss
@every_shape
@pytest.mark.parametrize("kind", ["torch.func", "forward_ad"])
def test_jvp(loss, shape, kind, views):
    zs, tangents = detached(views(*shape)), detached(views(*shape))
    tangents = [tangent.flip(0) for tangent in tangents]
    if kind == "torch.func":
        value, slope = jvp(total_of(loss), tuple(zs), tuple(tangents))
    else:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(*pair) for pair in zip(zs, tangents, strict=True)]
            value, slope = forward_ad.unpack_dual(loss(*duals).total)
    torch.testing.assert_close(value, loss(*zs).total)
    gradients = eager_gradients(loss, zs)
    expected = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    torch.testing.assert_close(slope, expected)


@every_loss
@every_shape
def test_tangent_of_one_view(loss, shape, views):
    z1, z2 = detached(views(*shape))
    _, slope = jvp(lambda z: loss(z1, z).total, (z2,), (z2.flip(0),))
    torch.testing.assert_close(slope, (eager_gradients(loss, (z1, z2))[1] * z2.flip(0)).sum())


@every_loss
@pytest.mark.parametrize("shape", [(3, 8), (4, 3)], ids=str)
def test_hessian(loss, shape, views):
    """Forward mode over reverse mode, under vmap."""
    z1, z2 = detached(views(*shape))
    got = hessian(lambda z: loss(z1, z).total)(z2)
    expected = torch.autograd.functional.hessian(lambda z: loss(z1, z).total, z2)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


@every_loss
@every_shape
def test_batched_gradients(loss, shape, views):
    zs = views(*shape)
    factors = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    got = torch.autograd.grad(
        loss(*zs).total, zs, factors, is_grads_batched=True, allow_unused=True
    )
    for batch, gradient in zip(got, eager_gradients(loss, zs), strict=True):
        if batch is not None:
            torch.testing.assert_close(batch, factors[:, None, None] * gradient)


@every_loss
@every_shape
@pytest.mark.no_cover  # which slows Dynamo down
def test_compile_is_one_graph_with_gradients(loss, shape, views):
    torch.compiler.reset()
    zs = views(*shape)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    terms, expected = compiled(*zs), loss(*zs)
    torch.testing.assert_close(terms.total, expected.total)
    torch.testing.assert_close(dict(terms), dict(expected))
    got = torch.autograd.grad(terms.total, zs, materialize_grads=True)
    torch.testing.assert_close(got, eager_gradients(loss, zs))


@every_loss
@pytest.mark.no_cover
def test_compile_a_gradient_function(loss, views):
    torch.compiler.reset()
    zs = detached(views(6, 16))
    compiled = torch.compile(grad(total_of(loss)), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*zs), eager_gradients(loss, zs)[0])


class Total(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, z1, z2):
        return self.loss(z1, z2).total


@every_loss
@every_shape
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.no_cover
def test_export(loss, shape, strict, views):
    zs = detached(views(*shape))
    program = torch.export.export(Total(loss), tuple(zs), strict=strict)
    torch.testing.assert_close(program.module()(*zs), loss(*zs).total)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.no_cover
def test_export_for_any_number_of_samples(reduction, views):
    batch = torch.export.Dim("batch", min=2)
    loss = losses.SMILoss(reduction=reduction)
    zs = tuple(detached(views(6, 16)))
    program = torch.export.export(loss, zs, dynamic_shapes=[({0: batch}, {0: batch})])
    for num_samples in (2, 9):
        others = detached(views(num_samples, 16))
        torch.testing.assert_close(program.module()(*others), loss(*others))
