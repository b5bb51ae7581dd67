"""The paper's linear evaluation: a classifier on a frozen encoder, trained with SGD on crops and flips. N images in a batch, F coordinates,
C classes, G learning rates.

Learning rates are for batches of 256 and grow with the batch. What is reported is the last epoch's, whatever the curves say: the best epoch
on test images would be chosen by them.
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
from smi.device import device_of
from smi.errors import UserError
from smi.evaluation.accuracy import check, top_k
from smi.evaluation.features import evaluation_mode, labels_of
from smi.evaluation.logistic import VALIDATION, good_ones, split
from smi.optim import cosine
from smi.seeds import derive
from smi.views import RECIPES, Policy, Views
from smi.views.policies import Triple

EPOCHS, BATCH = 100, 256
LRS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-6  # as Barlow Twins' authors have them


@dataclass(frozen=True)
class Epoch:
    """Mean loss and top-1 over the training batches as they were seen, and of the test images behind them."""

    epoch: int
    train_loss: float
    train_top1: float
    test_loss: float
    test_top1: float


@dataclass(frozen=True)
class Trained:
    """Accuracies between 0 and 1 after the last epoch."""

    top1: float
    top5: float | None  # None with five classes or fewer
    curves: tuple[Epoch, ...]
    num_train: int
    num_test: int
    lr: float
    validation: tuple[
        tuple[float, float], ...
    ] = ()  # (learning rate, top-1 on the validation part) of each that was tried

    @property
    def protocol(self) -> str:
        tried = len(self.validation)
        lr = (
            f"chosen as the smallest good one of {tried} on a fifth of them"
            if tried
            else f"{self.lr:g}"
        )
        return (
            f"linear classifier on the frozen encoder, trained with SGD on random crops and flips of {self.num_train:,} training images, "
            f"peak learning rate {lr}, last of {len(self.curves)} epochs, on {self.num_test:,} images"
        )


Watch = Callable[[Epoch], None]


def light(data: str, *, size: int, mean: Triple, std: Triple) -> Policy:
    """Crops and flips as the recipe of these images has them, and nothing of its colours; of other images as ImageNet's."""
    first = RECIPES[data if data in RECIPES else "imagenet"].views[0]
    view = replace(first, size=size, jitter_p=0.0, gray_p=0.0, blur_p=0.0, solarize_p=0.0)
    return Policy("light", (view,), mean, std)


