"""How good features are: for nearest neighbours, a linear classifier, few labels. Nothing here knows how they were learnt."""

from smi.evaluation.features import batches_of_features, extract, extract_labelled, pixels
from smi.evaluation.fewshot import FewShot, few_shot
from smi.evaluation.finetune import FineTuned, fine_tune
from smi.evaluation.knn import Neighbours, knn_accuracy, knn_predict, knn_votes
from smi.evaluation.linear_sgd import Epoch, Trained, light, train_linear
from smi.evaluation.logistic import (
    LinearClassifier,
    LinearResult,
    choose_l2,
    fit_linear,
    linear_accuracy,
)

__all__ = [
    "Epoch",
    "FewShot",
    "FineTuned",
    "LinearClassifier",
    "LinearResult",
    "Neighbours",
    "Trained",
    "batches_of_features",
    "choose_l2",
    "extract",
    "extract_labelled",
    "few_shot",
    "fine_tune",
    "fit_linear",
    "knn_accuracy",
    "knn_predict",
    "knn_votes",
    "light",
    "linear_accuracy",
    "pixels",
    "train_linear",
]
