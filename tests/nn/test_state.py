import pytest
import torch
import torch.nn.functional as F

from smi.losses import info_nce_loss
from smi.nn import Center, MemoryBank, Prototypes, Queue


def unit(z):
    return F.normalize(z, dim=1)


def test_queue_keeps_the_last_keys_first_in_first_out():
    queue = Queue(5, 3)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    a, b, c = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 3)
    for keys in (a, b, c):
        queue.push(keys)
    expected = unit(
        torch.stack([c[1], a[1], b[0], b[1], c[0]])
    )  # the sixth key came where the first was
    torch.testing.assert_close(queue.keys, expected)
    many = torch.randn(12, 3)
    queue.push(many)
    torch.testing.assert_close(queue.keys.sort(0).values, unit(many[-5:]).sort(0).values)


def test_queue_can_be_pushed_between_forward_and_backward():
    queue = Queue(5, 3)
    query = torch.randn(2, 3, requires_grad=True)
    key = torch.randn(2, 3)
    loss = info_nce_loss(query, key, queue.keys).total
    (expected,) = torch.autograd.grad(loss, query, retain_graph=True)
    queue.push(key)
    loss.backward()
    torch.testing.assert_close(query.grad, expected)


@pytest.mark.parametrize(
    "make", [lambda seed: Queue(5, 3, seed=seed), lambda seed: MemoryBank(5, 3, seed=seed)]
)
def test_start_depends_on_the_seed_alone(make):
    first = make(1).state_dict()
    torch.randn(3)
    for name, value in make(1).state_dict().items():
        assert torch.equal(value, first[name])
    assert any(not torch.equal(value, first[name]) for name, value in make(2).state_dict().items())


def test_state_round_trips():
    queue, bank, center = Queue(5, 3), MemoryBank(6, 3), Center(3)
    queue.push(torch.randn(2, 3))
    bank.update(torch.tensor([4, 0]), torch.randn(2, 3))
    center.update([torch.randn(2, 3)])
    for used, fresh in (
        (queue, Queue(5, 3, seed=9)),
        (bank, MemoryBank(6, 3, seed=9)),
        (center, Center(3)),
    ):
        fresh.load_state_dict(used.state_dict())
        for name, value in used.state_dict().items():
            assert torch.equal(value, fresh.state_dict()[name])
    more = torch.randn(2, 3)
    restored = Queue(5, 3)
    restored.load_state_dict(queue.state_dict())
    queue.push(more)
    restored.push(more)
    assert torch.equal(queue.keys, restored.keys)


def test_memory_bank_moves_the_entries_it_is_given():
    bank = MemoryBank(6, 3, momentum=0.75)
    before = bank.entries.clone()
    z = torch.randn(2, 3)
    bank.update(torch.tensor([4, 1]), z)
    torch.testing.assert_close(bank.entries[[4, 1]], unit(0.75 * before[[4, 1]] + 0.25 * unit(z)))
    assert torch.equal(bank.entries[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


def test_memory_bank_negatives_are_other_images():
    bank = MemoryBank(6, 3)
    index = torch.tensor([0, 2, 3])
    negatives = bank.negatives(index, 200, generator=torch.Generator().manual_seed(0))
    assert negatives.shape == (200, 3)
    matches = (negatives[:, None] == bank.entries).all(dim=2).nonzero()[:, 1]
    assert set(matches.tolist()) == {1, 4, 5}
    assert torch.equal(
        negatives, bank.negatives(index, 200, generator=torch.Generator().manual_seed(0))
    )
    assert bank.negatives(torch.tensor([5, 1, 0, 4, 2]), 9).unique(dim=0).shape == (1, 3)
    with pytest.raises(ValueError, match="no negatives"):
        bank.negatives(torch.arange(6), 3)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_state_at_any_scale(scale):
    z = torch.randn(3, 4)
    queue, bank, prototypes = Queue(3, 4), MemoryBank(3, 4, momentum=0.0), Prototypes(4, 2)
    queue.push(scale * z)
    bank.update(torch.arange(3), scale * z)
    torch.testing.assert_close(queue.keys, unit(z))
    torch.testing.assert_close(bank.entries, unit(z))
    torch.testing.assert_close(prototypes(scale * z), prototypes(z))


def test_mistakes_are_sentences():
    with pytest.raises(ValueError, match="list of tensors"):
        Center(4).update(torch.randn(6, 4))
    for make in (lambda: Center(4, momentum=3.0), lambda: MemoryBank(4, 2, momentum=-1.0)):
        with pytest.raises(ValueError, match="momentum"):
            make()


def test_center_is_a_moving_average():
    center = Center(3, momentum=0.8)
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    center.update([a, b])
    torch.testing.assert_close(center.mean, 0.2 * torch.cat([a, b]).mean(0))
    center.update([a])
    torch.testing.assert_close(center.mean, 0.8 * 0.2 * torch.cat([a, b]).mean(0) + 0.2 * a.mean(0))


def test_prototypes_give_cosines():
    prototypes = Prototypes(3, 4)
    z = torch.randn(2, 3)
    torch.testing.assert_close(
        prototypes(z), F.cosine_similarity(z[:, None], prototypes.weight[None], dim=2)
    )
    torch.testing.assert_close(prototypes(5 * z), prototypes(z))
