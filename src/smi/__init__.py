"""Semantic Mutual Information: self-supervised pretraining on modest hardware.

run = smi.pretrain(data="~/photos", out="runs/mine")
encoder = smi.load("runs/mine")
loss = smi.SMILoss()(z1, z2)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smi import data as data
    from smi import losses as losses
    from smi import methods as methods
    from smi import nn as nn
    from smi import views as views
    from smi.comparison.compare import compare as compare
    from smi.device import Runtime as Runtime
    from smi.evaluation.evaluate import evaluate as evaluate
    from smi.health.diagnosis import diagnose as diagnose
    from smi.imports import trust as trust
    from smi.inference.classifier import load_classifier as load_classifier
    from smi.inference.classify import classify as classify
    from smi.inference.embed import embed as embed
    from smi.inference.export import export as export
    from smi.inference.neighbours import neighbours as neighbours
    from smi.losses import SMILoss as SMILoss
    from smi.paper.reproduce import reproduce as reproduce
    from smi.reporting.report import report as report
    from smi.runs.encoder import load as load
    from smi.runs.run import Run as Run
    from smi.training.pretrain import pretrain as pretrain

__version__ = "0.1.0"

# Imported on first use: `import smi` and the command line do not wait for torch.
_MODULES = {
    "Run": "runs.run",
    "Runtime": "device",
    "SMILoss": "losses",
    "classify": "inference.classify",
    "compare": "comparison.compare",
    "diagnose": "health.diagnosis",
    "embed": "inference.embed",
    "evaluate": "evaluation.evaluate",
    "export": "inference.export",
    "load": "runs.encoder",
    "load_classifier": "inference.classifier",
    "neighbours": "inference.neighbours",
    "pretrain": "training.pretrain",
    "report": "reporting.report",
    "reproduce": "paper.reproduce",
    "trust": "imports",
}
_PACKAGES = ("data", "losses", "methods", "nn", "views")

__all__ = [*sorted(_MODULES), "__version__", *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"smi.{name}")
    if name in _MODULES:
        return getattr(import_module(f"smi.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'smi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
