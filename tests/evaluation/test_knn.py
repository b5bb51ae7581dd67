import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.utils.benchmarking import knn_predict as lightly_knn

from smi.errors import UserError
from smi.evaluation import knn_accuracy, knn_predict, knn_votes
from smi.evaluation.knn import NearestRows, nearest


def reference(bank, labels, queries, k, temperature, num_classes):
    """Vote row by row in float64, after a full sort."""
    bank, queries = F.normalize(bank.double()), F.normalize(queries.double())
    votes = torch.zeros(len(queries), num_classes, dtype=torch.float64)
    for i, query in enumerate(queries):
        similarity = bank @ query
        for j in similarity.argsort(descending=True)[:k].tolist():
            votes[i, labels[j]] += ((similarity[j] - 1) / temperature).exp()
    return votes / votes.sum(1, keepdim=True)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (200, 0.1), (500, 1.0)])
def test_equals_a_plain_reference(clusters, k, temperature):
    (bank, labels), (queries, truth) = clusters(500, spread=2.0), clusters(60, spread=2.0, seed=1)
    expected = reference(bank, labels, queries, k, temperature, 4)
    votes = knn_votes(bank, labels, queries, k=k, temperature=temperature, num_classes=4)
    torch.testing.assert_close(votes, expected.float(), rtol=1e-3, atol=1e-5)
    result = knn_accuracy(bank, labels, queries, truth, k=k, temperature=temperature)
    assert result.top1 == pytest.approx((expected.argmax(1) == truth).double().mean().item())
    assert result.top5 is None


@pytest.mark.parametrize(("k", "temperature"), [(20, 0.07), (200, 0.1)])
def test_equals_lightly(clusters, k, temperature):
    (bank, labels), (queries, truth) = (
        clusters(900, 32, 12, spread=2.0),
        clusters(100, 32, 12, spread=2.0, seed=1),
    )
    theirs = lightly_knn(F.normalize(queries), F.normalize(bank).T, labels, 12, k, temperature)
    assert torch.equal(
        knn_predict(bank, labels, queries, k=k, temperature=temperature), theirs[:, 0]
    )
    result = knn_accuracy(bank, labels, queries, truth, k=k, temperature=temperature)
    assert result.top1 == pytest.approx((theirs[:, 0] == truth).double().mean().item())
    assert result.top5 == pytest.approx(
        (theirs[:, :5] == truth[:, None]).any(1).double().mean().item()
    )


@settings(max_examples=60)
@given(
    n=st.integers(1, 70),
    m=st.integers(1, 9),
    f=st.integers(1, 6),
    k=st.integers(1, 90),
    classes=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_any_shape(n, m, f, k, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    bank, queries = torch.randn(n, f, generator=generator), torch.randn(m, f, generator=generator)
    labels = torch.randint(classes, (n,), generator=generator)
    votes = knn_votes(bank, labels, queries, k=k, num_classes=classes)
    torch.testing.assert_close(votes.sum(1), torch.ones(m))
    similarity, index = nearest(bank, queries, k)
    assert index.shape == (m, min(k, n))
    assert all(len(set(row)) == len(row) for row in index.tolist())
    exact = F.normalize(queries.double()) @ F.normalize(bank.double()).T
    torch.testing.assert_close(
        similarity.double(), exact.topk(min(k, n)).values, rtol=1e-5, atol=1e-5
    )


def test_tiles_change_nothing(clusters, monkeypatch):
    (bank, labels), (queries, _) = clusters(700, spread=2.0), clusters(50, spread=2.0, seed=1)
    whole = knn_votes(bank, labels, queries, num_classes=4)
    monkeypatch.setattr("smi.evaluation.knn.QUERIES_PER_TILE", 7)
    monkeypatch.setattr("smi.evaluation.knn.ROWS_PER_TILE", 333)
    torch.testing.assert_close(
        knn_votes(bank, labels, queries, num_classes=4), whole, rtol=1e-4, atol=1e-6
    )


def test_the_bank_is_read_once_and_never_copied_whole(clusters, monkeypatch):
    """A bank that is larger than memory is read tile by tile."""
    monkeypatch.setattr("smi.evaluation.knn.QUERIES_PER_TILE", 10)
    monkeypatch.setattr("smi.evaluation.knn.ROWS_PER_TILE", 100)
    bank, queries = clusters(700, spread=2.0)[0], clusters(50, spread=2.0, seed=1)[0]
    expected = nearest(bank, queries, 5)
    largest, tiles = 0, []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            nonlocal largest
            found = super().__torch_function__(func, types, args, kwargs or {})
            if func is torch.Tensor.__getitem__:
                tiles.append(args[1])
                return found.as_subclass(torch.Tensor)
            largest = max(largest, found.numel() if isinstance(found, torch.Tensor) else 0)
            return found

    found = nearest(bank.as_subclass(Watched), queries, 5)
    assert all(map(torch.equal, found, expected))
    assert tiles == [slice(start, start + 100) for start in range(0, 700, 100)]
    assert largest == 0  # nothing else was computed from the bank


def test_stable_search_keeps_the_order_of_ties_across_tiles():
    best = NearestRows(2, stable=True)
    best.add(torch.tensor([[0.5, 0.7]]), torch.tensor([[0, 1]]))
    best.add(torch.tensor([[0.7, 0.7, 0.5]]), torch.tensor([[2, 3, 4]]))
    assert best.index.tolist() == [[1, 2]]


def test_k_is_limited_to_the_size_of_the_bank(clusters):
    bank, labels = clusters(30)
    result = knn_accuracy(bank, labels, bank, labels, k=200)
    assert result.k == 30
    assert "the 30 nearest of 30 training images" in result.protocol


def test_ties_rows_of_zeros_and_a_single_class():
    bank = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert knn_predict(bank, torch.tensor([2, 1, 0]), torch.tensor([[3.0, 0.0]]), k=2).tolist() == [
        1
    ]
    assert knn_predict(bank, torch.tensor([2, 2, 0]), torch.zeros(1, 2), k=3).tolist() == [2]
    assert (
        knn_accuracy(
            bank, torch.zeros(3, dtype=torch.long), bank, torch.zeros(3, dtype=torch.long)
        ).top1
        == 1.0
    )


def test_low_temperatures_and_large_scales_do_not_overflow(clusters):
    (bank, labels), (queries, _) = clusters(50), clusters(10, seed=1)
    sharp = knn_votes(bank * 1e30, labels, queries * 1e-30, k=5, temperature=1e-4, num_classes=4)
    torch.testing.assert_close(sharp.argmax(1), knn_predict(bank, labels, queries, k=1))


def test_mistakes_are_sentences(clusters):
    bank, labels = clusters(30)
    with pytest.raises(UserError, match="not finite"):
        knn_accuracy(bank * float("nan"), labels, bank, labels)
    with pytest.raises(UserError, match="16 coordinates and those to classify 8"):
        knn_predict(bank, labels, bank[:, :8])
    with pytest.raises(UserError, match="numbered from 0"):
        knn_accuracy(bank, labels, bank, labels + 1)
    for wrong in ({"k": 0}, {"temperature": 0.0}):
        with pytest.raises(UserError):
            knn_predict(bank, labels, bank, **wrong)
