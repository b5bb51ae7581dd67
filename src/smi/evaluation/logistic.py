"""Fit a linear classifier on frozen features: multinomial logistic regression to convergence.

result = linear_accuracy(train_h, train_labels, test_h, test_labels)    # also chooses l2
result.top1, result.protocol
classifier = fit_linear(train_h, train_labels, l2=1e-3)

The objective is mean cross-entropy + l2 / 2 |weights|², over features standardised by the training
rows. It is smooth and convex, so it has one solution: no learning rate, no epochs, no seed. The
solver is L-BFGS with two changes that save passes over the features:

- It is preconditioned by the covariance of the features. At the start the Hessian is about
  covariance / C + l2 for each class, and its Cholesky factor costs as much as a few passes. The
  variances of feature directions differ widely; without this, a fit takes about ten times as long.
- Logits are linear in the weights, so one product gives them along a whole direction, and the line
  search needs no further products.

n rows, F coordinates, C classes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smi.errors import UserError
from smi.evaluation.accuracy import check_features, top_k
from smi.evaluation.features import is_mapped
from smi.seeds import derive

L2_GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # strongest first: each solution starts the next fit
NUM_FOLDS = 5  # one fold of the training rows is held out to choose hyperparameters
NUM_PAIRS = 10  # steps and gradient changes that L-BFGS remembers
ROWS_PER_COORDINATE = 8  # rows to estimate the covariance: more would cost more than they save
ROWS_PER_CHUNK = 4096  # rows to square at a time, or to read of mapped features
SLOPE_REDUCTION = 0.25  # the line search stops when the slope has fallen to this share
MAX_LINE_STEPS = 20
TOLERANCE = 3e-5
MAX_ITERATIONS = 500
DAMPING = 1e-4  # added to the Hessian: the covariance of few rows is singular


@dataclass(frozen=True)
class LinearClassifier:
    """Score classes by weight @ standardised features + bias."""

    weight: Tensor  # [C, F]
    bias: Tensor  # [C]
    mean: Tensor  # [F], of the training features
    std: Tensor  # [F], 1 where a coordinate does not vary
    l2: float
    iterations: int
    gradient: float  # largest entry of the objective's gradient where the fit stopped
    converged: bool

    def scores(self, features: Tensor) -> Tensor:
        """Return the logits [n, C]."""
        # Standardisation is folded into the weights, so that features are not copied.
        weight = self.weight / self.std  # [C, F]
        return features.to(weight) @ weight.T + (self.bias - weight @ self.mean)

    def predict(self, features: Tensor) -> Tensor:
        """Return the most probable class of each row, int64 [n]."""
        return self.scores(features).argmax(1)


@dataclass(frozen=True)
class LinearResult:
    """Hold accuracies between 0 and 1, and how l2 was chosen."""

    top1: float
    top5: float | None  # None with five classes or fewer
    l2: float
    validation: tuple[tuple[float, float], ...]  # (l2, top-1 on the validation part) of each l2
    classifier: LinearClassifier
    num_train: int
    num_test: int

    @property
    def protocol(self) -> str:
        """Describe the protocol in one phrase."""
        num_tried = len(self.validation)
        l2 = (
            f"l2 chosen as the strongest of {num_tried} within half a standard error of the best "
            "on a held-out fifth"
            if num_tried > 1
            else f"l2 = {self.l2:g}"
        )
        return (
            f"logistic regression on frozen, standardised features of {self.num_train:,} training "
            f"images without augmentation, {l2}, solved to convergence, on {self.num_test:,} images"
        )


def linear_accuracy(
    features: Tensor,
    labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    grid: Sequence[float] = L2_GRID,
    num_classes: int | None = None,
    seed: int = 0,
) -> LinearResult:
    """Choose l2 on training rows, fit on all of them, then measure accuracy on the test rows."""
    num_classes = check_features(
        features, labels, test_features, test_labels, num_classes=num_classes
    )
    validation = choose_l2(features, labels, grid=grid, num_classes=num_classes, seed=seed)
    l2 = max(nearly_best(validation, len(labels) // NUM_FOLDS))  # weaker ones overfit
    classifier = fit_linear(features, labels, l2=l2, num_classes=num_classes)
    top1, top5 = top_k(classifier.scores(test_features), test_labels)
    return LinearResult(top1, top5, l2, validation, classifier, len(features), len(test_features))


def choose_l2(
    features: Tensor,
    labels: Tensor,
    *,
    grid: Sequence[float] = L2_GRID,
    num_classes: int | None = None,
    seed: int = 0,
) -> tuple[tuple[float, float], ...]:
    """Return (l2, top-1) of each l2 in the grid, on a held-out fifth of the rows of each class.

    A grid with one value is not tried: its accuracy is NaN.
    """
    num_classes = check_features(features, labels, num_classes=num_classes)
    if len(grid) == 0:
        raise UserError("there must be at least one value of l2 to choose from")
    if len(grid) == 1:
        return ((grid[0], float("nan")),)
    fitted, held_out = hold_out(labels, seed)
    if len(held_out) == 0:
        raise UserError(
            f"{len(labels)} training rows are too few to choose l2 on a part of them: give one l2"
        )
    tried = []
    problem = _Problem(features, labels[fitted], num_classes, rows=fitted)
    for classifier in problem.solve_each(grid):
        scores = torch.cat([classifier.scores(h) for h in blocks_of(features, held_out)])
        tried.append((classifier.l2, top_k(scores, labels[held_out])[0]))
    return tuple(tried)


def blocks_of(features: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Yield the features of some rows: all of them at once, or in chunks if they are mapped."""
    for chunk in torch.split(rows, ROWS_PER_CHUNK if is_mapped(features) else max(1, len(rows))):
        yield features[chunk]


