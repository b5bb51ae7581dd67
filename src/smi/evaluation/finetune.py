"""Fine-tuning: the encoder and a linear classifier trained together from a share of the labels.

result = fine_tune(encoder, train, test, policy, share=0.01, num_classes=10)
"""

import contextlib
import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from smi.data.batches import Batches
from smi.data.store import Store
from smi.data.subset import Subset
from smi.errors import UserError
from smi.evaluation.accuracy import top_k
from smi.evaluation.features import evaluation_mode, extract_labelled, labels_of
from smi.evaluation.fewshot import shuffle
from smi.evaluation.linear_sgd import BATCH, Epoch, Watch, look
from smi.optim import cosine, create_optimizer, set_lr
from smi.seeds import derive
from smi.views import Policy, Views

SHARES = (0.01, 0.1, 1.0)
EPOCHS = 20
FEWEST_STEPS = 300  # a hundredth of a small set is a batch or two
LOOKS = 10  # at the test images, for the curve: each costs a pass over them
LR, WEIGHT_DECAY = 1e-3, 1e-2


@dataclass(frozen=True)
class FineTuned:
    """Accuracies between 0 and 1 after the last epoch."""

    share: float  # of the labels of each class
    top1: float
    top5: float | None  # None with five classes or fewer
    curves: tuple[Epoch, ...]
    epochs: int
    num_labels: int
    num_test: int

    @property
    def protocol(self) -> str:
        return (
            f"encoder and linear classifier trained together on random crops and flips of {self.num_labels:,} labelled images "
            f"({self.share:.0%} of each class), AdamW for {self.epochs:,} epochs, last epoch, on {self.num_test:,} images"
        )


def fine_tune(
    encoder: nn.Module,
    train: Store,
    test: Store,
    policy: Policy,
    *,
    share: float,
    num_classes: int,
    epochs: int = EPOCHS,
    batch_size: int = BATCH,
    seed: int = 0,
    watch: Watch | None = None,
) -> FineTuned:
    """A copy of the encoder is trained. Fewer than 300 steps become so many, in more epochs."""
    if not 0 < share <= 1:
        raise UserError(
            f"the share of labels to fine-tune on lies above 0 and up to 1, not at {share}"
        )
    train = Subset(train, some_of_each(labels_of(train), share, seed))
    targets, views = labels_of(train), Views(policy)
    batches = Batches(train, min(batch_size, len(train)), seed=derive(seed, "finetune"))
    epochs = max(epochs, -(-FEWEST_STEPS // batches.steps_per_epoch))
    total = epochs * batches.steps_per_epoch

    tuned = copy.deepcopy(encoder).requires_grad_(True).train()
    place = next(p.device for p in tuned.parameters())
    first = batches.batch(0)
    with evaluation_mode(tuned), torch.no_grad():
        dim = tuned(views(first.images.to(place), first.generator())[0]).shape[1]
    head = nn.Linear(dim, num_classes, device=place)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)  # so that the first steps do not shake the encoder
    network = nn.Sequential(tuned, head)
    optimizer = create_optimizer(
        network, name="AdamW", lr=LR, lr_vectors=None, weight_decay=WEIGHT_DECAY
    )

    curves: list[Epoch] = []
    losses: list[Tensor] = []
    right: list[Tensor] = []
    scores, test_labels = torch.empty(0), torch.empty(0)
    torch.manual_seed(derive(seed, "finetune"))  # for what a network itself draws, such as dropout
    with contextlib.closing(batches.starting_at()) as stream:
        for step in range(total):
            batch = next(stream)
            labels = targets[batch.index].to(place)
            set_lr(optimizer, cosine(1.0, 0.0, step / total))
            found = network(views(batch.images.to(place), batch.generator())[0])
            loss = cross_entropy(found, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            right.append((found.argmax(1) == labels).float().mean())
            epoch, rest = divmod(step + 1, batches.steps_per_epoch)
            if rest == 0 and (epoch % -(-epochs // LOOKS) == 0 or epoch == epochs):
                scores, test_labels = extract_labelled(
                    network, test, mean=policy.mean, std=policy.std, size=policy.views[0].size
                )
                curves.append(look(epoch, losses, right, scores, test_labels))
                losses, right = [], []
                if watch:
                    watch(curves[-1])
    return FineTuned(
        share, *top_k(scores, test_labels), tuple(curves), epochs, len(train), len(test)
    )


def some_of_each(labels: Tensor, share: float, seed: int) -> Tensor:
    """Rows of this share of every class, and one at least: int64, in order. A smaller share's are among a larger one's."""
    order, place = shuffle(labels, derive(seed, "labels"))
    wanted = (torch.bincount(labels) * share).round().clamp(min=1)[labels[order]]
    return order[place < wanted].sort().values
