"""A linear classifier from a few labels of each class, drawn again and again. n training rows, F coordinates, C classes.

for result in few_shot(train_h, train_labels, test_h, test_labels):
    print(result.protocol, result.mean, result.low, result.high)

So few labelled rows can neither choose a strength of l2 nor say how features vary. The strength is fixed, on a plateau: ten times more or
less changes little. Features are centred and divided by one number, both from all training rows, which takes no labels; a number for each
coordinate would enlarge those that hardly vary, and with one label of each class nothing holds them back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smi.errors import UserError
from smi.evaluation.accuracy import check, top_k
from smi.evaluation.logistic import fit_linear
from smi.intervals import interval
from smi.seeds import derive

L2 = 1e-2


@dataclass(frozen=True)
class FewShot:
    """Top-1 accuracies between 0 and 1: one for each draw of labels, their mean, and Student's 95 % interval of that mean."""

    shots: int  # labels for each class
    mean: float
    low: float
    high: float
    draws: tuple[float, ...]
    smallest: int  # labels of the class with fewest, where it has not as many as asked for
    num_classes: int
    num_test: int

    @property
    def protocol(self) -> str:
        fewer = (
            f" ({self.smallest} where a class has no more)" if self.smallest < self.shots else ""
        )
        return (
            f"logistic regression (l2 = {L2:g}) on frozen features of {self.shots} labelled image{'s'[: self.shots - 1]} of each of "
            f"{self.num_classes} classes{fewer}, mean and 95 % interval over {len(self.draws)} draws, on {self.num_test:,} images"
        )


def few_shot(
    features: Tensor,
    labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    shots: Sequence[int] = (1, 5, 10),
    draws: int = 20,
    num_classes: int | None = None,
    seed: int = 0,
) -> list[FewShot]:
    """One result for each number of labels. In one draw the labels of a smaller number are among those of a larger one."""
    num_classes = check(features, labels, test_features, test_labels, num_classes=num_classes)
    if draws < 2:
        raise UserError(f"an interval takes 2 draws or more, not {draws}")
    counts = torch.bincount(labels, minlength=num_classes)
    present = counts[counts > 0]
    for shot in shots:
        if not 1 <= shot <= int(counts.max()):
            raise UserError(
                f"there are 1 to {int(counts.max()):,} training images of a class to draw labels of, not {shot}"
            )
    mean = features.mean(0)
    std = features.var(0, correction=0).mean().sqrt().expand_as(mean)
    found: list[list[float]] = [[] for _ in shots]
    for draw in range(draws):
        order, place = shuffle(labels, derive(seed, "few-shot", draw))
        for shot, accuracies in zip(shots, found, strict=True):
            rows = order[place < shot]
            classifier = fit_linear(
                features[rows], labels[rows], l2=L2, num_classes=num_classes, mean=mean, std=std
            )
            accuracies.append(top_k(classifier.scores(test_features), test_labels)[0])
    return [
        FewShot(
            shot,
            *interval(accuracies),
            tuple(accuracies),
            min(shot, int(present.min())),
            num_classes,
            len(test_labels),
        )
        for shot, accuracies in zip(shots, found, strict=True)
    ]


def shuffle(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows by class, in random order within each, and the place of each within its class: int64 [n] both."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(
        labels.device
    )
    order = order[labels[order].argsort(stable=True)]
    counts = torch.bincount(labels)
    begins = (counts.cumsum(0) - counts)[labels[order]]
    return order, torch.arange(len(labels), device=labels.device) - begins
