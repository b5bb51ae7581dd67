"""Semantic Mutual Information: self-supervised pretraining on modest hardware."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smi.losses import SMILoss as SMILoss
    from smi.runs.encoder import load as load
    from smi.runs.run import Run as Run
    from smi.training.pretrain import pretrain as pretrain

__version__ = "0.1.0"

# Loaded when first asked for: the command line answers without waiting for torch.
_HOMES = {
    "Run": "smi.runs.run",
    "SMILoss": "smi.losses",
    "data": "",
    "load": "smi.runs.encoder",
    "losses": "",
    "methods": "",
    "nn": "",
    "pretrain": "smi.training.pretrain",
    "views": "",
}

__all__ = [
    "Run",
    "SMILoss",
    "__version__",
    "data",
    "load",
    "losses",
    "methods",
    "nn",
    "pretrain",
    "views",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smi' has no attribute {name!r}")
    return (
        getattr(import_module(_HOMES[name]), name) if _HOMES[name] else import_module(f"smi.{name}")
    )


def __dir__() -> list[str]:
    return __all__
