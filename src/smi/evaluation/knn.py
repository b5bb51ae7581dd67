"""Weighted nearest neighbours (Wu et al. 2018; k and temperature as DINO's). n rows in the bank, m queries, F coordinates, C classes.

result = knn_accuracy(train_h, train_labels, test_h, test_labels)
result.top1, result.protocol
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from smi.errors import UserError
from smi.evaluation.accuracy import check, top_k
from smi.losses.embeddings import unit_rows

QUERIES, ROWS = (
    512,
    16384,
)  # of one tile of similarities: 33 MB, and products that keep the processor busy
GROUP = 16  # rows of which only the largest is looked at first


@dataclass(frozen=True)
class Neighbours:
    """Accuracies between 0 and 1 of the vote of the k nearest."""

    top1: float
    top5: float | None  # None with five classes or fewer
    k: int  # no more than there are rows in the bank
    temperature: float
    num_bank: int
    num_queries: int

    @property
    def protocol(self) -> str:
        return (
            f"vote of the {self.k:,} nearest of {self.num_bank:,} training images by cosine similarity of frozen features, weighted by "
            f"exp(similarity / {self.temperature:g}), on {self.num_queries:,} images"
        )


def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    *,
    k: int = 20,
    temperature: float = 0.07,
    num_classes: int | None = None,
) -> Neighbours:
    num_classes = check(bank, bank_labels, queries, labels, num_classes=num_classes)
    votes = knn_votes(
        bank, bank_labels, queries, k=k, temperature=temperature, num_classes=num_classes
    )
    return Neighbours(
        *top_k(votes, labels), min(k, len(bank)), temperature, len(bank), len(queries)
    )


def knn_predict(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, *, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """The class with most votes, int64 [m]; of several with as many, the first."""
    num_classes = check(bank, bank_labels)
    return knn_votes(
        bank, bank_labels, queries, k=k, temperature=temperature, num_classes=num_classes
    ).argmax(1)


def knn_votes(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    num_classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> Tensor:
    """Votes [m, C]; those for one query sum to 1. A row of zeros is at a right angle to all others."""
    if not 0 < temperature < float("inf"):
        raise UserError(
            f"the temperature of nearest neighbours must be positive, not {temperature}"
        )
    similarity, index = nearest(bank, queries, k)
    weights = torch.softmax(
        similarity / temperature, dim=1
    )  # the same votes as exp, and no temperature makes them overflow
    return weights.new_zeros(len(queries), num_classes).scatter_add_(1, bank_labels[index], weights)


def nearest(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosine similarity and index of the k nearest rows of the bank, nearest first: [m, k] each, tile by tile.

    k is cut to the rows there are. Which of equally near rows come in is not defined.
    """
    if k < 1:
        raise UserError(f"there must be 1 nearest neighbour or more, not {k}")
    if bank.shape[1] != queries.shape[1]:
        raise UserError(
            f"training features have {bank.shape[1]:,} coordinates and those to classify {queries.shape[1]:,}: use one encoder"
        )
    k = min(k, len(bank))
    bank, queries = _unit(bank), _unit(queries)
    similarity = queries.new_empty(len(queries), k)
    index = torch.empty(len(queries), k, dtype=torch.long, device=queries.device)
    space = queries.new_empty(
        min(QUERIES, len(queries)) * min(ROWS, len(bank))
    )  # fresh memory for each tile takes a fifth longer
    for i in range(0, len(queries), QUERIES):
        some = queries[i : i + QUERIES]
        best, where = some.new_empty(len(some), 0), index.new_empty(len(some), 0)
        for j in range(0, len(bank), ROWS):
            rows = bank[j : j + ROWS]
            tile = torch.mm(
                rows, some.T, out=space[: len(rows) * len(some)].view(len(rows), len(some))
            )  # faster this way round
            found, row = _largest(tile, min(k, len(rows)))
            best, where = torch.cat([best, found], 1), torch.cat([where, row + j], 1)
            best, order = best.topk(min(k, best.shape[1]))
            where = where.gather(1, order)
        similarity[i : i + QUERIES], index[i : i + QUERIES] = best, where
    return similarity, index


def _largest(tile: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of each column the k largest and their rows, [m, k] each. Sixteen rows are looked at as one first: the k largest lie in the k groups
    whose largest are.
    """
    height = len(tile) // GROUP
    if height <= k:
        found, row = tile.T.topk(k)
        return found, row
    groups = (
        tile[: height * GROUP].view(GROUP, height, -1).amax(0).T.topk(k, sorted=False).indices
    )  # [m, k]
    row = (
        torch.arange(GROUP, device=tile.device)[:, None] * height + groups[:, None]
    )  # [m, GROUP, k]
    rest = torch.arange(height * GROUP, len(tile), device=tile.device).expand(len(groups), -1)
    row = torch.cat([row.flatten(1), rest], 1)
    found, order = tile.T.gather(1, row).topk(k)
    return found, row.gather(1, order)


def _unit(features: Tensor) -> Tensor:
    return unit_rows(features.to(torch.promote_types(features.dtype, torch.float32)))
