"""Turn views into a loss: x views, h features [N, F], z projections [N, K], p predictions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, groupby, islice
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.errors import UserError
from smi.losses import Terms
from smi.losses.loss_range import valid_range
from smi.methods.description import LossRange, MethodDescription
from smi.nn import Encoder, mlp
from smi.views import Policy, multicrop


@dataclass(frozen=True)
class Output:
    """Hold the result of a step: the loss with its terms, and features for statistics."""

    terms: Terms
    h: Tensor  # [N, F], features of one view
    z1: Tensor  # [N, K], each row should agree with that of z2
    z2: Tensor

    @property
    def loss(self) -> Tensor:
        """Return the scalar to minimise."""
        return self.terms.total


@dataclass(frozen=True)
class LossSetup:
    """Hold the sizes and settings that decide which values a loss can take."""

    batch_size: int  # N, on each device
    embedding_dim: int | None  # K
    world_size: int = 1
    num_views: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method


class Method(nn.Module):
    """Hold an objective with its networks and its state.

    To write a method, define `__init__`, `embed` and `objective` in a subclass; one with a teacher
    also defines `targets`. A method that defines `forward` instead works too, but cannot split its
    batch (`accumulate`). Settings are keyword arguments of `__init__` with a type and a default:
    the command line finds them there (`--method.momentum 0.99`). A setting `num_images` receives
    the number of training images.

    The training loop sets `progress`, the share of training that is done, and `epoch` before each
    forward pass. A forward pass that reads them is compiled again whenever they change: a method
    that needs them there makes them properties, and their setters decide what `forward` reads.

    The class attributes describe the method to `smi list methods` and to the health checks. Their
    defaults suit an unknown method.
    """

    display_name: ClassVar[str] = ""  # for people; default: the name of the class
    paper: ClassVar[str] = ""  # authors, year and arXiv number
    shared_network: ClassVar[bool] = True  # both views go through the same weights
    momentum_encoder: ClassVar[bool] = False
    stored: ClassVar[str] = ""  # state made of earlier samples: "queue", "memory bank", ...
    gathers: ClassVar[bool] = False  # embeddings or codes are exchanged between devices
    local: ClassVar[bool] = False  # the published loss is the mean of the devices' own losses
    multicrop: ClassVar[bool] = False  # small views beside the large ones, by default
    synchronises_batch_norm: ClassVar[bool] = False  # between devices, as published
    exported_encoder: ClassVar[str] = MethodDescription.exported_encoder
    schedule: ClassVar[Literal["cosine", "step"]] = "cosine"  # unless a recipe names another

    # For the health checks; `MethodDescription` says what they mean.
    loss_may_rise: ClassVar[bool] = MethodDescription.loss_may_rise
    least_loss_is_collapse: ClassVar[bool] = MethodDescription.least_loss_is_collapse
    ignores_sign: ClassVar[bool] = MethodDescription.ignores_sign
    collapse_remedies: ClassVar[str] = MethodDescription.collapse_remedies
    low_rank_remedies: ClassVar[str] = MethodDescription.low_rank_remedies

    progress: float = 0.0
    epoch: int = 0

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        if "display_name" not in vars(cls):
            cls.display_name = cls.__name__

    def forward(self, views: Sequence[Tensor], batch: Batch) -> Output:
        """Return the loss of a batch.

        views: the views of `policy`, each [N, 3, S, S].
        batch: the indices of the images, and a seed for everything random.
        """
        return self.objective((*self.embed(views), *self.targets(views)), batch)

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return everything that is learned from: tensors with a row per image.

        All parameters are used here, and none in `objective`. So a large batch can be embedded in
        parts.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither embed nor forward")

    def targets(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs of a teacher, without a gradient: tensors with a row per image."""
        return ()

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the loss of the tensors of `embed`, followed by those of `targets`."""
        raise NotImplementedError(f"{type(self).__name__} does not define objective")

    def policy(self, recipe: Policy) -> Policy:
        """Return the views of this method, made from those of the recipe."""
        return recipe

    def before_step(self) -> None:
        """Change gradients before the optimizer, for example to freeze a layer in an epoch."""

    def after_step(self) -> None:
        """Update state after the optimizer, for example the teacher."""

    @classmethod
    def loss_range(cls, setup: LossSetup) -> LossRange | None:
        """Return the lowest possible loss and the loss of random embeddings, or None.

        A run that learns goes from about the second towards the first. None means unknown.
        """
        return None

    @classmethod
    def describe(cls, setup: LossSetup) -> dict[str, Any]:
        """Return the description of the method for the health checks, ready for JSON."""
        return MethodDescription(
            display_name=cls.display_name,
            exported_encoder=cls.exported_encoder,
            loss_range=cls._checked_range(setup),
            loss_may_rise=cls.loss_may_rise,
            least_loss_is_collapse=cls.least_loss_is_collapse,
            ignores_sign=cls.ignores_sign,
            collapse_remedies=cls.collapse_remedies,
            low_rank_remedies=cls.low_rank_remedies,
        ).plain()

    @classmethod
    def _checked_range(cls, setup: LossSetup) -> LossRange | None:
        if setup.batch_size < 1:
            return None
        try:
            return valid_range(cls.loss_range(setup))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # settings that the loss refuses, or that a subclass does not have

    @classmethod
    def _setting(cls, setup: LossSetup, name: str) -> float:
        """Return a numeric setting of a run, or its default in the signature of the method."""
        value = setup.settings.get(name)
        return float(settings_of(cls)[name].default if value is None else value)


def settings_of(method: type[Method]) -> dict[str, inspect.Parameter]:
    """Return the settings of a method: the keyword arguments of its __init__."""
    return {
        name: parameter
        for name, parameter in inspect.signature(method.__init__, eval_str=True).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def together(network: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of each view, with one pass for all neighbouring views of one size.

    There are many small views, and batch norms see all of them together.
    """
    groups = [list(group) for _, group in groupby(views, key=lambda x: x.shape[-1])]
    return [outputs for group in groups for outputs in network(torch.cat(group)).chunk(len(group))]


class PairwiseMethod(Method):
    """Compare the projections of two or more views, every pair of them.

    loss: a function of the projections [N, K] of all views.
    widths: of the projector's layers. views: large views of each image. crops: small ones.
    """

    def __init__(
        self,
        encoder: Encoder,
        loss: Callable[..., Terms],
        *,
        widths: tuple[int, ...],
        views: int,
        crops: int,
    ):
        super().__init__(encoder)
        if views < 2:
            raise UserError(f"method.views must be 2 or more, not {views}")
        self.projector = mlp(encoder.dim, *widths)
        self.loss = loss
        self.views = views
        self.crops = crops

    def embed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return features of the first view, and projections of all views."""
        h = self._one_by_one(self.encoder, views)
        return h[0], *self._one_by_one(self.projector, h)

    def _one_by_one(self, network: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of each view: a pass for each large view, and one for all small ones.

        Batch norms see one large view at a time.
        """
        large = [network(x) for x in views[: self.views]]
        return large + together(network, views[self.views :])

    def objective(self, embeddings: tuple[Tensor, ...], batch: Batch) -> Output:
        """Return the loss of all views."""
        h, *z = embeddings
        return Output(self.loss(*z), h, z[0], z[1])

    def policy(self, recipe: Policy) -> Policy:
        """Return the large views of the recipe in turn, and small ones.

        Two large views and no small ones are the recipe itself.
        """
        if self.views != len(recipe.views):
            recipe = replace(recipe, views=tuple(islice(cycle(recipe.views), self.views)))
        return multicrop(recipe, num_local=self.crops) if self.crops else recipe
