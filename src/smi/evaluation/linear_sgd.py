"""Run the paper's linear evaluation: train a classifier on a frozen encoder with SGD.

task = Task(encoder, train, policy, num_classes=10)
result = train_linear(task, FeatureSplits(h, labels, test_h, test_labels))

The views are random crops and flips. Learning rates are for batches of 256 and scale with the batch
size. The last epoch is reported: choosing the best epoch would use the test images.
N images in a batch, F coordinates, C classes, G learning rates.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from smi.data.batches import Batches
from smi.data.store import Store
from smi.data.subset import Subset
from smi.device import Precision, autocast, device_of, upload
from smi.distributed import in_parts
from smi.errors import UserError
from smi.evaluation.accuracy import check_features, top_k
from smi.evaluation.features import FeatureSplits, evaluation_mode, labels_of
from smi.evaluation.logistic import NUM_FOLDS, blocks_of, hold_out, nearly_best
from smi.optim import cosine
from smi.seeds import derive
from smi.terminal import epochs_text
from smi.views import RECIPES, Policy, Views
from smi.views.policies import Triple

LINEAR_EPOCHS = 100
CLASSIFIER_BATCH_SIZE = 256
LEARNING_RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SGD_MOMENTUM = 0.9  # momentum and weight decay of the authors of Barlow Twins
SGD_WEIGHT_DECAY = 1e-6
MIN_TRIAL_EPOCHS = 3  # the choice of a learning rate takes a tenth of the epochs, or this many


@dataclass(frozen=True)
class Epoch:
    """Hold mean loss and top-1 over the batches of an epoch, and on the test images after it."""

    epoch: int
    train_loss: float
    train_top1: float
    test_loss: float
    test_top1: float


@dataclass(frozen=True)
class LinearTraining:
    """Hold the accuracies, between 0 and 1, of the last epoch, and the curves."""

    top1: float
    top5: float | None  # None with five classes or fewer
    curves: tuple[Epoch, ...]
    num_train: int
    num_test: int
    lr: float
    validation: tuple[tuple[float, float], ...] = ()  # (lr, held-out top-1) of each lr tried

    @property
    def protocol(self) -> str:
        """Describe the protocol in one phrase."""
        num_tried = len(self.validation)
        lr = (
            f"chosen as the smallest of {num_tried} within half a standard error of the best on a "
            "held-out fifth"
            if num_tried
            else f"{self.lr:g}"
        )
        return (
            "linear classifier on the frozen encoder, trained with SGD on random crops and flips "
            f"of {self.num_train:,} training images, peak learning rate {lr}, last of "
            f"{epochs_text(len(self.curves))}, on {self.num_test:,} images"
        )


@dataclass(frozen=True)
class Task:
    """Hold the input of a classifier: an encoder, labelled images and their views."""

    encoder: nn.Module
    train: Store
    policy: Policy
    num_classes: int
    precision: Precision = "float32"  # number format of the encoder


@dataclass(frozen=True)
class Training:
    """Hold the number of epochs, the batch size and the seed of the training of a classifier.

    epochs: None takes the default of the protocol. watch: called with every epoch of the curves.
    """

    epochs: int | None = None
    batch_size: int = CLASSIFIER_BATCH_SIZE
    seed: int = 0
    watch: Callable[[Epoch], None] | None = None


def light(data: str, *, size: int, mean: Triple, std: Triple) -> Policy:
    """Return the crops and flips of a dataset's recipe, without its colour changes.

    data: the name of a dataset; others get the crops and flips of ImageNet.
    """
    first = RECIPES[data if data in RECIPES else "imagenet"].views[0]
    view = replace(first, size=size, jitter_p=0.0, gray_p=0.0, blur_p=0.0, solarize_p=0.0)
    return Policy("light", (view,), mean, std)


def train_linear(
    task: Task,
    rows: FeatureSplits,
    *,
    lrs: Sequence[float] = LEARNING_RATES,
    training: Training | None = None,
) -> LinearTraining:
    """Choose a learning rate, then train a linear classifier on views of the training images.

    rows: features of the images without augmentation. Held-out training rows choose the learning
    rate. The features of test images do not change, so their curve costs almost nothing.
    Several processes must all call this: each encodes a part of every batch.
    """
    training = training or Training()
    check_features(*rows, num_classes=task.num_classes)
    tried = choose_lr(task, rows.features, rows.labels, lrs=lrs, training=training)
    lr = min(nearly_best(tried, len(rows.labels) // NUM_FOLDS))  # larger ones are noisier
    heads = _Heads(rows.features.shape[1], task.num_classes, [lr], device_of(task.encoder, None))
    test_h = rows.test_features.to(heads.weight)
    test_labels = rows.test_labels.to(heads.weight.device)
    curves: list[Epoch] = []
    seed = derive(training.seed, "linear")
    for losses, correct in _train(heads, task, replace(training, seed=seed)):
        scores = heads.scores(test_h)[:, 0]
        curves.append(summarise_epoch(len(curves) + 1, losses, correct, scores, test_labels))
        if training.watch:
            training.watch(curves[-1])
    top1, top5 = top_k(heads.scores(test_h)[:, 0], test_labels)
    validation = tried if len(tried) > 1 else ()
    return LinearTraining(
        top1, top5, tuple(curves), len(task.train), len(test_labels), lr, validation
    )


def choose_lr(
    task: Task, features: Tensor, labels: Tensor, *, lrs: Sequence[float], training: Training
) -> tuple[tuple[float, float], ...]:
    """Return (learning rate, top-1) of each, on the features of a held-out fifth of the images.

    All classifiers train side by side on the other images, for a tenth of the epochs. A single
    learning rate is not tried: its accuracy is NaN.
    """
    if len(lrs) == 1:
        return ((lrs[0], float("nan")),)
    fitted, held_out = hold_out(labels_of(task.train), training.seed)
    if len(held_out) == 0:
        raise UserError(
            f"{len(labels)} training images are too few to choose a learning rate on a part of them"
        )
    heads = _Heads(features.shape[1], task.num_classes, lrs, device_of(task.encoder, None))
    epochs = max(MIN_TRIAL_EPOCHS, (training.epochs or LINEAR_EPOCHS) // 10)
    trial = replace(training, epochs=epochs, seed=derive(training.seed, "lr"))
    for _ in _train(heads, replace(task, train=Subset(task.train, fitted)), trial):
        pass
    blocks = (heads.scores(h.to(heads.weight)).cpu() for h in blocks_of(features, held_out))
    scores = torch.cat(list(blocks)).nan_to_num()
    return tuple((lr, top_k(scores[:, i], labels[held_out])[0]) for i, lr in enumerate(lrs))


def _train(
    heads: "_Heads", task: Task, training: Training
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Train, and yield the first classifier's loss and accuracy in every batch of each epoch."""
    batch_size = min(training.batch_size, len(task.train))
    batches = Batches(task.train, batch_size, seed=training.seed)
    views = Views(task.policy)
    labels = labels_of(task.train)
    device = heads.weight.device
    total = (training.epochs or LINEAR_EPOCHS) * batches.steps_per_epoch
    losses: list[Tensor] = []
    correct: list[Tensor] = []
    with contextlib.closing(batches.starting_at()) as stream:
        for step in range(total):
            batch = next(stream)
            y = upload(labels[batch.index], device)
            x = views(batch.to(device).images, batch.generator())[0]
            with (
                evaluation_mode(task.encoder),
                autocast(device, task.precision),
                torch.no_grad(),
            ):
                h = in_parts(task.encoder, x)
            factor = cosine(1.0, 0.0, step / total) * batches.batch_size / CLASSIFIER_BATCH_SIZE
            scores, loss = heads.step(h, y, factor)
            losses.append(loss[0])
            correct.append((scores[:, 0].argmax(1) == y).float().mean())
            if (step + 1) % batches.steps_per_epoch == 0:
                yield losses, correct
                losses, correct = [], []


