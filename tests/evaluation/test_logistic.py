import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from smi.errors import UserError
from smi.evaluation import choose_l2, fit_linear, linear_accuracy
from smi.evaluation.features import new_rows
from smi.evaluation.logistic import L2_GRID, ROWS_PER_COORDINATE, hold_out


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
@pytest.mark.parametrize("classes", [2, 5])
def test_equals_scikit_learn(clusters, l2, classes):
    features, labels = clusters(300, 12, classes, spread=2.0)
    features = (features * torch.logspace(-3, 3, 12) + 7).double()
    ours = fit_linear(features, labels, l2=l2, tolerance=1e-9)
    assert ours.converged
    standardised = StandardScaler().fit_transform(features.numpy())
    # For two classes scikit-learn has one row of weights. Ours has two, half of it and its
    # negative, so the penalty is half as large.
    strength = l2 if classes > 2 else l2 / 2
    theirs = LogisticRegression(C=1 / (strength * len(features)), tol=1e-9, max_iter=5000).fit(
        standardised, labels.numpy()
    )
    np.testing.assert_allclose(
        torch.softmax(ours.scores(features), 1).numpy(),
        theirs.predict_proba(standardised),
        atol=1e-6,
    )
    if classes > 2:
        np.testing.assert_allclose(ours.weight.numpy(), theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(
            ours.bias.numpy(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("l2", L2_GRID)
def test_the_gradient_vanishes_at_the_solution(clusters, l2, dtype):
    """The reference gradient is computed by autograd on the objective."""
    features, labels = clusters(400, 20, 6, spread=3.0)
    fitted = fit_linear(features.to(dtype), labels, l2=l2)
    assert fitted.converged
    assert fitted.gradient <= 3e-5
    x = (features.double() - features.double().mean(0)) / features.double().std(0, unbiased=False)
    weight, bias = fitted.weight.double().requires_grad_(), fitted.bias.double().requires_grad_()
    loss = (
        torch.nn.functional.cross_entropy(x @ weight.T + bias, labels)
        + l2 / 2 * weight.square().sum()
    )
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert gradient.abs().max() < 4e-5


def test_features_of_different_variance_take_few_iterations(clusters):
    """Variances differ by a factor of ten thousand; without the covariance it takes hundreds."""
    features, labels = clusters(600, 40, 5, spread=3.0)
    mixed = (features * torch.logspace(0, -2, 40)) @ torch.linalg.qr(torch.randn(40, 40)).Q
    fitted = fit_linear(mixed, labels, l2=1e-4)
    assert fitted.converged
    assert fitted.iterations < 60


@settings(max_examples=40)
@given(
    n=st.integers(1, 40),
    f=st.integers(1, 60),
    classes=st.integers(1, 8),
    l2=st.sampled_from([1e-6, 1e-3, 1.0, 100.0]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_any_shape_is_finite_and_the_same_twice(n, f, classes, l2, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, f, generator=generator) * scale
    labels = torch.randint(classes, (n,), generator=generator)
    first, second = (fit_linear(features, labels, l2=l2, num_classes=classes) for _ in range(2))
    assert first.converged or first.gradient < 1e-3  # few hundred steps may not be enough at 1e-6
    assert first.weight.shape == (classes, f)
    assert first.scores(features).isfinite().all()
    assert torch.equal(first.weight, second.weight)


def test_constant_coordinates_and_repeated_ones(clusters):
    features, labels = clusters(200, 6, 3)
    plain = fit_linear(features, labels, l2=1e-2)
    with_constant = fit_linear(
        torch.cat([features, torch.full((200, 2), 1234.567)], 1), labels, l2=1e-2
    )
    assert torch.equal(with_constant.weight[:, -2:], torch.zeros(3, 2))
    torch.testing.assert_close(with_constant.weight[:, :-2], plain.weight, rtol=1e-2, atol=1e-3)
    assert fit_linear(torch.cat([features, features], 1), labels, l2=1e-2).converged


def test_separable_classes_have_a_solution(clusters):
    features, labels = clusters(100, 8, 3, spread=1e-3)
    fitted = fit_linear(features, labels, l2=1e-6)
    assert fitted.converged
    assert (fitted.predict(features) == labels).all()


def test_l2_is_chosen_on_training_rows_only(clusters):
    (features, labels), (test, truth) = (
        clusters(300, 60, 3, spread=4.0),
        clusters(200, 60, 3, spread=4.0, seed=1),
    )
    result = linear_accuracy(features, labels, test, truth)
    assert [strength for strength, _ in result.validation] == list(L2_GRID)
    assert result.validation == choose_l2(features, labels)
    assert result.validation == linear_accuracy(features, labels, test[:5], truth[:5]).validation
    assert (
        max(accuracy for _, accuracy in result.validation) - dict(result.validation)[result.l2]
        <= 0.5 * (0.25 / 60) ** 0.5
    )
    assert result.top1 == (result.classifier.predict(test) == truth).double().mean().item()
    assert result.top5 is None
    assert "300 training images" in result.protocol
    given = linear_accuracy(features, labels, test, truth, grid=[1e-2])
    assert given.l2 == 1e-2
    assert "l2 = 0.01," in given.protocol


def test_all_classes_are_in_both_parts_of_the_split(clusters):
    _, labels = clusters(200, 4, 7)
    kept, held_out = hold_out(labels, seed=3)
    assert sorted([*kept.tolist(), *held_out.tolist()]) == list(range(200))
    assert len(held_out) == 40
    counts = torch.bincount(labels[held_out], minlength=7) - torch.bincount(labels) / 5
    assert counts.abs().max() <= 1
    assert torch.equal(hold_out(labels, seed=3)[0], kept)
    assert not torch.equal(hold_out(labels, seed=4)[0], kept)


def test_mistakes_are_sentences(clusters):
    features, labels = clusters(30)
    for l2 in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="must be positive"):
            fit_linear(features, labels, l2=l2)
    with pytest.raises(UserError, match="not finite"):
        fit_linear(features.log(), labels, l2=1.0)
    with pytest.raises(UserError, match="coordinates"):
        linear_accuracy(features, labels, features[:, :3], labels)
    with pytest.raises(UserError, match="too few"):
        choose_l2(features[:2], labels[:2])
    with pytest.raises(UserError, match="at least one value"):
        choose_l2(features, labels, grid=())
    with pytest.raises(ValueError, match="int64"):
        fit_linear(features, labels[:3], l2=1.0)


def test_mapped_features_give_the_same_classifier(clusters, monkeypatch, tmp_path):
    """They are read in chunks, and no copy of them is made."""
    monkeypatch.setattr("smi.evaluation.features.MAX_SHARE_OF_MEMORY", 0.0)
    monkeypatch.setenv("SMI_CACHE", str(tmp_path))
    monkeypatch.setattr("smi.evaluation.logistic.ROWS_PER_CHUNK", 64)
    h, labels = clusters(2000, spread=3.0)
    test_h, test_labels = clusters(90, spread=3.0, seed=1)
    h = h * torch.logspace(-2, 2, 16) + 3
    test_h = test_h * torch.logspace(-2, 2, 16) + 3
    mapped = new_rows(len(h), h.shape[1:], h.dtype).copy_(h)
    held = linear_accuracy(h, labels, test_h, test_labels)
    longest = []
    index = torch.Tensor.__getitem__
    monkeypatch.setattr(
        torch.Tensor,
        "__getitem__",
        lambda tensor, rows: (
            longest.append(len(rows)) or index(tensor, rows)
            if tensor is mapped
            else index(tensor, rows)
        ),
    )
    found = linear_accuracy(mapped, labels, test_h, test_labels)
    assert max(longest) <= 2 * ROWS_PER_COORDINATE * 17  # rows that estimate the covariance
    assert (found.l2, found.validation) == (held.l2, held.validation)
    assert found.classifier.converged
    torch.testing.assert_close(
        found.classifier.scores(test_h), held.classifier.scores(test_h), rtol=1e-2, atol=1e-2
    )
    assert found.top1 == held.top1
