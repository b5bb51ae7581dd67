"""How views become a loss. x views, h features [N, F], z projections [N, K], p predictions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.losses import Terms
from smi.nn import Encoder
from smi.views import Policy


@dataclass(frozen=True)
class Output:
    """What a step gives: the loss and its terms, and what statistics are made of."""

    terms: Terms
    h: Tensor  # [N, F], features of one view
    z1: Tensor  # [N, K], what is to agree:
    z2: Tensor  # row by row with this

    @property
    def loss(self) -> Tensor:
        return self.terms.total


class Method(nn.Module, ABC):
    """An objective with the networks and the state it needs. To write your own, give `__init__` and `forward`.

    Settings are keyword arguments of `__init__` with a type and a default: the command line finds them there (`--method.momentum 0.99`).
    One called num_images is given the number of training images. The loop sets `progress`, the share of training that is done, and `epoch`
    before each forward pass.
    """

    paper: ClassVar[str] = ""  # who proposed it, when and where
    shared_network: ClassVar[bool] = True  # both views go through the same weights
    momentum_encoder: ClassVar[bool] = False
    stored: ClassVar[str] = ""  # what it keeps of earlier samples: "queue", "memory bank", ...
    gathers: ClassVar[bool] = False  # embeddings or codes are exchanged between devices
    multicrop: ClassVar[bool] = False  # small views beside the large ones, by default
    schedule: ClassVar[Literal["cosine", "step"]] = (
        "cosine"  # of the learning rate, unless a recipe names one
    )

    progress: float = 0.0
    epoch: int = 0

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        """views: what `policy` asks for, each [N, 3, S, S]. batch: which images these are, and a seed for what is drawn."""

    def policy(self, recipe: Policy) -> Policy:
        """The views this method wants, made from those of the recipe."""
        return recipe

    def before_step(self) -> None:
        """Between the gradients and the optimizer, for instance to hold a layer back in the first epoch."""

    def after_step(self) -> None:
        """After the optimizer, for instance to move a teacher."""


def together(network: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
    """Each view's outputs, by one pass for all neighbours of one size: small views are many, and batch norms see them at once."""
    groups = [list(group) for _, group in groupby(views, key=lambda x: x.shape[-1])]
    return [outputs for group in groups for outputs in network(torch.cat(group)).chunk(len(group))]
