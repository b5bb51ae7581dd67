"""Hold the context of the health checks: sizes of a run, its method's description, its start."""

from dataclasses import dataclass, field

from smi.methods.description import MethodDescription


@dataclass(frozen=True)
class Context:
    """Hold the sizes of a run, the description of its method, and the weights it started from.

    Without `epochs`, the number of lines decides how far a run is.
    """

    method: str  # as the configuration names it
    batch_size: int  # N, on each device
    embedding_dim: int | None  # K
    feature_dim: int  # F
    epochs: float | None = None
    description: MethodDescription = field(default_factory=MethodDescription)
    started_from: str | None = None  # None: from scratch, or unknown
    statistics: str | None = None  # of the batch norms of these weights: keep or update
    select: str | None = None  # the encoder to export: last or best
    kept: str = ""  # which encoder is the best so far, in words; empty if unknown
