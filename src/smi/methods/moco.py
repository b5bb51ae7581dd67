"""Train with MoCo: find the teacher's key of the other view in a queue of earlier keys."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from smi.data import Batch
from smi.distributed import shuffle, unshuffle
from smi.losses import info_nce_loss
from smi.losses.info_nce import TEMPERATURE
from smi.losses.loss_range import cross_entropy_range
from smi.methods.base import LossSetup, Method, Output
from smi.methods.description import LossRange
from smi.nn import Ema, Encoder, Queue, mlp
from smi.views import Policy

TEACHER_MOMENTUM = 0.999
QUEUE_SIZE = 65536


class MoCo(Method):
    """Find the teacher's key of the other view in a queue of earlier keys.

    Version 1: a linear head, no blur. Several devices exchange the rows from which they make keys,
    so that batch norm statistics do not reveal which rows belong together.

    widths: of the head's layers.
    momentum: the teacher's.
    queue_size: earlier keys, on all devices together.
    """

    display_name = "MoCo"
    paper = "He et al. 2020, arXiv:1911.05722"
    shared_network = False
    momentum_encoder = True
    stored = "queue"
    gathers = True
    schedule: ClassVar[Literal["cosine", "step"]] = "step"
    collapse_remedies = (
        "Bring the momentum nearer to 1 (0.999), use a longer queue, or lower the learning rate."
    )

    key: Tensor  # of the current step, [N, K]

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (128,),
        temperature: float = TEMPERATURE,
        momentum: float = TEACHER_MOMENTUM,
        queue_size: int = QUEUE_SIZE,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths, norm=False, bias=True)
        self.teacher = Ema(encoder, self.projector)
        self.queue = Queue(queue_size, widths[-1])
        self.momentum = momentum
        self.loss = partial(info_nce_loss, temperature=temperature)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        """Return InfoNCE of the first view's query and the teacher's key of the second."""
        x1, x2 = views
        h = self.encoder(x1)
        query = self.projector(h)
        self.key = unshuffle(self.teacher(shuffle(x2)))
        return Output(self.loss(query, self.key, self.queue.keys), h, query, self.key)

    def policy(self, recipe: Policy) -> Policy:
        """Return the views of the recipe without blur."""
        return replace(recipe, views=tuple(replace(view, blur_p=0.0) for view in recipe.views))

    def after_step(self) -> None:
        """Store the keys, and move the teacher towards the student."""
        self.queue.push(self.key)
        self.teacher.follow(self.encoder, self.projector, momentum=self.momentum)

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the range of a cross-entropy over the key and the queue."""
        num_negatives = int(cls._setting(setup, "queue_size"))
        if num_negatives < 1:
            return None
        temperature = cls._setting(setup, "temperature")
        return cross_entropy_range(num_negatives + 1, temperature, setup.embedding_dim)


class MoCoV2(MoCo):
    """Extend MoCo with ideas of SimCLR: a head of two layers, blur and a cosine schedule.

    widths: of the head's layers.
    momentum: the teacher's.
    queue_size: earlier keys, on all devices together.
    """

    display_name = "MoCo v2"
    paper = "Chen et al. 2020, arXiv:2003.04297"
    schedule = "cosine"

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 128),
        temperature: float = 0.2,
        momentum: float = TEACHER_MOMENTUM,
        queue_size: int = QUEUE_SIZE,
    ):
        super().__init__(
            encoder,
            widths=widths,
            temperature=temperature,
            momentum=momentum,
            queue_size=queue_size,
        )

    def policy(self, recipe: Policy) -> Policy:
        """Return the views of the recipe, blur included."""
        return recipe
