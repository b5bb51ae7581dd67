"""Compare SMI with its formulas, with autograd, and with itself by mathematical identities."""

import functools
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import smi
from smi.losses import numerics, smi_loss, smi_loss_plain
from smi.losses import smi as module
from smi.losses.numerics import halves_products, symmetric_product
from smi.losses.smi import is_whole, tile_size


def reference(views, redundancy_weight=0.01, target=1.0, shift=0.06, eps=1e-6):
    """Compute the published formulas, one entry at a time, with numpy's correlations."""
    zs = [z.detach().double().numpy() for z in views]
    n = len(zs[0])

    def dependency(a, b):
        rho = np.corrcoef(a, b)[0, 1]
        return -0.5 * math.log(1 - rho**2 + eps)

    alignment = sum(
        math.log(math.cosh(dependency(a[i], b[i]) - target))
        for a, b in combinations(zs, 2)
        for i in range(n)
    )
    pairs = [*combinations(zs, 2), *((z, z) for z in zs)]
    redundancy = sum(
        math.log(math.cosh(dependency(a[i], b[j]) + shift))
        for a, b in pairs
        for i in range(n)
        for j in range(n)
        if i != j
    )
    return alignment, redundancy_weight * redundancy


@pytest.mark.parametrize("loss", [smi_loss, smi_loss_plain])
@pytest.mark.parametrize("number", [2, 3, 4])
def test_formulas_entry_by_entry(loss, number, views):
    zs = views(6, 9, number)
    options = {"redundancy_weight": 0.3, "target": 0.8, "shift": 0.1, "eps": 1e-4}
    for kwargs in ({}, options):
        terms = loss(*zs, **kwargs)
        alignment, redundancy = reference(zs, **kwargs)
        assert terms.alignment.item() == pytest.approx(alignment, rel=1e-9)
        assert terms.redundancy.item() == pytest.approx(redundancy, rel=1e-9)
        assert terms.total.item() == pytest.approx(alignment + redundancy, rel=1e-9)
        assert dict(terms).keys() == {"alignment", "redundancy"}


@pytest.mark.parametrize("tile", [1024, 4, 5])  # one tile, tiles that divide N, tiles that do not
@pytest.mark.parametrize(("n", "k"), [(12, 64), (12, 7), (5, 3)])  # slopes kept, and not
@pytest.mark.parametrize("number", [2, 3])
def test_fused_equals_plain(n, k, number, tile, views, monkeypatch):
    monkeypatch.setattr(module, "TILE_SIZE", tile)
    zs = views(n, k, number)
    fused, plain = smi_loss(*zs, redundancy_weight=0.2), smi_loss_plain(*zs, redundancy_weight=0.2)
    for name in ("alignment", "redundancy", "total"):
        torch.testing.assert_close(
            getattr(fused, name), getattr(plain, name), rtol=1e-10, atol=1e-12
        )
    grads = torch.autograd.grad(3 * fused.total, zs), torch.autograd.grad(3 * plain.total, zs)
    for got, expected in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("n", "k"), [(100, 1000), (100, 30), (300, 30)])
@pytest.mark.parametrize("tile", [1024, 64])
def test_the_paths_of_devices_agree(n, k, tile, views, monkeypatch):
    """A GPU takes one product where a CPU takes many, and larger tiles."""
    zs = views(n, k)
    results = []
    for device_type in ("cpu", "cuda"):
        chosen = functools.partial(is_whole, device_type=device_type)
        monkeypatch.setattr(
            module, "is_whole", lambda rows, dim, _, chosen=chosen: chosen(rows, dim)
        )
        monkeypatch.setattr(module, "tile_size", lambda _, t=device_type: tile_size(t))
        monkeypatch.setattr(module, "GPU_TILE_SIZE", 4 * tile)
        monkeypatch.setattr(module, "TILE_SIZE", tile)
        monkeypatch.setattr(
            numerics, "halves_products", lambda _, t=device_type: halves_products(t)
        )
        total = smi_loss(*zs).total
        results.append((total.detach(), *torch.autograd.grad(total, zs)))
    torch.testing.assert_close(*results)