def nearly_best(tried: Sequence[tuple[float, float]], num_rows: int) -> list[float]:
    """Return the settings with an accuracy within half a standard error of the best.

    tried: (setting, accuracy) pairs, each measured on `num_rows` rows, which cannot distinguish
    smaller differences.
    """
    best = max(accuracy for _, accuracy in tried)
    margin = (best * (1 - best) / max(1, num_rows)) ** 0.5 / 2
    return [setting for setting, accuracy in tried if accuracy >= best - margin or len(tried) == 1]


def hold_out(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Split rows into those to fit on and a held-out fifth of each class: sorted int64 each."""
    order = torch.randperm(
        len(labels), generator=torch.Generator().manual_seed(derive(seed, "validation"))
    ).to(labels.device)
    order = order[labels[order].argsort(stable=True)]  # by class, in random order within each
    held_out = torch.arange(len(labels), device=labels.device) % NUM_FOLDS == NUM_FOLDS // 2
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
    """Fit in float32, or in float64 if the features are, until the gradient is below `tolerance`.

    mean, std [F]: statistics to standardise by; None takes those of these rows.
    """
    num_classes = check_features(features, labels, num_classes=num_classes)
    return _Problem(features, labels, num_classes, mean, std).solve(
        l2, tolerance=tolerance, max_iterations=max_iterations
    )[0]


def fit_each(
    features: Tensor,
    labels: Tensor,
    *,
    grid: Sequence[float] = L2_GRID,
    num_classes: int | None = None,
) -> Iterator[LinearClassifier]:
    """Yield the classifier of each l2 in the grid, the strongest l2 first."""
    num_classes = check_features(features, labels, num_classes=num_classes)
    return _Problem(features, labels, num_classes).solve_each(grid)


class _Problem:
    """Hold standardised features with a column of ones, and solve for one value of l2 at a time.

    The bias is the weight of the column of ones, which l2 does not shrink. Logits are stored as
    [C, n]: the softmax runs over long rows, and both products read the features row by row.
    Features that are mapped from a file are not copied: each pass standardises them chunk by chunk.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        num_classes: int,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        rows: Tensor | None = None,
    ):
        """Standardise by mean and std [F], or by those of the features. rows: those to fit on."""
        if rows is None:
            rows = torch.arange(len(features), device=features.device)
        elif not is_mapped(features):
            features, rows = features[rows], torch.arange(len(rows), device=features.device)
        self._features = features.to(torch.promote_types(features.dtype, torch.float32))
        self._rows = rows
        self._whole: Tensor | None = None  # [n, F + 1], unless the features are mapped
        self._standardise(mean, std)
        self.target = self.mean.new_zeros(num_classes, len(labels))  # [C, n]
        self.target.scatter_(0, labels[None], 1.0)
        # of the cross-entropy where all classes are equally likely
        self.curvature = (1 - 1 / num_classes) / num_classes if num_classes > 1 else 1.0
        dim = self._features.shape[1] + 1
        some = slice(None, None, max(1, len(rows) // (ROWS_PER_COORDINATE * dim)))
        x = self._standardised(self._rows[some]) if self._whole is None else self._whole[some]
        self.covariance = x.T @ x / len(x)  # [F + 1, F + 1]

    def _standardise(self, mean: Tensor | None, std: Tensor | None) -> None:
        """Set the statistics and, unless the features are mapped, the standardised features."""
        features, mapped = self._features, is_mapped(self._features)
        if mean is not None:
            self.mean = mean.to(features)
        elif mapped:
            total = features.new_zeros(features.shape[1])
            for h in blocks_of(features, self._rows):
                total += h.sum(0)
            self.mean = total / len(self._rows)
        else:
            self.mean = features.mean(0)
        centred = None
        if not mapped:
            self._whole = features.new_ones(len(features), features.shape[1] + 1)
            centred = torch.sub(features, self.mean, out=self._whole[:, :-1])
        if std is None:
            chunks = (
                (h - self.mean for h in blocks_of(features, self._rows))
                if centred is None
                else torch.split(centred, ROWS_PER_CHUNK)
            )
            # Chunks: allocating memory for all squares would take longer than squaring.
            squares = sum((x.square().sum(0) for x in chunks), torch.zeros_like(self.mean))
            std = (squares / len(self._rows)).sqrt()
        std = std.to(features)
        # A variation smaller than the rounding error of the mean counts as none.
        varies = std > 32 * torch.finfo(features.dtype).eps * self.mean.abs()
        self.std = torch.where(varies, std, 1)
        self._factor = torch.where(varies, 1 / std, 0)
        if centred is not None:
            centred *= self._factor

    def _standardised(self, rows: Tensor) -> Tensor:
        """Return rows of mapped features, standardised, with a column of ones."""
        h = self._features[rows]
        return torch.cat([(h - self.mean) * self._factor, h.new_ones(len(h), 1)], 1)

    def _chunks(self) -> Iterator[Tensor]:
        """Yield chunks of mapped features, standardised."""
        return map(self._standardised, torch.split(self._rows, ROWS_PER_CHUNK))

    def _logits(self, weight: Tensor) -> Tensor:
        """Return weight @ x.T: [C, n]."""
        if self._whole is not None:
            return weight @ self._whole.T
        return torch.cat([weight @ x.T for x in self._chunks()], 1)

    def _mean_product(self, error: Tensor) -> Tensor:
        """Return error @ x / n: [C, F + 1]."""
        if self._whole is not None:
            return error @ self._whole / len(self._whole)
        total = torch.zeros_like(error[:, :1])
        for part, x in zip(torch.split(error, ROWS_PER_CHUNK, 1), self._chunks(), strict=True):
            total = total + part @ x
        return total / len(self._rows)

    def solve_each(self, grid: Sequence[float]) -> Iterator[LinearClassifier]:
        """Yield the classifier of each l2, the strongest first: each starts the next fit."""
        start = None
        for l2 in sorted(grid, reverse=True):
            classifier, start = self.solve(l2, start=start)
            yield classifier

    def solve(
        self,
        l2: float,
        *,
        start: Tensor | None = None,
        tolerance: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> tuple[LinearClassifier, Tensor]:
        """Return the classifier and its weights [C, F + 1], from which another fit can start."""
        if not 0 < l2 < float("inf"):
            raise UserError(
                f"l2 must be positive, not {l2}: without it separable classes have no solution"
            )
        decay = self.covariance.new_full((len(self.covariance),), l2)
        decay[-1] = 0
        factor = self._precondition(decay)
        weight = decay.new_zeros(len(self.target), len(decay)) if start is None else start
        logits = self._logits(weight)  # [C, n]
        gradient = self._mean_product(self._error(logits)) + decay * weight  # [C, F + 1]
        pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=NUM_PAIRS)
        iterations = 0
        while (largest := gradient.abs().max().item()) > tolerance and iterations < max_iterations:
            direction = _descend(gradient, pairs, factor)
            change = self._logits(direction)  # [C, n]
            slope = _dot(gradient, direction).item()
            if slope >= 0:
                break  # at this precision, no direction leads down
            step, error = self._search(slope, logits, change, weight, direction, decay)
            moved = step * direction
            weight, logits = weight + moved, logits.add_(change, alpha=step)
            before, gradient = gradient, self._mean_product(error) + decay * weight
            bend = gradient - before
            if (product := _dot(moved, bend)) > 0:
                pairs.append((moved, bend, product))
            iterations += 1
        # A constant added to all biases changes nothing, so their mean is removed.
        bias = weight[:, -1] - weight[:, -1].mean()
        classifier = LinearClassifier(
            weight[:, :-1], bias, self.mean, self.std, l2, iterations, largest, largest <= tolerance
        )
        return classifier, weight

    def _precondition(self, decay: Tensor) -> Tensor:
        """Return the Cholesky factor of the approximate Hessian, [F + 1, F + 1]."""
        hessian = self.curvature * self.covariance
        hessian.diagonal().add_(decay + DAMPING * self.curvature)
        factor: Tensor = torch.linalg.cholesky(hessian)
        return factor

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
        """Return the step at which the slope nearly vanishes, and the errors there.

        It is Newton's method in one dimension, kept between brackets. It compares slopes, because
        near the end values differ by less than their rounding.
        """
        n = len(self._rows)
        pull = _dot(weight * decay, direction).item()
        stiffness = _dot(direction * decay, direction).item()
        low, high, step = 0.0, float("inf"), 1.0
        for tries in range(1, MAX_LINE_STEPS + 1):
            probability = torch.softmax(torch.add(logits, change, alpha=step), 0)  # [C, n]
            error = probability - self.target
            slope = _dot(error, change).item() / n + pull + step * stiffness
            if abs(slope) <= SLOPE_REDUCTION * abs(first) or tries == MAX_LINE_STEPS:
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
    """Return the direction of L-BFGS (Nocedal and Wright, algorithm 7.4).

    The factor of a Hessian replaces the usual multiple of the identity.
    """
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


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()  # pairwise summation, which is more accurate in float32 than torch.dot
