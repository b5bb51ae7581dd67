"""A linear classifier on frozen features: multinomial logistic regression, solved to convergence. n rows, F coordinates, C classes.

result = linear_accuracy(train_h, train_labels, test_h, test_labels)    # chooses the strength of l2 on a part of the training rows
result.top1, result.protocol
classifier = fit_linear(train_h, train_labels, l2=1e-3)

The objective is mean cross-entropy + l2 / 2 |weights|², over features standardised by the training rows. It is smooth and convex, so it has
one answer whatever the path: no learning rate, no epochs, no seed. The path is L-BFGS with two things that spare passes over the features:

- Preconditioned by the features' covariance: at the start the Hessian is about covariance / C + l2 for each class, and its Cholesky factor
  costs as much as a few passes. Features have directions of very unlike variance, and without this they take some ten times as long.
- Logits are linear in the weights, so along a direction they are known after one product, and the step is found without further ones.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smi.errors import UserError
from smi.evaluation.accuracy import check, top_k
from smi.seeds import derive

GRID = (
    1e-1,
    1e-2,
    1e-3,
    1e-4,
    1e-5,
)  # strengths of l2, strongest first: each start is then the last answer
VALIDATION = 5  # one in five training rows judges the strengths
HISTORY = 10  # pairs that L-BFGS remembers
ROWS_PER_COORDINATE = (
    8  # that the covariance is estimated from: more would cost more passes than it spares
)
ROWS = 4096  # looked at together
FLATTEN = 0.25  # a step is taken when the slope along it has come down to this share
TRIES = 20
TOLERANCE, MAX_ITERATIONS = 3e-5, 500


@dataclass(frozen=True)
class LinearClassifier:
    """Scores are weight @ standardised features + bias. `gradient`: the largest entry of the objective's, where the fit stopped."""

    weight: Tensor  # [C, F]
    bias: Tensor  # [C]
    mean: Tensor  # [F], of the training features
    std: Tensor  # [F], 1 where a coordinate does not vary
    l2: float
    iterations: int
    gradient: float
    converged: bool

    def scores(self, features: Tensor) -> Tensor:
        """[n, C]; their softmax are the probabilities."""
        weight = (
            self.weight / self.std
        )  # [C, F]: the standardising is folded into the weights, so that features need no copy
        return features.to(weight) @ weight.T + (self.bias - weight @ self.mean)

    def predict(self, features: Tensor) -> Tensor:
        return self.scores(features).argmax(1)


@dataclass(frozen=True)
class LinearResult:
    """Accuracies between 0 and 1, and how the strength was chosen."""

    top1: float
    top5: float | None  # None with five classes or fewer
    l2: float
    validation: tuple[
        tuple[float, float], ...
    ]  # (l2, top-1 on the validation part) of each strength tried
    classifier: LinearClassifier
    num_train: int
    num_test: int

    @property
    def protocol(self) -> str:
        tried = len(self.validation)
        l2 = (
            f"l2 chosen as the strongest good one of {tried} on a fifth of them"
            if tried > 1
            else f"l2 = {self.l2:g}"
        )
        return (
            f"logistic regression on frozen, standardised features of {self.num_train:,} training images without augmentation, {l2}, "
            f"solved to convergence, on {self.num_test:,} images"
        )


