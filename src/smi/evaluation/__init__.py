"""Measure how good features are: nearest neighbours, linear classifiers, few labels, fine-tuning.

from smi.evaluation import extract_labelled, knn_accuracy

The names below are imported when they are first used: reading stored results needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smi.evaluation.features import FeatureSplits as FeatureSplits
    from smi.evaluation.features import batches_of_features as batches_of_features
    from smi.evaluation.features import extract as extract
    from smi.evaluation.features import extract_labelled as extract_labelled
    from smi.evaluation.features import pixels as pixels
    from smi.evaluation.fewshot import FewShot as FewShot
    from smi.evaluation.fewshot import few_shot as few_shot
    from smi.evaluation.finetune import FineTuned as FineTuned
    from smi.evaluation.finetune import fine_tune as fine_tune
    from smi.evaluation.knn import KnnResult as KnnResult
    from smi.evaluation.knn import knn_accuracy as knn_accuracy
    from smi.evaluation.knn import knn_predict as knn_predict
    from smi.evaluation.knn import knn_votes as knn_votes
    from smi.evaluation.knn import nearest as nearest
    from smi.evaluation.linear_sgd import Epoch as Epoch
    from smi.evaluation.linear_sgd import LinearTraining as LinearTraining
    from smi.evaluation.linear_sgd import Task as Task
    from smi.evaluation.linear_sgd import Training as Training
    from smi.evaluation.linear_sgd import light as light
    from smi.evaluation.linear_sgd import train_linear as train_linear
    from smi.evaluation.logistic import LinearClassifier as LinearClassifier
    from smi.evaluation.logistic import LinearResult as LinearResult
    from smi.evaluation.logistic import choose_l2 as choose_l2
    from smi.evaluation.logistic import fit_linear as fit_linear
    from smi.evaluation.logistic import linear_accuracy as linear_accuracy

_MODULES = {
    "features": (
        "FeatureSplits",
        "batches_of_features",
        "extract",
        "extract_labelled",
        "pixels",
    ),
    "fewshot": ("FewShot", "few_shot"),
    "finetune": ("FineTuned", "fine_tune"),
    "knn": ("KnnResult", "knn_accuracy", "knn_predict", "knn_votes", "nearest"),
    "linear_sgd": ("Epoch", "LinearTraining", "Task", "Training", "light", "train_linear"),
    "logistic": ("LinearClassifier", "LinearResult", "choose_l2", "fit_linear", "linear_accuracy"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smi.evaluation' has no attribute {name!r}")
    return getattr(import_module(f"smi.evaluation.{_HOMES[name]}"), name)
