"""Compare the other losses with float64 references, gradcheck and lightly."""

import lightly.loss
import pytest
import torch
import torch.nn.functional as F

from smi import losses

SHAPES = [
    (6, 5),
    (5, 24),
    (12, 24),
    (13, 24),
]  # more samples than coordinates, few, half as many, and just more than half


def barlow_twins(z1, z2, weight=5.1e-3):
    def standardize(z):
        return (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt()

    c = standardize(z1).T @ standardize(z2) / len(z1)
    eye = torch.eye(len(c), dtype=torch.bool)
    return (1 - c[eye]).square().sum() + weight * c[~eye].square().sum()


def vicreg(z1, z2):
    total = 25 * (z1 - z2).square().mean()
    for z in (z1, z2):
        cov = torch.cov(z.T)
        total = total + 25 / 2 * F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
        total = total + cov[~torch.eye(len(cov), dtype=torch.bool)].square().sum() / len(cov)
    return total


def nt_xent(z1, z2, temperature=0.5):
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    n = len(z1)
    total = 0
    for i in range(2 * n):
        others = torch.stack([z[i] @ z[j] / temperature for j in range(2 * n) if j != i])
        total = total - z[i] @ z[(i + n) % (2 * n)] / temperature + others.logsumexp(0)
    return total / (2 * n)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("loss", "reference", "peer"),
    [
        (losses.barlow_twins_loss, barlow_twins, lightly.loss.BarlowTwinsLoss(lambda_param=5.1e-3)),
        (losses.vicreg_loss, vicreg, lightly.loss.VICRegLoss()),
        (losses.nt_xent_loss, nt_xent, lightly.loss.NTXentLoss()),
        (
            losses.negative_cosine_loss,
            lambda p, z: -F.cosine_similarity(p, z).mean(),
            lightly.loss.NegativeCosineSimilarity(),
        ),
    ],
    ids=["barlow_twins", "vicreg", "nt_xent", "negative_cosine"],
)
def test_two_view_losses(loss, reference, peer, shape, views):
    zs = views(*shape)
    assert torch.autograd.gradcheck(lambda *z: loss(*z).total, zs)
    got = loss(*zs).total
    grads = torch.autograd.grad(got, zs)
    for oracle in (reference, peer):
        expected = oracle(*zs)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(grads, torch.autograd.grad(expected, zs), rtol=1e-7, atol=1e-10)
    small = [z.detach().float().requires_grad_() for z in zs]
    assert loss(*small).total.item() == pytest.approx(peer(*small).item(), rel=1e-5)


@pytest.mark.parametrize(
    "loss", [losses.barlow_twins_loss, losses.vicreg_loss, losses.nt_xent_loss]
)
@pytest.mark.parametrize("shape", [(5, 24), (6, 5)])
def test_double_backward(loss, shape, views):
    assert torch.autograd.gradgradcheck(lambda *z: loss(*z).total, views(*shape))


def test_float32_sum_of_squares_from_samples_is_as_good_as_from_coordinates(views):
    """Vary the correlation of views from perfect to none, also with far more coordinates than N."""
    z1, z2 = views(64, 1024)
    for mix in (0.0, 0.1, 1.0):
        a, b = z1.detach(), torch.lerp(z1, z2, mix).detach()
        for loss, reference in (
            (losses.barlow_twins_loss, barlow_twins),
            (losses.vicreg_loss, vicreg),
        ):
            assert loss(a.float(), b.float()).total.item() == pytest.approx(
                reference(a, b).item(), rel=1e-5
            )


@pytest.mark.parametrize("num_heavy", [1, 2, 15, 40])
@pytest.mark.parametrize("factor", [10.0, 1e3])
def test_vicreg_covariance_of_few_coordinates_with_most_variance(num_heavy, factor, views):
    """Use embeddings of which the squared variances are nearly all of the squares."""
    zs = views(32, 256)
    with torch.no_grad():
        for z in zs:
            z[:, :num_heavy] *= factor
    small = [z.detach().float().requires_grad_() for z in zs]
    expected, got = losses.vicreg_loss(*zs), losses.vicreg_loss(*small)
    assert expected.total.item() == pytest.approx(vicreg(*zs).item(), rel=1e-9)
    assert got.covariance.item() == pytest.approx(expected.covariance.item(), rel=1e-5)
    for g, e in zip(
        torch.autograd.grad(got.covariance, small),
        torch.autograd.grad(expected.covariance, zs),
        strict=True,
    ):
        assert ((g - e).norm() / e.norm()).item() < 1e-4
    alone = torch.zeros(8, 32)
    alone[:, 0] = 100 * torch.randn(8)
    assert losses.vicreg_loss(alone, alone).covariance == 0


def test_nt_xent_of_one_sample_is_zero(views):
    assert losses.nt_xent_loss(*views(1, 8)).total.abs() < 1e-12


