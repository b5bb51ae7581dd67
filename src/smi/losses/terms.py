"""Return a loss as named, already weighted terms and their total."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


class Terms(dict[str, Tensor]):
    """Hold the weighted terms of a loss by name; call `backward` on `terms.total`.

    A term is an attribute or an item: `terms.alignment` is `terms["alignment"]`.
    """

    def __init__(self, total: Tensor | None = None, /, **terms: Tensor):
        super().__init__(terms)
        first, *rest = terms.values()
        self.total = sum(rest, first) if total is None else total

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"this loss has no term {name!r}; its terms are {', '.join(self)}"
            ) from None


def _flatten(terms: Terms) -> tuple[list[Any], tuple[str, ...]]:
    return [terms.total, *terms.values()], tuple(terms)


def _unflatten(values: Iterable[Any], names: tuple[str, ...]) -> Terms:
    total, *parts = values
    terms = Terms.__new__(Terms)  # vmap also builds trees of other things than tensors
    terms.update(zip(names, parts, strict=True))
    terms.total = total
    return terms


# So that a function which returns terms can be given to torch.func and torch.export.
pytree.register_pytree_node(
    Terms, _flatten, _unflatten, serialized_type_name="smi.losses.terms.Terms"
)
