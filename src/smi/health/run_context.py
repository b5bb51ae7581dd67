"""Hold the context of the health checks: the sizes of a run and its method's description."""

from dataclasses import dataclass, field

from smi.methods.description import MethodDescription


@dataclass(frozen=True)
class Context:
    """Hold the sizes of a run and the description of its method.

    Without `epochs`, the number of lines decides how far a run is.
    """

    method: str  # as the configuration names it
    batch_size: int  # N, on each device
    embedding_dim: int | None  # K
    feature_dim: int  # F
    epochs: float | None = None
    description: MethodDescription = field(default_factory=MethodDescription)