def linear_accuracy(
    features: Tensor,
    labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    grid: Sequence[float] = GRID,
    num_classes: int | None = None,
    seed: int = 0,
) -> LinearResult:
    """Choose the strength, fit on all training rows, and only then look at the test rows."""
    num_classes = check(features, labels, test_features, test_labels, num_classes=num_classes)
    validation = choose_l2(features, labels, grid=grid, num_classes=num_classes, seed=seed)
    l2 = max(good_ones(validation, len(labels) // VALIDATION))  # weaker ones overfit
    classifier = fit_linear(features, labels, l2=l2, num_classes=num_classes)
    top1, top5 = top_k(classifier.scores(test_features), test_labels)
    return LinearResult(top1, top5, l2, validation, classifier, len(features), len(test_features))


def choose_l2(
    features: Tensor,
    labels: Tensor,
    *,
    grid: Sequence[float] = GRID,
    num_classes: int | None = None,
    seed: int = 0,
) -> tuple[tuple[float, float], ...]:
    """(strength, top-1) of each, fitted on four fifths of the rows of each class and judged on the rest. One strength is not judged."""
    num_classes = check(features, labels, num_classes=num_classes)
    if len(grid) == 0:
        raise UserError("there must be one strength of l2 or more to choose from")
    if len(grid) == 1:
        return ((grid[0], float("nan")),)
    kept, held_out = split(labels, seed)
    if len(held_out) == 0:
        raise UserError(
            f"{len(labels)} training rows are too few to choose a strength of l2 on a part of them: give one"
        )
    tried, start = [], None
    problem = _Problem(features[kept], labels[kept], num_classes)
    for l2 in sorted(grid, reverse=True):
        classifier, start = problem.solve(l2, start=start)
        tried.append((l2, top_k(classifier.scores(features[held_out]), labels[held_out])[0]))
    return tuple(tried)


def good_ones(tried: Sequence[tuple[float, float]], num_judges: int) -> list[float]:
    """Of (setting, accuracy) the settings within half a standard error of the best: a few hundred rows cannot tell those apart."""
    best = max(accuracy for _, accuracy in tried)
    margin = (best * (1 - best) / max(1, num_judges)) ** 0.5 / 2
    return [setting for setting, accuracy in tried if accuracy >= best - margin or len(tried) == 1]


def split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to judge by, the same shares of every class: int64 each, in order."""
    order = torch.randperm(
        len(labels), generator=torch.Generator().manual_seed(derive(seed, "validation"))
    ).to(labels.device)
    order = order[labels[order].argsort(stable=True)]  # by class, in random order within each
    held_out = torch.arange(len(labels), device=labels.device) % VALIDATION == VALIDATION // 2
    return order[~held_out].sort().values, order[held_out].sort().values


def fit_linear(
    features: Tensor,
    labels: Tensor,
    *,
    l2: float,
    num_classes: int | None = None,
    mean: Tensor | None = None,
    std: Tensor | None = None,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> LinearClassifier:
    """In float32, or float64 if the features are. Converged: no entry of the gradient is beyond the tolerance.

    mean, std [F]: what features are standardised by, where these rows are too few to say it.
    """
    num_classes = check(features, labels, num_classes=num_classes)
    return _Problem(features, labels, num_classes, mean, std).solve(
        l2, tolerance=tolerance, max_iterations=max_iterations
    )[0]


class _Problem:
    """Standardised features with a column of ones, so that the bias is one more weight, which l2 leaves alone. Logits lie as [C, n]:
    the softmax runs over long rows, and both products read the features row by row.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        num_classes: int,
        mean: Tensor | None = None,
        std: Tensor | None = None,
    ):
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        self.mean = features.mean(0) if mean is None else mean.to(features)
        self.x = features.new_ones(len(features), features.shape[1] + 1)
        torch.sub(features, self.mean, out=self.x[:, :-1])
        std = _root_mean_square(self.x[:, :-1]) if std is None else std.to(features)
        # What varies less than its mean can be rounded to does not vary.
        varies = std > 32 * torch.finfo(features.dtype).eps * self.mean.abs()
        self.std = torch.where(varies, std, 1)
        self.x[:, :-1] *= torch.where(varies, 1 / std, 0)
        self.target = self.x.new_zeros(num_classes, len(labels)).scatter_(
            0, labels[None], 1.0
        )  # [C, n]
        self.curvature = (
            (1 - 1 / num_classes) / num_classes if num_classes > 1 else 1.0
        )  # of the cross-entropy where all are as likely
        rows = self.x[:: max(1, len(self.x) // (ROWS_PER_COORDINATE * self.x.shape[1]))]
        self.covariance = rows.T @ rows / len(rows)  # [F + 1, F + 1]

    def solve(
        self,
        l2: float,
        *,
        start: Tensor | None = None,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> tuple[LinearClassifier, Tensor]:
        """The classifier, and its weights [C, F + 1] for another to start from."""
        if not 0 < l2 < float("inf"):
            raise UserError(
                f"the strength of l2 must be positive, not {l2}: without it separable classes have no answer"
            )
        x, n = self.x, len(self.x)
        decay = x.new_full((x.shape[1],), l2)
        decay[-1] = 0
        hessian = self.curvature * self.covariance
        hessian.diagonal().add_(
            decay + 1e-4 * self.curvature
        )  # the covariance of few rows has no inverse of its own
        factor = torch.linalg.cholesky(hessian)
        weight = x.new_zeros(len(self.target), x.shape[1]) if start is None else start  # [C, F + 1]
        logits = weight @ x.T  # [C, n]
        gradient = self._error(logits) @ x / n + decay * weight
        pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=HISTORY)
        iterations = 0
        while (largest := gradient.abs().max().item()) > tolerance and iterations < max_iterations:
            direction = _descend(gradient, pairs, factor)
            change = direction @ x.T  # [C, n]
            slope = _dot(gradient, direction).item()
            if slope >= 0:
                break  # no way down that this precision could tell from none
            step, error = self._search(slope, logits, change, weight, direction, decay)
            moved = step * direction
            weight, logits = weight + moved, logits.add_(change, alpha=step)
            before, gradient = gradient, error @ x / n + decay * weight
            bend = gradient - before
            if (product := _dot(moved, bend)) > 0:
                pairs.append((moved, bend, product))
            iterations += 1
        bias = (
            weight[:, -1] - weight[:, -1].mean()
        )  # the objective says nothing of what all classes share
        classifier = LinearClassifier(
            weight[:, :-1], bias, self.mean, self.std, l2, iterations, largest, largest <= tolerance
        )
        return classifier, weight

    def _error(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 0).sub_(self.target)

    def _search(
        self,
        first: float,
        logits: Tensor,
        change: Tensor,
        weight: Tensor,
        direction: Tensor,
        decay: Tensor,
    ) -> tuple[float, Tensor]:
        """The step at which the slope is nearly gone, and the errors there: Newton's method in one dimension, kept between brackets.

        Slopes rather than values, for near the end values differ by less than their rounding.
        """
        n = len(self.x)
        pull, stiffness = (
            _dot(weight * decay, direction).item(),
            _dot(direction * decay, direction).item(),
        )
        low, high, step = 0.0, float("inf"), 1.0
        for tries in range(1, TRIES + 1):
            probability = torch.softmax(torch.add(logits, change, alpha=step), 0)  # [C, n]
            error = probability - self.target
            slope = _dot(error, change).item() / n + pull + step * stiffness
            if abs(slope) <= FLATTEN * abs(first) or tries == TRIES:
                break
            low, high = (step, high) if slope < 0 else (low, step)
            weighted = probability.mul_(change)
            curvature = (
                _dot(weighted, change) - weighted.sum(0).square().sum()
            ).item() / n + stiffness
            step = step - slope / curvature if curvature > 0 else float("inf")
            if not low < step < high:
                step = (low + high) / 2 if high < float("inf") else 2 * low
        return step, error


def _descend(
    gradient: Tensor, pairs: Sequence[tuple[Tensor, Tensor, Tensor]], factor: Tensor
) -> Tensor:
    """L-BFGS's direction (Nocedal and Wright, algorithm 7.4) with the factor of a Hessian in place of a multiple of the identity."""
    q, shares = gradient.clone(), []
    for moved, bend, product in reversed(pairs):
        share = _dot(moved, q) / product
        q -= share * bend
        shares.append(share)
    r = torch.cholesky_solve(q.T, factor).T
    if pairs:
        _, bend, product = pairs[-1]
        r = r * (product / _dot(bend, torch.cholesky_solve(bend.T, factor).T))
    for (moved, bend, product), share in zip(pairs, reversed(shares), strict=True):
        r = r + (share - _dot(bend, r) / product) * moved
    return -r


def _root_mean_square(x: Tensor) -> Tensor:
    """Of each column, some rows at a time: fresh memory for all squares would take longer than the squares."""
    total = sum(
        (x[i : i + ROWS].square().sum(0) for i in range(0, len(x), ROWS)), x.new_zeros(x.shape[1])
    )
    return (total / len(x)).sqrt()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()  # by halves, so that float32 does not lose what torch.dot would
