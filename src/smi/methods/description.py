"""Define the description of a method, for users and for the health checks, without torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

LossRange = tuple[float, float]  # the lowest possible loss, and the loss of random embeddings


@dataclass(frozen=True)
class MethodDescription:
    """Describe a method to the health checks and to its run; defaults suit an unknown method."""

    display_name: str = ""
    exported_encoder: str = "encoder"  # the part of the method that a run saves and exports
    loss_range: LossRange | None = None
    loss_may_rise: bool = True  # in a run that learns: teachers and queues can cause it
    least_loss_is_collapse: bool = False  # equal embeddings give the least loss
    ignores_sign: bool = False  # opposite views of an image count as aligned
    collapse_remedies: str = (
        "Lower the learning rate, and check that nothing rewards equal outputs."
    )
    low_rank_remedies: str = (
        "Use a larger batch, a wider projector or a lower learning rate. Objectives that "
        "decorrelate coordinates or samples (SMI, BarlowTwins, VICReg) suffer least from it."
    )

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self) | {"loss_range": list(self.loss_range) if self.loss_range else None}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> "MethodDescription":
        """Read `plain()` back; missing or malformed fields have their defaults."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = plain.get(field.name)
            if field.name == "loss_range":
                values[field.name] = _parse_range(value)
            elif isinstance(value, type(field.default)):
                values[field.name] = value
        return cls(**values)


def _parse_range(value: Any) -> LossRange | None:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    if not all(isinstance(limit, int | float) and math.isfinite(limit) for limit in value):
        return None
    return (float(value[0]), float(value[1])) if value[0] < value[1] else None