def test_a_gpu_takes_the_whole_matrix_while_it_is_small():
    assert not is_whole(512, 256, "cpu")
    assert is_whole(512, 1024, "cpu")
    for device_type in ("cuda", "mps"):
        assert is_whole(512, 256, device_type)
        assert is_whole(4096, 256, device_type)
        assert not is_whole(4097, 256, device_type)  # memory does not grow with N^2
        assert not halves_products(device_type)
        assert tile_size(device_type) > tile_size("cpu")
    assert halves_products("cpu")


class Kernels(TorchDispatchMode):
    """Count operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_gpu_gets_few_kernels():
    """The matrix of 2 x 512 rows is one product, not a recursion."""
    counts = {}
    for device in ("cpu", "cuda"):
        with FakeTensorMode(), Kernels() as kernels:
            z = torch.empty(1024, 2048, device=device)
            symmetric_product(z)
        counts[device] = kernels.count
    assert counts["cuda"] <= 3 + 1  # the empty tensor, a view and a product
    assert counts["cpu"] > 20


def test_gradcheck_and_double_backward(views):
    zs = views(4, 6)
    assert torch.autograd.gradcheck(lambda *z: smi_loss(*z).total, zs)
    assert torch.autograd.gradgradcheck(lambda *z: smi_loss(*z).total, zs)
    zs = views(3, 5, 3)
    assert torch.autograd.gradcheck(lambda *z: smi_loss(*z, reduction="mean").total, zs)


def test_gradient_of_one_term_alone(views):
    zs = views(5, 8)
    for name in ("alignment", "redundancy"):
        got = torch.autograd.grad(smi_loss(*zs)[name], zs)
        expected = torch.autograd.grad(smi_loss_plain(*zs)[name], zs)
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-12)
    mixed = smi_loss(*zs)
    got = torch.autograd.grad(mixed.total + 2 * mixed.alignment, zs)
    plain = smi_loss_plain(*zs)
    torch.testing.assert_close(
        got, torch.autograd.grad(plain.total + 2 * plain.alignment, zs), rtol=1e-8, atol=1e-12
    )


def test_retained_graph_gives_the_same_gradient_again(views):
    zs = views(5, 8)
    total = smi_loss(*zs).total
    first = torch.autograd.grad(2 * total, zs, retain_graph=True)
    second = torch.autograd.grad(2 * total, zs)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("create_graph", [False, True])
def test_views_that_depend_on_each_other(create_graph, views):
    """Use a tensor twice, or a view made from another: gradients are counted once."""
    z, noise = views(5, 8)
    for make in (lambda z: (z, z, noise), lambda z: (z, 2 * z + noise + z**2)):
        (got,) = torch.autograd.grad(smi_loss(*make(z)).total, z, create_graph=create_graph)
        (expected,) = torch.autograd.grad(smi_loss_plain(*make(z)).total, z)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", [(64, 32), (8, 64)])  # tiles, and the whole matrix
def test_every_kind_of_gradient_inside_autocast(shape, views):
    zs = views(*shape, dtype=torch.float32)
    expected = torch.autograd.grad(smi_loss(*zs).total, zs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in expected), zs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = smi_loss(*zs).total
        for _ in range(3):
            got = torch.autograd.grad(total, zs, retain_graph=True)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
        twice = torch.autograd.grad(total, zs, create_graph=True)
        got = torch.autograd.grad(sum(g.square().sum() for g in twice), zs)
    torch.testing.assert_close(got, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [smi_loss, smi_loss_plain])
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
@pytest.mark.parametrize("k", [8, 64])
def test_nan_and_infinity_are_not_hidden(loss, what, k, views):
    z1, z2 = views(6, k)
    with torch.no_grad():
        z1[2, 3] = what
    assert loss(z1, z2).total.isnan()


def test_only_views_that_require_it_get_a_gradient(views):
    z1, z2 = views(5, 8)
    expected = torch.autograd.grad(smi_loss(z1, z2).total, z1)[0]
    smi_loss(z1, z2.detach()).total.backward()
    torch.testing.assert_close(z1.grad, expected)
    with torch.no_grad():
        assert not smi_loss(z1, z2).total.requires_grad


def test_float32_value_and_gradient_are_close_to_float64(views):
    zs = views(64, 512)
    expected = smi_loss_plain(*zs).total
    expected_grads = torch.autograd.grad(expected, zs)
    for loss in (smi_loss, smi_loss_plain):
        small = [z.detach().float().requires_grad_() for z in zs]
        got = loss(*small).total
        assert got.dtype == torch.float32
        assert got.item() == pytest.approx(expected.item(), rel=1e-6)
        for g, e in zip(torch.autograd.grad(got, small), expected_grads, strict=True):
            assert ((g - e).norm() / e.norm()).item() < 1e-5


def test_the_derivative_the_paper_prints():
    rho = torch.linspace(-0.99, 0.99, 41, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(module.dependency(rho).sum(), rho)
    torch.testing.assert_close(slope, (rho / (1 - rho**2 + 1e-6)).detach())


@settings(max_examples=40)
@given(
    n=st.integers(1, 9),
    k=st.integers(1, 40),
    number=st.integers(2, 4),
    log_scale=st.integers(-20, 20),
    offset=st.sampled_from([0.0, 1.0, -30.0]),
    seed=st.integers(0, 2**20),
)
def test_identities(n, k, number, log_scale, offset, seed):
    """Change scales, offsets and the order of samples, coordinates or views: the loss stays."""
    generator = torch.Generator().manual_seed(seed)
    zs = [torch.randn(n, k, generator=generator, dtype=torch.float64) for _ in range(number)]
    assert smi_loss(*zs).total.isfinite()
    assume(k > 2)  # correlations of two coordinates are -1 or 1, where rounding decides
    expected = smi_loss(*zs, redundancy_weight=0.5).total
    scale = 10.0**log_scale
    variants = [
        [scale * (z + offset) for z in zs],
        [-z for z in zs],  # the dependency is even: anti-correlated pairs count as aligned
        [z[torch.randperm(n, generator=torch.Generator().manual_seed(seed))] for z in zs],
        [z[:, torch.randperm(k, generator=torch.Generator().manual_seed(seed))] for z in zs],
        zs[::-1],
    ]
    for variant in variants:
        torch.testing.assert_close(
            smi_loss(*variant, redundancy_weight=0.5).total, expected, rtol=1e-6, atol=1e-9
        )
    torch.testing.assert_close(
        n * smi_loss(*zs, redundancy_weight=0.5, reduction="mean").total, expected
    )


def test_one_pair_anti_correlated_scores_as_aligned(views):
    z1, z2 = views(5, 16)
    torch.testing.assert_close(smi_loss(z1, -z2).total, smi_loss(z1, z2).total)


def test_gradient_is_orthogonal_to_offset_and_scale(views):
    """Check that moving a row along itself or a constant vector does not change the loss."""
    zs = views(7, 12)
    for z, grad in zip(zs, torch.autograd.grad(smi_loss(*zs).total, zs), strict=True):
        torch.testing.assert_close(
            grad.sum(dim=1), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-12
        )
        torch.testing.assert_close(
            (grad * z).sum(dim=1), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3, 1e20, 1e-25])
@pytest.mark.parametrize("loss", [smi_loss, smi_loss_plain])
def test_a_row_without_variance_has_correlation_0_and_no_gradient(loss, constant, views):
    z1, z2 = views(6, 50, dtype=torch.float32)
    with torch.no_grad():
        z1[2] = constant
    terms = loss(z1, z2)
    terms.total.backward()
    assert terms.total.isfinite()
    assert (z1.grad[2] == 0).all()
    assert z1.grad.isfinite().all()
    assert z2.grad.isfinite().all()
    rest = [z[[0, 1, 3, 4, 5]] for z in (z1, z2)]
    at_zero = math.log(math.cosh(-0.5 * math.log(1 + 1e-6) - 1))
    assert terms.alignment.item() == pytest.approx(loss(*rest).alignment.item() + at_zero, rel=1e-5)


@pytest.mark.parametrize("loss", [smi_loss, smi_loss_plain])
def test_one_sample_has_no_redundancy(loss, views):
    zs = views(1, 8)
    terms = loss(*zs)
    assert terms.redundancy == 0
    assert terms.alignment.item() == pytest.approx(reference(zs)[0])


@pytest.mark.parametrize("loss", [smi_loss, smi_loss_plain])
def test_perfect_correlation_is_finite(loss):
    z = torch.randn(8, 32)
    for other in (z.clone(), -z, 3 * z + 1, z[:1].expand(8, 32).clone()):
        pair = [z.clone().requires_grad_(), other.requires_grad_()]
        terms = loss(*pair)
        grads = torch.autograd.grad(terms.total, pair)
        assert terms.total.isfinite()
        assert all(grad.isfinite().all() for grad in grads)
    pair = [z[:1].expand(8, 32).clone().requires_grad_() for _ in range(2)]  # all rows the same
    terms = loss(*pair)
    assert terms.alignment.item() == pytest.approx(
        8 * math.log(math.cosh(-0.5 * math.log(1e-6) - 1)), rel=0.1
    )
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(terms.total, pair))


@pytest.mark.parametrize("loss", [smi_loss, smi_loss_plain])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_an_automatic_weight_depends_on_the_batch(loss, n, views):
    zs = views(n, 8)
    auto = loss(*zs, redundancy_weight="auto")
    assert auto == loss(*zs, redundancy_weight=7 / max(1, n - 1))
    torch.testing.assert_close(smi.SMILoss(redundancy_weight="auto")(*zs), auto.total)


def test_an_automatic_weight_balances_batches_of_any_size(views):
    """Redundancy per sample hardly changes with the number of samples."""
    ratios = []
    for n in (16, 64, 256):
        terms = smi_loss(*views(n, 64), redundancy_weight="auto")
        ratios.append(terms.redundancy.item() / terms.alignment.item())
    assert max(ratios) < 1.2 * min(ratios)


def test_module_is_the_function(views):
    zs = views(5, 8, 3)
    options = {
        "redundancy_weight": 0.1,
        "target": 0.5,
        "shift": 0.2,
        "eps": 1e-3,
        "reduction": "mean",
    }
    torch.testing.assert_close(smi.SMILoss(**options)(*zs), smi_loss(*zs, **options).total)
    torch.testing.assert_close(smi.SMILoss()(*zs[:2]), smi_loss(*zs[:2]).total)
    assert "redundancy_weight=0.01" in repr(smi.SMILoss())


def test_mistakes_are_sentences(views):
    z1, z2 = views(4, 8)
    for call in (lambda: smi_loss(z1), lambda: smi_loss_plain(z1), lambda: smi.SMILoss()(z1)):
        with pytest.raises(ValueError, match="two views or more"):
            call()
    for options, words in [
        ({"reduction": "none"}, "reduction"),
        ({"eps": 0.0}, "eps"),
        ({"target": float("nan")}, "target"),
        ({"shift": 100.0}, "shift"),
        ({"redundancy_weight": float("inf")}, "redundancy_weight"),
        ({"redundancy_weight": "automatic"}, "redundancy_weight"),
        ({"redundancy_weight": -0.01}, "redundancy_weight"),
    ]:
        for call in (
            lambda options=options: smi_loss(z1, z2, **options),
            lambda options=options: smi.SMILoss(**options),
        ):
            with pytest.raises(ValueError, match=words):
                call()
    with pytest.raises(AttributeError, match="alignment, redundancy"):
        _ = smi_loss(z1, z2).aligment


@pytest.mark.no_cover  # which slows Dynamo down
def test_inside_torch_compile_it_is_one_graph(views):
    given, results = views(6, 8, 3), []
    for function in (smi_loss, torch.compile(smi_loss, backend="eager", fullgraph=True)):
        zs = [z.detach().clone().requires_grad_() for z in given]
        terms = function(*zs)
        terms.total.backward()
        results.append(([terms.total, terms.alignment], [z.grad for z in zs]))
    torch.testing.assert_close(*results)
