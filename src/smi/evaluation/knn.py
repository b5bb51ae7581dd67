"""Classify by weighted nearest neighbours (Wu et al. 2018), with k and temperature of DINO.

result = knn_accuracy(train_h, train_labels, test_h, test_labels)
result.top1, result.protocol
similarity, index = nearest(bank, queries, k=8)

n rows in the bank, m queries, F coordinates, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from smi.errors import UserError
from smi.evaluation.accuracy import check_features, top_k
from smi.losses.numerics import unit_rows

# A tile of similarities takes 33 MB, and its product keeps the processor busy.
QUERIES_PER_TILE = 512
ROWS_PER_TILE = 16384
ROWS_PER_GROUP = 16  # the search looks at the maximum of each group first

KNN_K = 20  # neighbours that vote
KNN_TEMPERATURE = 0.07


@dataclass(frozen=True)
class KnnResult:
    """Hold the accuracies, between 0 and 1, of a vote of the k nearest neighbours."""

    top1: float
    top5: float | None  # None with five classes or fewer
    k: int  # at most the number of rows in the bank
    temperature: float
    num_bank: int
    num_queries: int

    @property
    def protocol(self) -> str:
        """Describe the protocol in one phrase."""
        return (
            f"vote of the {self.k:,} nearest of {self.num_bank:,} training images by cosine "
            "similarity of frozen features, weighted by "
            f"exp(similarity / {self.temperature:g}), on {self.num_queries:,} images"
        )


def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    *,
    k: int = KNN_K,
    temperature: float = KNN_TEMPERATURE,
    num_classes: int | None = None,
    device: torch.device | None = None,
) -> KnnResult:
    """Classify the queries by their neighbours in the bank and return the accuracy.

    device: where to compute; None is the device of the queries.
    """
    num_classes = check_features(bank, bank_labels, queries, labels, num_classes=num_classes)
    votes = knn_votes(
        bank,
        bank_labels,
        queries,
        k=k,
        temperature=temperature,
        num_classes=num_classes,
        device=device,
    )
    top1, top5 = top_k(votes.to(labels.device), labels)
    return KnnResult(top1, top5, min(k, len(bank)), temperature, len(bank), len(queries))


def knn_predict(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    k: int = KNN_K,
    temperature: float = KNN_TEMPERATURE,
) -> Tensor:
    """Return the class with most votes, int64 [m]; ties go to the lowest class."""
    num_classes = check_features(bank, bank_labels)
    return knn_votes(
        bank, bank_labels, queries, k=k, temperature=temperature, num_classes=num_classes
    ).argmax(1)


def knn_votes(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    *,
    num_classes: int,
    k: int = KNN_K,
    temperature: float = KNN_TEMPERATURE,
    device: torch.device | None = None,
) -> Tensor:
    """Return the votes [m, C]; each row sums to 1. Rows of zeros have similarity 0 to all rows.

    device: where to compute; None is the device of the queries.
    """
    if not 0 < temperature < float("inf"):
        raise UserError(
            f"the temperature of nearest neighbours must be positive, not {temperature}"
        )
    similarity, index = nearest(bank, queries, k, device)
    # The softmax gives the same shares as exp, and cannot overflow at low temperatures.
    weights = torch.softmax(similarity / temperature, dim=1)
    classes = bank_labels.to(index.device)[index]
    return weights.new_zeros(len(queries), num_classes).scatter_add_(1, classes, weights)


# --------------------------------------------------------------------------- exact nearest rows


def nearest(
    bank: Tensor, queries: Tensor, k: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return cosine similarity and index of the k nearest bank rows, nearest first: [m, k] each.

    The search is exact. It needs memory for the queries and for one tile: the bank, which may be
    larger than memory, is read once, block by block. k is at most n. The order of equally similar
    rows is not defined. device: where to compute; None is the device of the queries.
    """
    if k < 1:
        raise UserError(f"the number of nearest neighbours must be 1 or more, not {k}")
    if bank.shape[1] != queries.shape[1]:
        raise UserError(
            f"training features have {bank.shape[1]:,} coordinates and those to classify "
            f"{queries.shape[1]:,}: use one encoder"
        )
    k = min(k, len(bank))
    queries = _unit(queries.to(device or queries.device))
    blocks = [(block, NearestRows(k)) for block in torch.split(queries, QUERIES_PER_TILE)]
    # One buffer for all tiles: allocating each of them takes a fifth longer.
    buffer = queries.new_empty(min(QUERIES_PER_TILE, len(queries)) * min(ROWS_PER_TILE, len(bank)))
    for j in range(0, len(bank), ROWS_PER_TILE):
        rows = _unit(bank[j : j + ROWS_PER_TILE].to(queries.device))
        for block, best in blocks:
            out = buffer[: len(rows) * len(block)].view(len(rows), len(block))
            tile = torch.mm(rows, block.T, out=out)  # faster than its transpose
            values, row = _largest(tile, min(k, len(rows)))
            best.add(values, row + j)
    return torch.cat([best.similarity for _, best in blocks]), torch.cat(
        [best.index for _, best in blocks]
    )


class NearestRows:
    """Keep the k most similar rows of each query while similarities arrive tile by tile.

    best = NearestRows(k)
    best.add(similarity, index)         # [m, r] each, for every tile
    best.similarity, best.index         # [m, k], most similar first
    """

    def __init__(self, k: int, *, stable: bool = False):
        """Start empty. stable: among equally similar rows, prefer those that were added first."""
        self.k = k
        self.stable = stable
        self.similarity = torch.empty(0)
        self.index = torch.empty(0, dtype=torch.long)

    def add(self, similarity: Tensor, index: Tensor) -> None:
        """Merge one tile."""
        if self.similarity.numel():
            similarity = torch.cat([self.similarity, similarity], 1)
            index = torch.cat([self.index, index], 1)
        k = min(self.k, similarity.shape[1])
        if self.stable:
            similarity, order = similarity.sort(dim=1, descending=True, stable=True)
            self.similarity, order = similarity[:, :k], order[:, :k]
        else:
            self.similarity, order = similarity.topk(k)
        self.index = index.gather(1, order)


def _largest(tile: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each column of a tile, and their rows: [m, k] each.

    The search compares the maxima of groups of 16 rows first: the k largest entries lie in the k
    groups with the largest maxima.
    """
    num_groups = len(tile) // ROWS_PER_GROUP
    if num_groups <= k:
        values, row = tile.T.topk(k)
        return values, row
    grouped = tile[: num_groups * ROWS_PER_GROUP].view(ROWS_PER_GROUP, num_groups, -1)
    groups = grouped.amax(0).T.topk(k, sorted=False).indices  # [m, k]
    member = torch.arange(ROWS_PER_GROUP, device=tile.device)[:, None]
    row = member * num_groups + groups[:, None]  # [m, ROWS_PER_GROUP, k]
    rest = torch.arange(num_groups * ROWS_PER_GROUP, len(tile), device=tile.device)
    row = torch.cat([row.flatten(1), rest.expand(len(groups), -1)], 1)
    values, order = tile.T.gather(1, row).topk(k)
    return values, row.gather(1, order)


def _unit(features: Tensor) -> Tensor:
    return unit_rows(features.to(torch.promote_types(features.dtype, torch.float32)))
