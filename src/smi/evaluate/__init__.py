"""How good features are: for nearest neighbours, a linear classifier, few labels. Nothing here knows how they were learnt."""

from smi.evaluate.features import extract, extract_labelled, pixels

__all__ = ["extract", "extract_labelled", "pixels"]
