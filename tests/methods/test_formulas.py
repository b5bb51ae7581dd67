"""Methods against their papers' formulas, written out plainly."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from smi import losses
from smi.methods import Modalities, settings_of
from smi.methods.base import together
from smi.nn import Encoder
from smi.optim import cosine
from smi.seeds import derive
from support.tiny import batch, make, views


def heads(method, x):
    h = method.encoder(x)
    return h, method.projector(h)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("SMI", losses.smi_loss),
        ("BarlowTwins", losses.barlow_twins_loss),
        ("VICReg", losses.vicreg_loss),
        ("SimCLR", lambda z1, z2: losses.nt_xent_loss(z1, z2, temperature=0.5)),
    ],
)
def test_shared_networks_and_one_loss_of_the_projections(name, loss):
    method = make(name)
    x1, x2 = views(method, 6)
    out = method([x1, x2], batch(6))
    (h1, z1), (_, z2) = heads(method, x1), heads(method, x2)
    expected = loss(z1, z2)
    assert torch.equal(out.loss, expected.total)
    assert list(out.terms) == list(expected)
    assert torch.equal(out.h, h1)
    assert torch.equal(out.z1, z1)
    assert torch.equal(out.z2, z2)


def test_byol_is_two_squared_distances():
    method = make("BYOL")
    x1, x2 = views(method, 6)
    out = method([x1, x2], batch(6))
    expected = 0
    for x, other in ((x1, x2), (x2, x1)):
        p = method.predictor(method.projector(method.encoder(x)))
        target = method.teacher(other)
        assert not target.requires_grad
        expected += (
            (p / p.norm(dim=1, keepdim=True) - target / target.norm(dim=1, keepdim=True))
            .square()
            .sum(dim=1)
            .mean()
        )
    torch.testing.assert_close(out.loss, expected)


def test_simsiam_stops_the_gradient_of_the_target():
    method = make("SimSiam")
    x1, x2 = views(method, 6)
    (_, z1), (_, z2) = heads(method, x1), heads(method, x2)
    still1, still2 = z1.detach().clone(), z2.detach().clone()  # constants: no way for a gradient
    p1, p2 = method.predictor(z1), method.predictor(z2)
    expected = (
        -F.cosine_similarity(p1, still2).mean() / 2 - F.cosine_similarity(p2, still1).mean() / 2
    )
    gradient = torch.autograd.grad(expected, list(method.parameters()))
    out = method([x1, x2], batch(6))
    torch.testing.assert_close(out.loss, expected)
    assert not out.z2.requires_grad
    torch.testing.assert_close(torch.autograd.grad(out.loss, list(method.parameters())), gradient)


@pytest.mark.parametrize(("name", "temperature"), [("MoCo", 0.07), ("MoCoV2", 0.2)])
def test_moco_finds_the_key_in_the_queue_and_stores_it(name, temperature):
    method = make(name)
    x1, x2 = views(method, 6)
    start = method.queue.keys.clone()
    teacher = copy.deepcopy(method.teacher)
    out = method([x1, x2], batch(6))
    query = F.normalize(heads(method, x1)[1], dim=1)
    key = F.normalize(teacher(x2), dim=1)
    logits = torch.cat([(query * key).sum(1, keepdim=True), query @ start.T], dim=1) / temperature
    torch.testing.assert_close(out.loss, F.cross_entropy(logits, torch.zeros(6, dtype=torch.long)))
    assert torch.equal(method.queue.keys, start)
    method.after_step()
    torch.testing.assert_close(method.queue.keys, torch.cat([key, start[6:]]))
    assert method.queue.position == 6


@pytest.mark.parametrize(
    ("key_parts", "n", "parts"), [(8, 34, 4), (3, 34, 3), (1, 34, 1), (8, 15, 1)]
)
def test_mocos_sub_batches_have_their_own_statistics(key_parts, n, parts):
    """Queries pass in neighbouring rows, keys in rows of every sub-batch of the queries."""
    method = make("MoCoV2", key_parts=key_parts)
    x1, x2 = views(method, n)
    encoder, teacher = copy.deepcopy(method.encoder), copy.deepcopy(method.teacher)
    out = method([x1, x2], batch(n))
    h = torch.cat([encoder(rows) for rows in x1.tensor_split(parts)])
    assert torch.equal(out.h, h)
    rows_of_keys = [torch.arange(part, n, parts) for part in range(parts)]
    assert all(parts == 1 or len(rows) >= 8 for rows in rows_of_keys)
    keys = torch.empty_like(out.z2)
    for rows in rows_of_keys:
        keys[rows] = teacher(x2[rows])
    torch.testing.assert_close(out.z2, keys)
    for name, value in teacher.state_dict().items():  # the running statistics
        torch.testing.assert_close(method.teacher.state_dict()[name], value)
    if parts > 1:
        whole = make("MoCoV2", key_parts=1)([x1, x2], batch(n))
        assert not torch.allclose(whole.z2, keys)


def test_mocos_sub_batches_are_shared_between_devices(monkeypatch):
    method = make("MoCo")
    assert method._num_parts(256) == 8
    assert method._num_parts(7) == 1
    monkeypatch.setattr("smi.methods.moco.world_size", lambda: 4)
    assert method._num_parts(256) == 2
    monkeypatch.setattr("smi.methods.moco.world_size", lambda: 16)
    assert method._num_parts(256) == 1


def swav_codes(scores):
    """Sinkhorn-Knopp as the paper prints it."""
    q = torch.exp(scores.detach() / 0.05).T
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(dim=1, keepdim=True) / q.shape[0]
        q = q / q.sum(dim=0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


@pytest.mark.parametrize("epoch", [0, 1])
def test_swav_predicts_codes_balanced_with_the_queue(epoch):
    method = make("SwAV")
    method.epoch = epoch  # the queue is used from epoch 1 on
    x = views(method, 6)
    prototypes = F.normalize(method.prototypes.weight, dim=1)
    h = torch.cat([method.encoder(torch.cat(x[:2])), method.encoder(torch.cat(x[2:]))])
    z = F.normalize(method.projector(h), dim=1).chunk(5)
    expected = 0
    for v in range(2):
        queued = method.queues[v].keys @ prototypes.T if epoch else torch.empty(0, 10)
        code = swav_codes(torch.cat([z[v] @ prototypes.T, queued]))[:6]
        for w in range(5):
            if w != v:
                expected -= (code * F.log_softmax(z[w] @ prototypes.T / 0.1, dim=1)).sum(
                    dim=1
                ).mean() / 8
    torch.testing.assert_close(method(x, batch(6)).loss, expected)
    method.after_step()
    for v in range(2):
        torch.testing.assert_close(method.queues[v].keys[:6], z[v].detach())


@pytest.mark.parametrize(
    ("progress", "temperature"), [(0.0, 0.04), (0.05, 0.055), (0.1, 0.07), (0.9, 0.07)]
)
def test_dino_predicts_the_centred_and_sharpened_teacher(progress, temperature):
    """Use a weight-normalised last layer of length 1, as the paper does."""
    method = make("DINO")
    method.progress = progress
    method.center.mean = torch.randn(20) / 10
    x = views(method, 6)
    last = weight_norm(nn.Linear(6, 20, bias=False))
    last.parametrizations.weight.original0.data.fill_(1)
    last.parametrizations.weight.original1.data.copy_(method.last.weight)
    student = [
        last(F.normalize(z, dim=1))
        for z in method.projector(torch.cat(together(method.encoder, x))).chunk(5)
    ]
    with torch.no_grad():
        taught = [last(F.normalize(z, dim=1)) for z in method.teacher(torch.cat(x[:2])).chunk(2)]
    expected = 0
    for i, t in enumerate(taught):
        target = F.softmax((t - method.center.mean) / temperature, dim=1)
        expected -= (
            sum(
                (target * F.log_softmax(s / 0.1, dim=1)).sum(dim=1).mean()
                for j, s in enumerate(student)
                if i != j
            )
            / 8
        )
    torch.testing.assert_close(method(x, batch(6)).loss, expected)
    center = 0.9 * method.center.mean + 0.1 * torch.cat(taught).mean(dim=0)
    method.after_step()
    torch.testing.assert_close(method.center.mean, center)


def test_dino_teacher_includes_the_last_layer():
    method = make("DINO")
    start = method.teacher_last.network[0].weight.clone()
    method(views(method, 6), batch(6))
    with torch.no_grad():
        method.last.weight.add_(1)
    method.after_step()
    torch.testing.assert_close(method.teacher_last.network[0].weight, start + 0.004)


def test_pirl_finds_images_and_their_jigsaws_in_the_bank():
    method = make("PIRL", jigsaw_weight=0.25)
    given = batch(6)
    x, *patches = views(method, 6)
    entries = method.bank.entries.clone()
    z = F.normalize(method.projector(method.encoder(x)), dim=1)
    h = [method.encoder(torch.cat(patches))[6 * p : 6 * (p + 1)] for p in range(9)]
    joined = torch.cat([method.patch_projector(features) for features in h], dim=1)  # [N, 9 K]
    jigsaw = F.normalize(method.jigsaw_projector(joined), dim=1)
    generator = torch.Generator().manual_seed(derive(given.seed, "negatives"))
    negatives = method.bank.negatives(given.index, 30, generator=generator)
    expected = 0
    for weight, known in ((0.25, jigsaw), (0.75, z)):
        logits = (
            torch.cat(
                [(known * entries[given.index]).sum(1, keepdim=True), known @ negatives.T], dim=1
            )
            / 0.07
        )
        expected += weight * F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    torch.testing.assert_close(method([x, *patches], given).loss, expected)
    method.after_step()
    moved = F.normalize(0.5 * entries[given.index] + 0.5 * z.detach(), dim=1)
    torch.testing.assert_close(method.bank.entries, entries.index_copy(0, given.index, moved))


def test_pirl_draws_other_negatives_for_another_batch():
    method = make("PIRL").eval()
    x = views(method, 6)
    first = method(x, batch(6, seed=1)).loss
    assert torch.equal(method(x, batch(6, seed=1)).loss, first)
    again = batch(6, seed=1)
    object.__setattr__(again, "seed", 2)
    assert not torch.equal(method(x, again).loss, first)


def test_cosine_goes_from_start_to_end():
    assert cosine(0.996, 1.0, 0.0) == pytest.approx(0.996)
    assert cosine(0.996, 1.0, 0.5) == pytest.approx(0.998)
    assert cosine(0.996, 1.0, 1.0) == 1.0
    assert cosine(2.0, 0.0, 0.25) == pytest.approx(1 + math.cos(math.pi / 4))


def test_views_of_one_size_go_together():
    seen = []

    class Mean(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return x.mean(dim=(2, 3))

    x = [torch.randn(3, 3, size, size) for size in (8, 8, 5, 5, 5)]
    for outputs, view in zip(together(Mean(), x), x, strict=True):
        torch.testing.assert_close(outputs, view.mean(dim=(2, 3)))
    assert seen == [6, 9]


def test_heads_are_the_papers():
    """Widths as the papers print them; a method's own numbers are its defaults."""
    defaults = {
        name: {key: p.default for key, p in settings_of(type(make(name))).items()}
        for name in ("BarlowTwins", "BYOL", "SwAV", "DINO")
    }
    assert defaults["BarlowTwins"] == {
        "widths": (8192, 8192, 8192),
        "views": 2,
        "crops": 0,
        "redundancy_weight": 5.1e-3,
    }
    assert defaults["BYOL"] == {"widths": (4096, 256), "momentum": 0.996}
    assert defaults["SwAV"]["num_prototypes"] == 3000
    assert defaults["DINO"]["num_outputs"] == 65536
    assert [type(layer).__name__ for layer in make("SimSiam").projector] == [
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
        "BatchNorm1d",
    ]
    assert [type(layer).__name__ for layer in make("DINO", norm=False).projector] == [
        "Linear",
        "GELU",
        "Linear",
        "GELU",
        "Linear",
    ]
    assert [type(layer).__name__ for layer in make("MoCo").projector] == ["Linear"]


def encoders():
    return [Encoder(nn.Linear(size, 7), 7) for size in (5, 3, 4)]


def test_modalities_are_smi_between_encoders():
    model = Modalities(*encoders(), widths=(12, 6), redundancy_weight=0.02)
    inputs = [torch.randn(8, size) for size in (5, 3, 4)]
    out = model(*inputs)
    h = model.encode(*inputs)
    z = model.project(*h)
    torch.testing.assert_close(out.loss, losses.smi_loss(*z, redundancy_weight=0.02).total)
    assert torch.equal(out.h, h[0])
    assert torch.equal(out.z2, z[1])
    out.loss.backward()
    assert all(
        p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters() if p.ndim > 1
    )


def test_modalities_need_as_many_inputs_as_encoders():
    with pytest.raises(ValueError, match="two encoders"):
        Modalities(encoders()[0])
    with pytest.raises(ValueError, match="3 encoders"):
        Modalities(*encoders(), widths=(4,))(torch.randn(2, 5))