def test_info_nce_is_cross_entropy_over_key_and_negatives(views):
    query, key = views(5, 8)
    negatives = torch.randn(7, 8, dtype=torch.float64, requires_grad=True)

    def reference(query, key, negatives):
        query, key, negatives = (F.normalize(z, dim=1) for z in (query, key, negatives))
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ negatives.T], dim=1) / 0.07
        return F.cross_entropy(logits, torch.zeros(5, dtype=torch.long))

    inputs = (query, key, negatives)
    got, expected = losses.info_nce_loss(*inputs).total, reference(*inputs)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs), torch.autograd.grad(expected, inputs)
    )
    assert torch.autograd.gradcheck(lambda *z: losses.info_nce_loss(*z).total, inputs)
    with pytest.raises(ValueError, match="same number of coordinates"):
        losses.info_nce_loss(query, key, negatives[:, :4])


def test_info_nce_agrees_with_lightly_memory_bank():
    peer = lightly.loss.NTXentLoss(temperature=0.07, memory_bank_size=(16, 8))
    for _ in range(3):  # fill the bank
        peer(torch.randn(8, 8, requires_grad=True), torch.randn(8, 8))
    query, key = torch.randn(5, 8), torch.randn(5, 8)
    negatives = peer.memory_bank.bank.clone()
    expected = peer(query, key)
    assert losses.info_nce_loss(query, key, negatives).total.item() == pytest.approx(
        expected.item(), rel=1e-5
    )


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("num_small", [0, 3])
def test_swav_agrees_with_lightly(num_small, queue):
    full = [torch.rand(6, 10, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    small = [torch.rand(6, 10, dtype=torch.float64, requires_grad=True) for _ in range(num_small)]
    queued = [torch.rand(4, 10, dtype=torch.float64) for _ in range(2)] if queue else []
    got = losses.swav_loss(full, small, queued).total
    expected = lightly.loss.SwaVLoss()(full, small, queued or None)[0]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(got, full + small), torch.autograd.grad(expected, full + small)
    )


def test_sinkhorn_balances():
    scores = torch.rand(64, 8, dtype=torch.float64)
    code = losses.sinkhorn(scores, num_iterations=200)
    torch.testing.assert_close(
        code.sum(1), torch.ones(64, dtype=torch.float64)
    )  # each sample is assigned once
    torch.testing.assert_close(
        code.sum(0), torch.full((8,), 8.0, dtype=torch.float64)
    )  # and each prototype is used equally
    extreme = losses.sinkhorn(torch.tensor([[1e20, -1e20], [1.0, 0.0], [0.0, 1e20]]))
    assert extreme.isfinite().all()
    with pytest.raises(ValueError, match="iteration"):
        losses.sinkhorn(scores, num_iterations=0)


@pytest.mark.parametrize("num_small", [0, 2])
def test_dino_agrees_with_lightly(num_small):
    teacher = [torch.randn(6, 10, dtype=torch.float64) for _ in range(2)]
    student = [
        torch.randn(6, 10, dtype=torch.float64, requires_grad=True) for _ in range(2 + num_small)
    ]
    peer = lightly.loss.DINOLoss(output_dim=10).double()
    peer.center += torch.randn(10, dtype=torch.float64)
    center = peer.center.flatten().clone()
    got, expected = losses.dino_loss(teacher, student, center).total, peer(teacher, student)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got, student), torch.autograd.grad(expected, student)
    )


def test_views_missing_and_bad_temperatures_are_sentences():
    z = torch.randn(3, 4)
    for call, words in [
        (lambda: losses.swav_loss([z]), "SwAV needs"),
        (lambda: losses.swav_loss([], [z, z]), "SwAV needs"),
        (lambda: losses.swav_loss([z, z], queued=[z]), "queued"),
        (lambda: losses.dino_loss([z], [z], z[0]), "DINO needs"),
        (lambda: losses.dino_loss([z], [z, z], z[0, :2]), "same number of coordinates"),
        (lambda: losses.nt_xent_loss(z, z, temperature=0), "temperature"),
        (lambda: losses.info_nce_loss(z, z, z, temperature=float("nan")), "temperature"),
        (lambda: losses.nt_xent_loss(z, z, temperature=1e-42), "temperature"),
        (lambda: losses.sinkhorn(z, epsilon=-1), "epsilon"),
        (lambda: losses.vicreg_loss(z, z, eps=0), "eps"),
        (lambda: losses.vicreg_loss(z, z, variance_weight=float("nan")), "variance_weight"),
        (lambda: losses.vicreg_loss(z, z, covariance_weight=-1.0), "covariance_weight"),
        (
            lambda: losses.barlow_twins_loss(z, z, redundancy_weight=float("inf")),
            "redundancy_weight",
        ),
        (lambda: losses.barlow_twins_loss(z, z, redundancy_weight=-1e-3), "redundancy_weight"),
        (lambda: losses.swav_loss(z), "list of tensors"),
        (lambda: losses.dino_loss(z, [z, z], z[0]), "list of tensors"),
        (lambda: losses.dino_loss([z], [z, z], z[0].reshape(2, 2)), "one row"),
        (lambda: losses.dino_loss([z], [z, z], z[0], teacher_temperature=0), "temperature"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
