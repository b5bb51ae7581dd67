"""Train with DINO: predict the distribution of a slowly moving teacher from other views."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.losses import dino_loss
from smi.losses.dino import STUDENT_TEMPERATURE, TEACHER_TEMPERATURE
from smi.losses.numerics import check_positive
from smi.methods.base import LossSetup, Method, Output, together
from smi.methods.description import LossRange
from smi.nn import Center, Ema, Encoder, Prototypes, mlp
from smi.nn.center import CENTER_MOMENTUM
from smi.optim import cosine
from smi.views import Policy, multicrop


class DINO(Method):
    """Predict the teacher's distribution over outputs for each large view from every other view.

    Centring and sharpening the distribution prevent collapse. The teacher's encoder is exported.

    widths: of the head's layers up to its bottleneck. After them, embeddings are scaled to length 1
    and compared with `num_outputs` unit vectors.
    norm: batch norm in the head, an option of the authors. Short runs of small encoders do not
    learn without it.
    crops: small views beside the large ones; 0 for none.
    num_outputs: size of the distribution.
    student_temperature: outputs are divided by it; lower makes the softmax sharper.
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
    exported_encoder = "teacher.network.0"
    collapse_remedies = (
        "Lower the teacher's temperature (0.04), bring its momentum nearer to 1, or lower the "
        "learning rate."
    )

    teacher_outputs: list[Tensor]  # of the current step, [N, D] for each large view
    temperature: Tensor  # of the teacher, at the current progress

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
        check_positive(
            teacher_temperature=teacher_temperature,
            first_teacher_temperature=first_teacher_temperature,
        )
        self.projector = mlp(encoder.dim, *widths, norm=norm, bias=True, activation=nn.GELU)
        self.last = Prototypes(widths[-1], num_outputs)
        self._initialise()
        self.teacher = Ema(encoder, self.projector)
        self.teacher_last = Ema(self.last)
        self.center = Center(num_outputs, momentum=center_momentum)
        self.crops = crops
        self.momentum = momentum
        self.frozen_epochs = frozen_epochs
        self.teacher_temperatures = (first_teacher_temperature, teacher_temperature)
        self.warmup = warmup
        self.loss = partial(dino_loss, student_temperature=student_temperature)
        self.register_buffer("temperature", torch.zeros(()), persistent=False)
        self.progress = 0.0

    def _initialise(self) -> None:
        """Draw the weights of the head as the authors do."""
        for layer in self.projector:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        # PyTorch's default. Only directions count, but shorter vectors turn faster.
        nn.init.kaiming_uniform_(self.last.weight, a=math.sqrt(5))

    @property
    def progress(self) -> float:
        """Return the share of training that is done."""
        return self._progress

    @progress.setter
    def progress(self, progress: float) -> None:
        """Set the temperature too, as a tensor: compiled code would depend on a number."""
        self._progress = progress
        first, last = self.teacher_temperatures
        share = min(1.0, progress / self.warmup) if self.warmup else 1.0
        self.temperature.fill_(first + (last - first) * share)

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features and the embedding of the first view, and outputs of all views."""
        h = together(self.encoder, views)
        z = self.projector(torch.cat(h)).chunk(len(views))
        outputs = self.last(torch.cat(z)).chunk(len(views))  # [N, D] for each view
        return h[0], z[0], *outputs

    def targets(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the teacher's outputs of the large views, and its embedding of the second."""
        z = together(self.teacher, views[: len(views) - self.crops])
        return *(self.teacher_last(z_teacher) for z_teacher in z), z[1]

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the cross-entropy between the teacher's and the student's distributions."""
        num_large = (len(embeddings) - 3 - self.crops) // 2
        h, z1, *outputs, z2 = embeddings
        self.teacher_outputs = outputs[-num_large:]
        terms = self.loss(
            self.teacher_outputs,
            outputs[:-num_large],
            self.center.mean,
            teacher_temperature=self.temperature,
        )
        return Output(terms, h, z1, z2)

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
