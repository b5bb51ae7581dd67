"""How good features are: for nearest neighbours, a linear classifier, few labels. Nothing here knows how they were learnt."""

from smi.evaluate.features import batches_of_features, extract, extract_labelled, pixels
from smi.evaluate.fewshot import FewShot, few_shot
from smi.evaluate.finetune import FineTuned, fine_tune
from smi.evaluate.knn import Neighbours, knn_accuracy, knn_predict, knn_votes
from smi.evaluate.linear import LinearClassifier, LinearResult, choose_l2, fit_linear, linear_accuracy
from smi.evaluate.sgd import Epoch, Trained, light, train_linear

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