class _Heads:
    """Train G linear classifiers side by side, each with its own learning rate.

    One product serves all of them, and their gradients are independent. SGD with momentum is
    written out for weight [G * C, F + 1].
    """

    def __init__(self, dim: int, num_classes: int, lrs: Sequence[float], device: torch.device):
        self.num_classes = num_classes
        # the last column is the bias
        self.weight = torch.zeros(len(lrs) * num_classes, dim + 1, device=device)
        self.lr = torch.tensor(lrs, device=device).repeat_interleave(num_classes)[:, None]
        self.velocity = torch.zeros_like(self.weight)

    def scores(self, h: Tensor) -> Tensor:
        """Return the logits of every classifier, [N, G, C]."""
        return (h.float() @ self.weight[:, :-1].T + self.weight[:, -1]).view(
            len(h), -1, self.num_classes
        )

    def step(self, h: Tensor, labels: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Take one step; return the scores before it and the loss of each classifier [G]."""
        scores = self.scores(h)
        log_p = scores.log_softmax(2)  # [N, G, C]
        target = labels[:, None, None].expand(-1, scores.shape[1], 1)  # [N, G, 1]
        loss = -log_p.gather(2, target).mean((0, 2))
        error = log_p.exp()
        error.scatter_add_(2, target, torch.full_like(error[..., :1], -1.0))
        error = error.flatten(1) / len(h)  # [N, G * C]
        gradient = torch.cat([error.T @ h.float(), error.sum(0)[:, None]], 1)
        gradient = gradient + SGD_WEIGHT_DECAY * self.weight
        self.velocity.mul_(SGD_MOMENTUM).add_(gradient)
        self.weight -= factor * self.lr * self.velocity
        return scores, loss


def summarise_epoch(
    number: int, losses: Sequence[Tensor], correct: Sequence[Tensor], scores: Tensor, labels: Tensor
) -> Epoch:
    """Return the means over an epoch's batches, and loss and top-1 of the test scores after it."""
    test_loss = cross_entropy(scores, labels).item()
    return Epoch(
        number,
        torch.stack(list(losses)).mean().item(),
        torch.stack(list(correct)).mean().item(),
        test_loss,
        (scores.argmax(1) == labels).float().mean().item(),
    )