def train_linear(
    encoder: nn.Module,
    train: Store,
    policy: Policy,
    features: Tensor,
    labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    epochs: int = EPOCHS,
    batch_size: int = BATCH,
    lrs: Sequence[float] = LRS,
    num_classes: int | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> Trained:
    """Learn from `train`'s views under the policy. features, labels: of `train` as it is, some of which judge the learning rates.

    The test images' features do not change, so their curve costs next to nothing.
    """
    num_classes = check(features, labels, test_features, test_labels, num_classes=num_classes)
    tried = choose_lr(
        encoder,
        train,
        policy,
        features,
        labels,
        lrs=lrs,
        epochs=epochs,
        batch_size=batch_size,
        num_classes=num_classes,
        seed=seed,
    )
    lr = min(good_ones(tried, len(labels) // VALIDATION))  # larger ones are rougher
    heads = _Heads(features.shape[1], num_classes, [lr], device_of(encoder, None))
    test_h, test_y = test_features.to(heads.weight), test_labels.to(heads.weight.device)
    curves: list[Epoch] = []
    for losses, right in _train(
        heads, encoder, train, policy, epochs, batch_size, derive(seed, "linear")
    ):
        curves.append(look(len(curves) + 1, losses, right, heads.scores(test_h)[:, 0], test_y))
        if watch:
            watch(curves[-1])
    found = top_k(heads.scores(test_h)[:, 0], test_y)
    return Trained(
        *found, tuple(curves), len(train), len(test_y), lr, tried if len(tried) > 1 else ()
    )


def choose_lr(
    encoder: nn.Module,
    train: Store,
    policy: Policy,
    features: Tensor,
    labels: Tensor,
    *,
    lrs: Sequence[float],
    epochs: int,
    batch_size: int,
    num_classes: int,
    seed: int,
) -> tuple[tuple[float, float], ...]:
    """(learning rate, top-1) of each, trained side by side for a tenth of the epochs (3 at least) on four fifths of the images, judged by
    the features of the rest.
    """
    if len(lrs) == 1:
        return ((lrs[0], float("nan")),)
    kept, held_out = split(labels_of(train), seed)
    if len(held_out) == 0:
        raise UserError(
            f"{len(labels)} training images are too few to choose a learning rate on a part of them"
        )
    heads = _Heads(features.shape[1], num_classes, lrs, device_of(encoder, None))
    for _ in _train(
        heads,
        encoder,
        Subset(train, kept),
        policy,
        max(3, epochs // 10),
        batch_size,
        derive(seed, "lr"),
    ):
        pass
    scores = heads.scores(features[held_out].to(heads.weight)).cpu().nan_to_num()
    return tuple((lr, top_k(scores[:, i], labels[held_out])[0]) for i, lr in enumerate(lrs))


def _train(
    heads: "_Heads",
    encoder: nn.Module,
    train: Store,
    policy: Policy,
    epochs: int,
    batch_size: int,
    seed: int,
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """After each epoch, the first classifier's loss and share of right answers in every batch of it."""
    batches, views, labels = (
        Batches(train, min(batch_size, len(train)), seed=seed),
        Views(policy),
        labels_of(train),
    )
    place, total = heads.weight.device, epochs * batches.steps_per_epoch
    losses: list[Tensor] = []
    right: list[Tensor] = []
    stream = batches.starting_at()
    with contextlib.closing(stream):
        for step in range(total):
            batch = next(stream)
            y = labels[batch.index].to(place)
            with evaluation_mode(encoder), torch.no_grad():
                h = encoder(views(batch.images.to(place), batch.generator())[0])
            scores, loss = heads.step(
                h, y, cosine(1.0, 0.0, step / total) * batches.batch_size / BATCH
            )
            losses.append(loss[0])
            right.append((scores[:, 0].argmax(1) == y).float().mean())
            if (step + 1) % batches.steps_per_epoch == 0:
                yield losses, right
                losses, right = [], []


class _Heads:
    """G linear classifiers trained side by side, each with a learning rate of its own: one product for all, and no gradient of one in
    another's way. SGD with momentum, written out, for weight [G * C, F].
    """

    def __init__(self, dim: int, num_classes: int, lrs: Sequence[float], device: torch.device):
        self.num_classes = num_classes
        self.weight = torch.zeros(
            len(lrs) * num_classes, dim + 1, device=device
        )  # the last column is the bias
        self.lr = torch.tensor(lrs, device=device).repeat_interleave(num_classes)[:, None]
        self.velocity = torch.zeros_like(self.weight)

    def scores(self, h: Tensor) -> Tensor:
        """[N, G, C]."""
        return (h.float() @ self.weight[:, :-1].T + self.weight[:, -1]).view(
            len(h), -1, self.num_classes
        )

    def step(self, h: Tensor, labels: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """The scores before it, and the loss of each classifier [G]."""
        scores = self.scores(h)
        log_p = scores.log_softmax(2)  # [N, G, C]
        loss = -log_p.gather(2, labels[:, None, None].expand(-1, scores.shape[1], 1)).mean((0, 2))
        error = log_p.exp()
        error.scatter_add_(
            2,
            labels[:, None, None].expand(-1, scores.shape[1], 1),
            torch.full_like(error[..., :1], -1.0),
        )
        error = error.flatten(1) / len(h)  # [N, G * C]
        gradient = (
            torch.cat([error.T @ h.float(), error.sum(0)[:, None]], 1) + WEIGHT_DECAY * self.weight
        )
        self.velocity.mul_(MOMENTUM).add_(gradient)
        self.weight -= factor * self.lr * self.velocity
        return scores, loss


def look(
    number: int, losses: Sequence[Tensor], right: Sequence[Tensor], scores: Tensor, labels: Tensor
) -> Epoch:
    """The end of an epoch: what was seen in it, and the scores of test images now."""
    test_loss = cross_entropy(scores, labels).item()
    return Epoch(
        number,
        torch.stack(list(losses)).mean().item(),
        torch.stack(list(right)).mean().item(),
        test_loss,
        (scores.argmax(1) == labels).float().mean().item(),
    )
