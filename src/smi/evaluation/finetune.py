"""Fine-tune: train the encoder and a linear classifier together on a share of the labels.

task = Task(encoder, train, policy, num_classes=10)
result = fine_tune(task, test, share=0.01)
result.top1, result.protocol
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from smi.data.batches import Batches
from smi.data.store import Store
from smi.data.subset import Subset
from smi.device import autocast, device_of, upload
from smi.distributed import data_parallel, in_parts, synchronise_batch_norms, world_size
from smi.errors import UserError
from smi.evaluation.accuracy import top_k
from smi.evaluation.features import evaluation_mode, extract_labelled, labels_of
from smi.evaluation.fewshot import shuffle
from smi.evaluation.linear_sgd import Epoch, Task, Training, summarise_epoch
from smi.optim import cosine, create_optimizer, set_lr
from smi.seeds import derive
from smi.terminal import epochs_text
from smi.views import Views

LABEL_SHARES = (0.01, 0.1, 1.0)
FINE_TUNING_EPOCHS = 20
MIN_STEPS = 300  # one percent of a small dataset is only a batch or two
CURVE_POINTS = 10  # each costs a pass over the test images
ADAMW_LR = 1e-3
ADAMW_WEIGHT_DECAY = 1e-2


@dataclass(frozen=True)
class FineTuned:
    """Hold the accuracies, between 0 and 1, after the last epoch, and the curves."""

    share: float  # of the labels of each class
    top1: float
    top5: float | None  # None with five classes or fewer
    curves: tuple[Epoch, ...]
    epochs: int
    num_labels: int
    num_test: int

    @property
    def protocol(self) -> str:
        """Describe the protocol in one phrase."""
        return (
            "encoder and linear classifier trained together on random crops and flips of "
            f"{self.num_labels:,} labelled images ({self.share:.0%} of each class), AdamW for "
            f"{epochs_text(self.epochs)}, last epoch, on {self.num_test:,} images"
        )


def fine_tune(
    task: Task, test: Store, *, share: float, training: Training | None = None
) -> FineTuned:
    """Train a copy of the encoder on a share of the labels and test it after the last epoch.

    Training takes at least 300 steps: more epochs if the labels are few. Several processes must all
    call this: each trains on a part of every batch, and the batch norms see all of it.
    """
    if not 0 < share <= 1:
        raise UserError(f"the share of labels must be above 0 and at most 1, not {share}")
    training = training or Training()
    rows = sample_each_class(labels_of(task.train), share, training.seed)
    task = replace(task, train=Subset(task.train, rows))
    batch_size = min(training.batch_size, len(rows))
    batches = Batches(task.train, batch_size, seed=derive(training.seed, "finetune"))
    epochs = max(
        training.epochs or FINE_TUNING_EPOCHS, math.ceil(MIN_STEPS / batches.steps_per_epoch)
    )
    network = new_network(task, batches)
    torch.manual_seed(derive(training.seed, "finetune"))  # for dropout and similar layers

    curves: list[Epoch] = []
    losses: list[Tensor] = []
    correct: list[Tensor] = []
    scores, test_labels = torch.empty(0), torch.empty(0)
    for epoch, epoch_losses, epoch_correct in train_epochs(network, task, batches, epochs):
        losses += epoch_losses
        correct += epoch_correct
        if epoch % math.ceil(epochs / CURVE_POINTS) and epoch != epochs:
            continue
        policy = task.policy
        scores, test_labels = extract_labelled(
            network,
            test,
            mean=policy.mean,
            std=policy.std,
            size=policy.views[0].size,
            precision=task.precision,
            together=True,
        )
        curves.append(summarise_epoch(epoch, losses, correct, scores, test_labels))
        losses, correct = [], []
        if training.watch:
            training.watch(curves[-1])
    top1, top5 = top_k(scores, test_labels)
    return FineTuned(share, top1, top5, tuple(curves), epochs, len(rows), len(test))


def sample_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """Draw this share of the rows of every class, at least one of each: int64, sorted.

    The rows of a smaller share are among the rows of a larger one.
    """
    order, place = shuffle(labels, derive(seed, "labels"))
    num_wanted = (torch.bincount(labels) * share).round().clamp(min=1)[labels[order]]
    return order[place < num_wanted].sort().values


def new_network(task: Task, batches: Batches) -> nn.Sequential:
    """Return a trainable copy of the encoder with a new linear classifier on its features."""
    encoder = copy.deepcopy(task.encoder).requires_grad_(True).train()
    device = device_of(encoder)
    first = batches.batch(0)
    views = Views(task.policy)
    with evaluation_mode(encoder), torch.no_grad():
        dim = encoder(views(first.to(device).images, first.generator())[0]).shape[1]
    head = nn.Linear(dim, task.num_classes, device=device)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)  # so that the first gradients do not disturb the encoder
    return nn.Sequential(encoder, head)


def train_epochs(
    network: nn.Sequential,
    task: Task,
    batches: Batches,
    epochs: int,
    advance: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, list[Tensor], list[Tensor]]]:
    """Train, and yield the number of each epoch with the loss and accuracy of its batches.

    advance: called after every step with its number of images.
    """
    device = device_of(network)
    views = Views(task.policy)
    train_labels = labels_of(task.train)
    forward = _split_over_processes(network, batches.batch_size, device)
    scaler = torch.amp.GradScaler(device.type, enabled=task.precision == "float16")
    optimizer = create_optimizer(
        network, name="AdamW", lr=ADAMW_LR, lr_vectors=None, weight_decay=ADAMW_WEIGHT_DECAY
    )
    total = epochs * batches.steps_per_epoch
    losses: list[Tensor] = []
    correct: list[Tensor] = []
    with contextlib.closing(batches.starting_at()) as stream:
        for step in range(total):
            batch = next(stream)
            labels = upload(train_labels[batch.index], device)
            set_lr(optimizer, cosine(1.0, 0.0, step / total))
            x = views(batch.to(device).images, batch.generator())[0]
            with autocast(device, task.precision):
                scores = forward(x)
            loss = cross_entropy(scores.float(), labels)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            correct.append((scores.argmax(1) == labels).float().mean())
            if advance:
                advance(len(labels))
            epoch, rest = divmod(step + 1, batches.steps_per_epoch)
            if rest == 0:
                yield epoch, losses, correct
                losses, correct = [], []


def _split_over_processes(
    network: nn.Sequential, batch_size: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of a batch, of which each process computes a part if it can.

    A batch that is no multiple of the processes is computed by each of them as a whole, because
    batch norms need parts of one size.
    """
    if world_size() == 1:
        return network
    if batch_size % world_size():
        return data_parallel(network, device)
    synchronise_batch_norms(network)
    parallel = data_parallel(network, device)
    return lambda x: in_parts(parallel, x)
