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
# PyTorch's own warning.
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
# SMI is its plain form there, so one of the two is enough.
READ = {name: loss for name, loss in TWO_VIEWS.items() if name != "smi_plain"}
every_read_loss = pytest.mark.parametrize("loss", READ.values(), ids=READ)
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


@forward_mode
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


@forward_mode
@every_loss
@every_shape
def test_tangent_of_one_view(loss, shape, views):
    z1, z2 = detached(views(*shape))
    _, slope = jvp(lambda z: loss(z1, z).total, (z2,), (z2.flip(0),))
    torch.testing.assert_close(slope, (eager_gradients(loss, (z1, z2))[1] * z2.flip(0)).sum())


@forward_mode
@every_loss
@pytest.mark.parametrize("shape", [(3, 8), (4, 3)], ids=str)
def test_hessian(loss, shape, views):
    """Forward mode over reverse mode, under vmap."""
    z1, z2 = detached(views(*shape))
    got = hessian(lambda z: loss(z1, z).total)(z2)
    expected = torch.autograd.functional.hessian(lambda z: loss(z1, z).total, z2)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, (6, 16)) for name in READ), ("barlow_twins", (6, 5)), ("vicreg", (6, 5))],
)
@pytest.mark.no_cover  # which slows Dynamo down
def test_compile_is_one_graph_with_gradients(name, shape, views):
    torch.compiler.reset()
    loss = TWO_VIEWS[name]
    zs = views(*shape)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    terms, expected = compiled(*zs), loss(*zs)
    torch.testing.assert_close(terms.total, expected.total)
    torch.testing.assert_close(dict(terms), dict(expected))
    got = torch.autograd.grad(terms.total, zs, materialize_grads=True)
    torch.testing.assert_close(got, eager_gradients(loss, zs))


@pytest.mark.parametrize("name", ["smi", "nt_xent"])
@pytest.mark.no_cover
def test_compile_a_gradient_function(name, views):
    torch.compiler.reset()
    loss = TWO_VIEWS[name]
    zs = detached(views(6, 16))
    compiled = torch.compile(grad(total_of(loss)), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*zs), eager_gradients(loss, zs)[0])


class Total(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, z1, z2):
        return self.loss(z1, z2).total


@every_read_loss
def test_export(loss, views):
    zs = detached(views(6, 16))
    program = torch.export.export(Total(loss), tuple(zs))
    torch.testing.assert_close(program.module()(*zs), loss(*zs).total)


@every_read_loss
def test_export_for_any_number_of_samples(loss, views):
    batch = torch.export.Dim("batch", min=3)  # N x N - N entries off the diagonal have two axes
    zs = tuple(detached(views(6, 5)))
    program = torch.export.export(Total(loss), zs, dynamic_shapes=({0: batch}, {0: batch}))
    for num_samples in (3, 9):
        others = detached(views(num_samples, 5))
        torch.testing.assert_close(program.module()(*others), loss(*others).total)


@pytest.mark.no_cover
@pytest.mark.parametrize("strict", [False, True])
def test_export_of_the_module(strict, views):
    batch = torch.export.Dim("batch", min=3)
    loss = losses.SMILoss(reduction="mean", redundancy_weight="auto")
    shapes = [({0: batch}, {0: batch})]
    zs = tuple(detached(views(6, 16)))
    program = torch.export.export(loss, zs, dynamic_shapes=shapes, strict=strict)
    others = detached(views(9, 16))
    torch.testing.assert_close(program.module()(*others), loss(*others))
