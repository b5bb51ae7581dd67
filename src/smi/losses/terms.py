"""Return a loss as named, already weighted terms and their total."""

from torch import Tensor


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
