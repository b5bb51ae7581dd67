"""Train with DINO: predict the distribution of a slowly moving teacher from other views."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.losses import dino_loss
from smi.losses.dino import STUDENT_TEMPERATURE, TEACHER_TEMPERATURE
from smi.methods.base import LossSetup, Method, Output, together
from smi.methods.description import LossRange
from smi.nn import Center, Ema, Encoder, Prototypes, mlp
from smi.nn.center import CENTER_MOMENTUM
from smi.optim import cosine
from smi.views import Policy, multicrop


class DINO(Method):
    """Predict the teacher's distribution over outputs for each large view from every other view.

    Centring and sharpening the distribution prevent collapse.

    widths: of the head's layers up to its bottleneck. After them, embeddings are scaled to length 1
    and compared with `num_outputs` unit vectors.
    norm: batch norm in the head, an option of the authors. Short runs of small encoders do not
    learn without it.
    crops: small views beside the large ones; 0 for none.
    momentum: the teacher's at the start; it rises to 1 along half a cosine.
    center_momentum: of the mean that is subtracted from the teacher's outputs.
    teacher_temperature, first_teacher_temperature, warmup: the temperature rises from the first
    value to the final one over this share of training.
    frozen_epochs: epochs at the start in which the last layer does not change.
    """

    display_name = "DINO"
    paper = "Caron et al. 2021, arXiv:2104.14294"
    shared_network = False
    momentum_encoder = True
    stored = "centre"
    multicrop = True
    synchronises_batch_norm = True
    collapse_remedies = (
        "Lower the teacher's temperature (0.04), bring its momentum nearer to 1, or lower the "
        "learning rate."
    )

    teacher_outputs: list[Tensor]  # of the current step, [N, D] for each large view

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 2048, 256),
        norm: bool = False,
        num_outputs: int = 65536,
        crops: int = 8,
        momentum: float = 0.996,
        center_momentum: float = CENTER_MOMENTUM,
        student_temperature: float = STUDENT_TEMPERATURE,
        teacher_temperature: float = 0.07,
        first_teacher_temperature: float = TEACHER_TEMPERATURE,
        warmup: float = 0.1,
        frozen_epochs: int = 1,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths, norm=norm, bias=True, activation=nn.GELU)
        self.last = Prototypes(widths[-1], num_outputs)
        self.teacher = Ema(encoder, self.projector)
        self.teacher_last = Ema(self.last)
        self.center = Center(num_outputs, momentum=center_momentum)
        self.crops = crops
        self.momentum = momentum
        self.frozen_epochs = frozen_epochs
        self.teacher_temperatures = (first_teacher_temperature, teacher_temperature)
        self.warmup = warmup
        self.loss = partial(dino_loss, student_temperature=student_temperature)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        """Return the cross-entropy between the teacher's and the student's distributions."""
        large = views[: len(views) - self.crops]
        h = together(self.encoder, views)
        z = self.projector(torch.cat(h)).chunk(len(views))
        outputs = self.last(torch.cat(z)).chunk(len(views))  # [N, D] for each view
        targets = together(self.teacher, large)
        self.teacher_outputs = [self.teacher_last(z_teacher) for z_teacher in targets]
        terms = self.loss(
            self.teacher_outputs,
            outputs,
            self.center.mean,
            teacher_temperature=self._teacher_temperature(),
        )
        return Output(terms, h[0], z[0], targets[1])

    def _teacher_temperature(self) -> float:
        """Return the temperature at the current progress of training."""
        first, last = self.teacher_temperatures
        if not self.warmup:
            return last
        return first + (last - first) * min(1.0, self.progress / self.warmup)

    def policy(self, recipe: Policy) -> Policy:
        """Return the views of the recipe and small ones."""
        return multicrop(recipe, num_local=self.crops) if self.crops else recipe

    def before_step(self) -> None:
        """Freeze the last layer in the first epochs."""
        if self.epoch < self.frozen_epochs:
            # Optimizers skip a parameter without a gradient, weight decay included.
            self.last.weight.grad = None

    def after_step(self) -> None:
        """Update the centre, and move the teacher towards the student."""
        self.center.update(self.teacher_outputs)
        momentum = cosine(self.momentum, 1.0, self.progress)
        self.teacher.follow(self.encoder, self.projector, momentum=momentum)
        self.teacher_last.follow(self.last, momentum=momentum)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return 0 and the entropy of an even choice: outputs have no bounds."""
        num_outputs = int(cls._setting(setup, "num_outputs"))
        return (0.0, math.log(num_outputs)) if num_outputs > 1 else None
