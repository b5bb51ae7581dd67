"""MoCo: a slow teacher's key of the other view told from a queue of earlier keys."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from smi.data import Batch
from smi.distributed import shuffle, unshuffle
from smi.losses import info_nce_loss
from smi.methods.base import Method, Output
from smi.nn import Ema, Encoder, Queue, mlp
from smi.views import Policy


class MoCo(Method):
    """Tell the slow teacher's key of the other view from a queue of earlier keys. Version 1: a linear head, no blur.

    On several devices keys are made among rows of all of them, so that batch norms do not give the answer away.
    """

    paper = "He et al. 2020, arXiv:1911.05722"
    shared_network = False
    momentum_encoder = True
    stored = "queue"
    gathers = True
    schedule: ClassVar[Literal["cosine", "step"]] = "step"

    key: Tensor  # of the step under way, [N, K]

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (128,),
        temperature: float = 0.07,
        momentum: float = 0.999,
        queue_size: int = 65536,
    ):
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, *widths, norm=False, bias=True)
        self.teacher = Ema(encoder, self.projector)
        self.queue = Queue(queue_size, widths[-1])
        self.momentum = momentum
        self.loss = partial(info_nce_loss, temperature=temperature)

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        x1, x2 = views
        h = self.encoder(x1)
        query = self.projector(h)
        self.key = unshuffle(self.teacher(shuffle(x2)))
        return Output(self.loss(query, self.key, self.queue.keys), h, query, self.key)

    def policy(self, recipe: Policy) -> Policy:
        return replace(recipe, views=tuple(replace(view, blur_p=0.0) for view in recipe.views))

    def after_step(self) -> None:
        self.queue.push(self.key)
        self.teacher.follow(self.encoder, self.projector, momentum=self.momentum)


class MoCoV2(MoCo):
    """MoCo with what it took from SimCLR: a head of two layers, blur, and a learning rate that falls with a cosine."""

    paper = "Chen et al. 2020, arXiv:2003.04297"
    schedule = "cosine"

    def __init__(
        self,
        encoder: Encoder,
        *,
        widths: tuple[int, ...] = (2048, 128),
        temperature: float = 0.2,
        momentum: float = 0.999,
        queue_size: int = 65536,
    ):
        super().__init__(
            encoder,
            widths=widths,
            temperature=temperature,
            momentum=momentum,
            queue_size=queue_size,
        )

    def policy(self, recipe: Policy) -> Policy:
        return recipe
