"""Train with MoCo: find the teacher's key of the other view in a queue of earlier keys."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from smi.data import Batch
from smi.distributed import shuffle, unshuffle, world_size
from smi.errors import UserError
from smi.losses import info_nce_loss
from smi.losses.info_nce import TEMPERATURE
from smi.losses.loss_range import cross_entropy_range
from smi.methods.base import LossSetup, Method, Output
from smi.methods.description import LossRange
from smi.nn import Ema, Encoder, Queue, mlp
from smi.views import Policy

TEACHER_MOMENTUM = 0.999
QUEUE_SIZE = 65536
KEY_PARTS = 8  # the authors' devices
MIN_PART_ROWS = 8  # fewer rows make poor batch norm statistics


class MoCo(Method):
    """Find the teacher's key of the other view in a queue of earlier keys.

    Version 1: a linear head, no blur. Batch norm statistics must not reveal which rows belong
    together. So queries pass in sub-batches, as on the authors' devices, and keys in other
    sub-batches, with rows from each of those. Several devices exchange the rows of the keys.

    widths: of the head's layers.
    momentum: the teacher's.
    queue_size: earlier keys, on all devices together.
    temperature: similarities are divided by it; lower makes the softmax sharper.
    key_parts: sub-batches on all devices together, for queries and for keys; fewer if they would
    have less than 8 rows. 1 does not divide the batch of a device.
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
        key_parts: int = KEY_PARTS,
    ):
        super().__init__(encoder)
        if key_parts < 1:
            raise UserError(f"method.key_parts must be 1 or more, not {key_parts}")
        self.projector = mlp(encoder.dim, *widths, norm=False, bias=True)
        self.teacher = Ema(encoder, self.projector)
        self.queue = Queue(queue_size, widths[-1])
        self.momentum = momentum
        self.key_parts = key_parts
        self.loss = partial(info_nce_loss, temperature=temperature)

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features and the query of the first view."""
        x = views[0]
        h = torch.cat([self.encoder(part) for part in x.tensor_split(self._num_parts(len(x)))])
        return h, self.projector(h)

    def targets(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the teacher's key of the second view."""
        x = shuffle(views[1])
        return (unshuffle(self._keys(x, self._num_parts(len(x)))),)

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return InfoNCE of the first view's query and the teacher's key of the second."""
        h, query, self.key = embeddings
        return Output(self.loss(query, self.key, self.queue.keys), h, query, self.key)

    def _num_parts(self, num_rows: int) -> int:
        """Return into how many sub-batches this device divides its rows."""
        return max(1, min(self.key_parts // world_size(), num_rows // MIN_PART_ROWS))

    def _keys(self, x: Tensor, parts: int) -> Tensor:
        """Return the keys of all rows, from sub-batches of every `parts`-th row.

        The order of images is random already, so the choice of rows need not be.
        """
        keys_of_parts = [self.teacher(x[part::parts]) for part in range(parts)]
        keys: Tensor = keys_of_parts[0].new_empty(len(x), keys_of_parts[0].shape[1])
        for part, key in enumerate(keys_of_parts):
            keys[part::parts] = key
        return keys

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
    temperature: similarities are divided by it; lower makes the softmax sharper.
    key_parts: sub-batches on all devices together, for queries and for keys; fewer if they would
    have less than 8 rows. 1 does not divide the batch of a device.
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
        key_parts: int = KEY_PARTS,
    ):
        super().__init__(
            encoder,
            widths=widths,
            temperature=temperature,
            momentum=momentum,
            queue_size=queue_size,
            key_parts=key_parts,
        )

    def policy(self, recipe: Policy) -> Policy:
        """Return the views of the recipe, blur included."""
        return recipe
