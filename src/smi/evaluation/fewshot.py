"""Fit a linear classifier on a few labels of each class, over several random draws of labels.

for result in few_shot(train_h, train_labels, test_h, test_labels):
    print(result.protocol, result.mean, result.low, result.high)

A few labelled rows can neither choose l2 nor estimate how features vary. l2 is fixed, on a plateau:
ten times more or less changes little. Features are centred and divided by one number; both come
from all training rows and need no labels. One number per coordinate would enlarge coordinates that
hardly vary, and with one label per class nothing counteracts that.

n training rows, F coordinates, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smi.errors import UserError
from smi.evaluation.accuracy import check_features, top_k
from smi.evaluation.logistic import fit_linear
from smi.intervals import interval
from smi.seeds import derive

FEW_SHOT_L2 = 1e-2


@dataclass(frozen=True)
class FewShot:
    """Hold the top-1 accuracy, between 0 and 1, of each draw, their mean and its 95 % interval."""

    shots: int  # labels for each class
    mean: float
    low: float
    high: float
    draws: tuple[float, ...]
    smallest: int  # labels of the smallest class, if it has fewer than `shots`
    num_classes: int
    num_test: int

    @property
    def protocol(self) -> str:
        """Describe the protocol in one phrase."""
        fewer = (
            f" ({self.smallest} where a class has no more)" if self.smallest < self.shots else ""
        )
        images = "image" if self.shots == 1 else "images"
        return (
            f"logistic regression (l2 = {FEW_SHOT_L2:g}) on frozen features of {self.shots} "
            f"labelled {images} of each of {self.num_classes} classes{fewer}, mean and 95 % "
            f"interval over {len(self.draws)} draws, on {self.num_test:,} images"
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
    """Return one result for each number of labels per class.

    Within one draw, the labels of a smaller number are among the labels of a larger one.
    """
    num_classes = check_features(
        features, labels, test_features, test_labels, num_classes=num_classes
    )
    if draws < 2:
        raise UserError(f"an interval needs 2 draws or more, not {draws}")
    counts = torch.bincount(labels, minlength=num_classes)
    smallest_class = int(counts[counts > 0].min())
    for shot in shots:
        if not 1 <= shot <= int(counts.max()):
            raise UserError(
                f"the number of labels per class must be between 1 and {int(counts.max()):,}, the "
                f"size of the largest class, not {shot}"
            )
    mean = features.mean(0)
    std = features.var(0, correction=0).mean().sqrt().expand_as(mean)
    accuracies: list[list[float]] = [[] for _ in shots]
    for draw in range(draws):
        order, place = shuffle(labels, derive(seed, "few-shot", draw))
        for shot, top1s in zip(shots, accuracies, strict=True):
            rows = order[place < shot]
            classifier = fit_linear(
                features[rows],
                labels[rows],
                l2=FEW_SHOT_L2,
                num_classes=num_classes,
                mean=mean,
                std=std,
            )
            top1s.append(top_k(classifier.scores(test_features), test_labels)[0])
    return [
        FewShot(
            shot,
            *interval(top1s),
            tuple(top1s),
            min(shot, smallest_class),
            num_classes,
            len(test_labels),
        )
        for shot, top1s in zip(shots, accuracies, strict=True)
    ]


def shuffle(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows by class, shuffled within each, and their place in the class: int64 [n] each."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(
        labels.device
    )
    order = order[labels[order].argsort(stable=True)]
    counts = torch.bincount(labels)
    begins = (counts.cumsum(0) - counts)[labels[order]]
    return order, torch.arange(len(labels), device=labels.device) - begins
