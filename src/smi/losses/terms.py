"""What a loss returns: its named, already weighted terms and their total."""

from torch import Tensor


class Terms(dict[str, Tensor]):
    """The weighted terms of a loss by name (`terms.alignment`, `terms["alignment"]`) and `terms.total`, what to call `backward` on."""

    def __init__(self, total: Tensor | None = None, /, **terms: Tensor):
        super().__init__(terms)
        first, *rest = terms.values()
        self.total = sum(rest, first) if total is None else total

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no term {name!r} here; this loss has {', '.join(self)}"
            ) from None
