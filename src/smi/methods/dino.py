"""DINO: a slow teacher's distribution over many outputs, foretold from other views."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.losses import dino_loss
from smi.methods.base import Method, Output, together
from smi.nn import Center, Ema, Encoder, Prototypes, mlp
from smi.optim import cosine
from smi.views import Policy, multicrop


class DINO(Method):
    """Foretell from each view a slow teacher's distribution over outputs for each large one; its centring and sharpness prevent collapse.

    widths: the head's up to its bottleneck, behind which come length 1 and a layer of unit vectors to `num_outputs`.
    norm: batch norm in the head, an option of the authors: short runs of small encoders do not get off the ground without it.
    crops: small views beside the large ones; 0 for none.
    momentum: the teacher's, at the start; it rises to 1 with half a cosine.
    teacher_temperature, first_teacher_temperature, warmup: it rises from the first over this share of training.
    frozen_epochs: the first ones, in which the last layer stays.
    """

    paper = "Caron et al. 2021, arXiv:2104.14294"
    shared_network = False
    momentum_encoder = True
    stored = "centre"
    multicrop = True

    taught: list[Tensor]  # of the step under way: the teacher's outputs [N, D] for each large view

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 2048, 256),
        norm: bool = False,
        num_outputs: int = 65536,
        crops: int = 8,
        momentum: float = 0.996,
        center_momentum: float = 0.9,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.07,
        first_teacher_temperature: float = 0.04,
        warmup: float = 0.1,
        frozen_epochs: int = 1,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths, norm=norm, bias=True, activation=nn.GELU)
        self.last = Prototypes(widths[-1], num_outputs)
        self.teacher, self.teacher_last = Ema(encoder, self.projector), Ema(self.last)
        self.center = Center(num_outputs, momentum=center_momentum)
        self.crops, self.momentum, self.frozen_epochs = crops, momentum, frozen_epochs
        self.temperatures, self.warmup = (first_teacher_temperature, teacher_temperature), warmup
        self.loss = partial(dino_loss, student_temperature=student_temperature)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        large = views[: len(views) - self.crops]
        h = together(self.encoder, views)
        z = self.projector(torch.cat(h)).chunk(len(views))
        outputs = self.last(torch.cat(z)).chunk(len(views))  # of each view [N, D]
        targets = together(self.teacher, large)
        self.taught = [self.teacher_last(z_teacher) for z_teacher in targets]
        terms = self.loss(
            self.taught, outputs, self.center.mean, teacher_temperature=self._teacher_temperature()
        )
        return Output(terms, h[0], z[0], targets[1])

    def _teacher_temperature(self) -> float:
        first, last = self.temperatures
        return (
            first + (last - first) * min(1.0, self.progress / self.warmup) if self.warmup else last
        )

    def policy(self, recipe: Policy) -> Policy:
        return multicrop(recipe, num_local=self.crops) if self.crops else recipe

    def before_step(self) -> None:
        if self.epoch < self.frozen_epochs:
            self.last.weight.grad = None  # optimizers pass over it, weight decay included

    def after_step(self) -> None:
        self.center.update(self.taught)
        momentum = cosine(self.momentum, 1.0, self.progress)
        self.teacher.follow(self.encoder, self.projector, momentum=momentum)
        self.teacher_last.follow(self.last, momentum=momentum)
