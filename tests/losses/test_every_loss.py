"""Check all losses: types, autocast, extremes, mistakes, and modules that wrap functions."""

import inspect

import pytest
import torch

from smi import losses
from support.two_views import TWO_VIEWS

every_loss = pytest.mark.parametrize("loss", TWO_VIEWS.values(), ids=TWO_VIEWS)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(loss, dtype, views):
    zs = views(8, 40, dtype=dtype)
    terms = loss(*zs)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert terms.total.dtype == wide
    assert terms.total.ndim == 0
    torch.testing.assert_close(sum(terms.values()), terms.total)
    terms.total.backward()
    assert zs[1].grad.dtype == dtype
    exact = [
        z.detach().double().requires_grad_() for z in zs
    ]  # what the half precision inputs stand for
    expected = loss(*exact).total
    expected.backward()
    assert terms.total.item() == pytest.approx(expected.item(), rel=1e-5, abs=5e-6)
    torch.testing.assert_close(
        zs[1].grad.double(), exact[1].grad, rtol=2e-2 if dtype.itemsize == 2 else 1e-3, atol=1e-3
    )


@every_loss
@pytest.mark.parametrize("k", [40, 5])
def test_float32_island_inside_autocast(loss, k, views):
    zs = views(8, k, dtype=torch.float32)
    expected = loss(*zs).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = loss(*zs).total
        grads = torch.autograd.grad(
            got, zs, allow_unused=True
        )  # also when backward is called in there
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        grads, torch.autograd.grad(expected, zs, allow_unused=True), rtol=1e-6, atol=1e-7
    )


def cases():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 16, generator=generator)
    other = torch.randn(6, 16, generator=generator)
    wide = torch.randn(6, 16, generator=generator) * torch.logspace(-20, 20, 16)
    yield "1e-20", 1e-20 * z, 1e-20 * other
    yield "1e20", 1e20 * z, 1e20 * other
    yield "apart", 1e-20 * z, 1e20 * other
    yield "coordinates from 1e-20 to 1e20", wide, wide.flip(1)
    yield "rows from 1e-20 to 1e20", (wide.T[:6].contiguous() @ torch.ones(6, 16)) + 0 * z, wide
    yield "offset", 1e20 + 1e19 * z, -1e20 + other
    yield "zeros", 0 * z, 0 * other
    yield "one zero row", z * torch.tensor([1.0, 1, 0, 1, 1, 1])[:, None], other
    yield "one zero column", z * (torch.arange(16) > 0), other
    yield "constant", 0 * z + 0.1, 0 * other - 1e20
    yield "equal rows", z[:1].expand(6, 16), z[:1].expand(6, 16)
    yield "equal views", z, z.clone()
    yield "opposite views", z, -z
    yield "one sample", z[:1], other[:1]
    yield "two equal samples", z[:1].expand(2, 16), other[:1].expand(2, 16)
    yield "one coordinate", z[:, :1], other[:, :1]
    yield "one of both", z[:1, :1], other[:1, :1]
    yield "more samples than coordinates", z.T, other.T


@every_loss
@pytest.mark.parametrize(
    ("z1", "z2"), [case[1:] for case in cases()], ids=[case[0] for case in cases()]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_whatever_the_input(loss, z1, z2, dtype):
    zs = [z.detach().clone().to(dtype).requires_grad_() for z in (z1, z2)]
    terms = loss(*zs)
    assert terms.total.isfinite()
    assert all(term.isfinite() for term in terms.values())
    grads = torch.autograd.grad(terms.total, zs, allow_unused=True)
    assert all(grad.isfinite().all() for grad in grads if grad is not None)


@pytest.mark.parametrize("shape", [(6, 16), (6, 5), (40, 16)])
@pytest.mark.parametrize("name", [n for n in TWO_VIEWS if n not in ("barlow_twins", "vicreg")])
def test_finite_up_to_the_largest_number(name, shape):
    """Sums, differences and quotients of such numbers overflow."""
    generator = torch.Generator().manual_seed(0)
    largest = torch.finfo(torch.float32).max
    zs = [largest * (2 * torch.rand(shape, generator=generator) - 1) for _ in range(2)]
    zs[0][2] = zs[0][2].abs()
    zs = [z.requires_grad_() for z in zs]
    total = TWO_VIEWS[name](*zs).total
    grads = torch.autograd.grad(total, zs, allow_unused=True)
    assert total.isfinite()
    assert all(grad.isfinite().all() for grad in grads if grad is not None)
    if name not in ("swav", "dino"):  # these depend on the scale
        small = [2.0**-64 * z.detach() for z in zs]
        torch.testing.assert_close(total, TWO_VIEWS[name](*small).total)


@pytest.mark.parametrize("name", ["smi", "smi_plain", "nt_xent", "info_nce", "negative_cosine"])
@pytest.mark.parametrize("value", [0.0, 1e-35, 1e-40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_row_of_nothing_has_no_gradient(name, value, dtype, views):
    zs = [z.detach().to(dtype) for z in views(6, 16)]
    zs[0][2] = value
    zs = [z.requires_grad_() for z in zs]
    grads = torch.autograd.grad(TWO_VIEWS[name](*zs).total, zs)
    assert (grads[0][2] == 0).all()
    assert all(grad.isfinite().all() and grad.abs().max() < 1e3 for grad in grads)


def test_sinkhorn_stays_balanced_at_extreme_scores():
    scores = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)) * 1e38
    code = losses.sinkhorn(scores)
    assert code.isfinite().all()
    torch.testing.assert_close(code.sum(1), torch.ones(12))


@every_loss
def test_mistakes_are_sentences(loss):
    z = torch.randn(4, 8)
    for other, words in [
        (torch.randn(5, 8), "same shape"),
        (torch.randn(4, 7), "same shape"),
        (torch.randn(4, 8).long(), "floating point"),
        (torch.randn(4, 8).to_sparse(), "dense"),
        (torch.randn(4, 8, device="meta"), "one device"),
        (torch.randn(4), "samples, coordinates"),
        (torch.randn(4, 8, 1), "samples, coordinates"),
    ]:
        with pytest.raises(ValueError, match=words):
            loss(z, other)
    with pytest.raises(ValueError, match="empty"):
        loss(torch.randn(0, 8), torch.randn(0, 8))


@pytest.mark.parametrize("name", [name for name in losses.__all__ if name.endswith("Loss")])
def test_module_has_the_settings_and_defaults_of_its_function(name, views):
    module = getattr(losses, name)
    function = getattr(losses, inspect.getmodule(module).__name__.rsplit(".", 1)[1] + "_loss")
    settings = {
        p.name: p.default
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    parameters = inspect.signature(module).parameters.values() if "__init__" in vars(module) else []
    assert {p.name: p.default for p in parameters} == settings

    z1, z2 = views(4, 8)
    arguments = {
        "InfoNCELoss": (z1, z2, z1.detach().flip(0)),
        "SwAVLoss": ([z1, z2],),
        "DINOLoss": ([z1], [z1, z2], torch.zeros(8, dtype=torch.float64)),
    }.get(name, (z1, z2))
    changed = {
        setting: 2 if isinstance(default, int) else default * 1.5
        for setting, default in settings.items()
        if setting != "reduction"
    }
    for options in ({}, changed):
        expected = function(*arguments, **options).total
        torch.testing.assert_close(module(**options)(*arguments), expected)
    if changed:
        assert function(*arguments, **changed).total != function(*arguments).total
