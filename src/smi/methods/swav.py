"""Train with SwAV: predict the prototype assignment of a view from the other views."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.distributed import own_rows, world_size
from smi.errors import UserError
from smi.losses import swav_loss
from smi.losses.loss_range import cross_entropy_range
from smi.losses.swav import EPSILON, NUM_ITERATIONS, TEMPERATURE
from smi.methods.base import LossSetup, Method, Output, together
from smi.methods.description import LossRange
from smi.nn import Encoder, Prototypes, Queue, mlp
from smi.views import Policy, multicrop


class SwAV(Method):
    """Predict the prototype assignment of each large view from every other view.

    Assignments use all prototypes equally over the batches of all devices.

    widths: of the projector's layers.
    crops: small views beside the large ones; 0 for none.
    num_prototypes: unit vectors that views are assigned to.
    temperature: similarities are divided by it; lower makes the softmax sharper.
    epsilon, num_iterations: the softness of the assignment, and the iterations of Sinkhorn.
    queue_size, queue_from_epoch: earlier samples that help to balance small batches, and the epoch
    from which they do; the paper uses 3840.
    frozen_epochs: epochs at the start in which the prototypes do not change.
    renormalise: scale the prototypes to length 1 after each step, as the authors do. Otherwise they
    are scaled where they are used: their lengths grow, and they turn more slowly.
    """

    display_name = "SwAV"
    paper = "Caron et al. 2020, arXiv:2006.09882"
    stored = "queue (optional)"
    gathers = True
    multicrop = True
    synchronises_batch_norm = True
    collapse_remedies = (
        "Freeze the prototypes in the first epoch, lower epsilon (0.05 to 0.03), or lower the "
        "learning rate."
    )

    z: list[Tensor]  # of the current step, [N, K] for each large view

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 128),
        num_prototypes: int = 3000,
        crops: int = 6,
        temperature: float = TEMPERATURE,
        epsilon: float = EPSILON,
        num_iterations: int = NUM_ITERATIONS,
        queue_size: int = 0,
        queue_from_epoch: int = 15,
        frozen_epochs: int = 1,
        renormalise: bool = False,
    ):
        super().__init__(encoder)
        if queue_size % world_size():
            raise UserError(
                f"SwAV's queue_size {queue_size} is not a multiple of the {world_size()} processes"
            )
        self.projector = mlp(encoder.dim, *widths, bias=True)
        self.prototypes = Prototypes(widths[-1], num_prototypes, scale=not renormalise)
        num_queues = 2 if queue_size else 0  # one for each large view
        queues = nn.ModuleList(Queue(queue_size, widths[-1]) for _ in range(num_queues))
        self.queues = cast(list[Queue], queues)
        self.crops = crops
        self.queue_from_epoch = queue_from_epoch
        self.frozen_epochs = frozen_epochs
        self.renormalise = renormalise
        self.epoch = 0
        self.loss = partial(
            swav_loss, temperature=temperature, epsilon=epsilon, num_iterations=num_iterations
        )

    @property
    def epoch(self) -> int:
        """Return the number of epochs that are done."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        """Decide about the queue too: compiled code would depend on the number of the epoch."""
        self._epoch = epoch
        self.uses_queue = len(self.queues) > 0 and epoch >= self.queue_from_epoch

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the first view, projections of the large ones, scores of all."""
        h = together(self.encoder, views)
        z = self.projector(torch.cat(h)).chunk(len(views))
        scores = self.prototypes(torch.cat(z)).chunk(len(views))  # [N, P] for each view
        return h[0], *z[: len(views) - self.crops], *scores

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the swapped prediction loss of all views."""
        num_large = (len(embeddings) - 1 - self.crops) // 2
        h, z, scores = embeddings[0], embeddings[1 : 1 + num_large], embeddings[1 + num_large :]
        self.z = [view.detach() for view in z]
        terms = self.loss(scores[:num_large], scores[num_large:], self._queued_scores())
        return Output(terms, h, z[0], z[1])

    @torch.no_grad()
    def _queued_scores(self) -> list[Tensor]:
        """Return the scores of this device's part of the queued samples."""
        if not self.uses_queue:
            return []
        return [self.prototypes(own_rows(queue.keys)) for queue in self.queues]

    def policy(self, recipe: Policy) -> Policy:
        """Return the views of the recipe and small ones."""
        return multicrop(recipe, num_local=self.crops) if self.crops else recipe

    def before_step(self) -> None:
        """Freeze the prototypes in the first epochs."""
        if self.epoch < self.frozen_epochs:
            # Optimizers skip a parameter without a gradient, weight decay included.
            self.prototypes.weight.grad = None

    def after_step(self) -> None:
        """Store the projections of the large views, and scale the prototypes if they need it."""
        for queue, z in zip(self.queues, self.z, strict=False):
            queue.push(z)
        if self.renormalise:
            self.prototypes.normalise()

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the range of a cross-entropy over the prototypes."""
        num_prototypes = int(cls._setting(setup, "num_prototypes"))
        if num_prototypes < 1:
            return None
        # Scores are cosines. The code of a view says nothing about the scores of a random view.
        temperature = cls._setting(setup, "temperature")
        return cross_entropy_range(num_prototypes, temperature, setup.embedding_dim)
