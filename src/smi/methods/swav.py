"""SwAV: a view's prototype, foretold from the other views."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.distributed import own, world_size
from smi.errors import UserError
from smi.losses import swav_loss
from smi.methods.base import Method, Output, together
from smi.nn import Encoder, Prototypes, Queue, mlp
from smi.views import Policy, multicrop


class SwAV(Method):
    """Foretell which prototypes a large view belongs to from each other view; over the batches of all devices all are used alike.

    crops: small views beside the large ones; 0 for none.
    epsilon, num_iterations: how soft the assignment is, and Sinkhorn's rounds.
    queue_size, queue_from_epoch: earlier samples that help to balance small batches, as the paper does with 3840 of them.
    frozen_epochs: the first ones, in which the prototypes stay.
    """

    paper = "Caron et al. 2020, arXiv:2006.09882"
    stored = "queue (optional)"
    gathers = True
    multicrop = True

    z: list[Tensor]  # of the step under way: of each large view [N, K]

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 128),
        num_prototypes: int = 3000,
        crops: int = 6,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        num_iterations: int = 3,
        queue_size: int = 0,
        queue_from_epoch: int = 15,
        frozen_epochs: int = 1,
    ):
        super().__init__(encoder)
        if queue_size % world_size():
            raise UserError(
                f"SwAV's queue of {queue_size} cannot be shared out to {world_size()} processes: choose a multiple"
            )
        self.projector = mlp(encoder.dim, *widths, bias=True)
        self.prototypes = Prototypes(widths[-1], num_prototypes)
        queues = nn.ModuleList(
            Queue(queue_size, widths[-1]) for _ in range(2 if queue_size else 0)
        )  # one for each large view
        self.queues = cast(list[Queue], queues)
        self.crops, self.queue_from_epoch, self.frozen_epochs = (
            crops,
            queue_from_epoch,
            frozen_epochs,
        )
        self.loss = partial(
            swav_loss, temperature=temperature, epsilon=epsilon, num_iterations=num_iterations
        )

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        h = together(self.encoder, views)
        z = self.projector(torch.cat(h)).chunk(len(views))
        scores = self.prototypes(torch.cat(z)).chunk(len(views))  # of each view [N, P]
        num_large = len(views) - self.crops
        self.z = [view.detach() for view in z[:num_large]]
        return Output(
            self.loss(scores[:num_large], scores[num_large:], self._queued()), h[0], z[0], z[1]
        )

    @torch.no_grad()
    def _queued(self) -> list[Tensor]:
        """Scores of earlier samples; each device brings its part."""
        return (
            [self.prototypes(own(queue.keys)) for queue in self.queues]
            if self.epoch >= self.queue_from_epoch
            else []
        )

    def policy(self, recipe: Policy) -> Policy:
        return multicrop(recipe, num_local=self.crops) if self.crops else recipe

    def before_step(self) -> None:
        if self.epoch < self.frozen_epochs:
            self.prototypes.weight.grad = None  # optimizers pass over it, weight decay included

    def after_step(self) -> None:
        for queue, z in zip(self.queues, self.z, strict=False):
            queue.push(z)
