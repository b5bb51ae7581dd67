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
    epsilon, num_iterations: the softness of the assignment, and the iterations of Sinkhorn.
    queue_size, queue_from_epoch: earlier samples that help to balance small batches, and the epoch
    from which they do; the paper uses 3840.
    frozen_epochs: epochs at the start in which the prototypes do not change.
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
    ):
        super().__init__(encoder)
        if queue_size % world_size():
            raise UserError(
                f"SwAV's queue_size {queue_size} is not a multiple of the {world_size()} processes"
            )
        self.projector = mlp(encoder.dim, *widths, bias=True)
        self.prototypes = Prototypes(widths[-1], num_prototypes)
        num_queues = 2 if queue_size else 0  # one for each large view
        queues = nn.ModuleList(Queue(queue_size, widths[-1]) for _ in range(num_queues))
        self.queues = cast(list[Queue], queues)
        self.crops = crops
        self.queue_from_epoch = queue_from_epoch
        self.frozen_epochs = frozen_epochs
        self.loss = partial(
            swav_loss, temperature=temperature, epsilon=epsilon, num_iterations=num_iterations
        )

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        """Return the swapped prediction loss of all views."""
        h = together(self.encoder, views)
        z = self.projector(torch.cat(h)).chunk(len(views))
        scores = self.prototypes(torch.cat(z)).chunk(len(views))  # [N, P] for each view
        num_large = len(views) - self.crops
        self.z = [view.detach() for view in z[:num_large]]
        terms = self.loss(scores[:num_large], scores[num_large:], self._queued_scores())
        return Output(terms, h[0], z[0], z[1])

    @torch.no_grad()
    def _queued_scores(self) -> list[Tensor]:
        """Return the scores of this device's part of the queued samples."""
        if self.epoch < self.queue_from_epoch:
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
        """Store the projections of the large views."""
        for queue, z in zip(self.queues, self.z, strict=False):
            queue.push(z)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the range of a cross-entropy over the prototypes."""
        num_prototypes = int(cls._setting(setup, "num_prototypes"))
        if num_prototypes < 1:
            return None
        # Scores are cosines. The code of a view says nothing about the scores of a random view.
        temperature = cls._setting(setup, "temperature")
        return cross_entropy_range(num_prototypes, temperature, setup.embedding_dim)
