"""Make contexts of health checks as pretraining makes them."""

from typing import Any

from smi.health import Context
from smi.methods import LossSetup, MethodDescription, find_method


def make_context(
    name: str,
    batch_size: int,
    embedding_dim: int | None,
    feature_dim: int,
    *,
    world_size: int = 1,
    num_views: int = 2,
    epochs: float | None = None,
    **settings: Any,
) -> Context:
    """Return the context of a run with a method, by its name or import path."""
    setup = LossSetup(batch_size, embedding_dim, world_size, num_views, settings)
    description = MethodDescription.parse(find_method(name).describe(setup))
    return Context(name, batch_size, embedding_dim, feature_dim, epochs, description)
