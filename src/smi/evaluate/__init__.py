"""How good features are: for nearest neighbours, a linear classifier, few labels. Nothing here knows how they were learnt."""

from smi.evaluate.features import extract, extract_labelled, pixels
from smi.evaluate.knn import Neighbours, knn_accuracy, knn_predict, knn_votes

__all__ = ["Neighbours", "extract", "extract_labelled", "knn_accuracy", "knn_predict", "knn_votes", "pixels"]
