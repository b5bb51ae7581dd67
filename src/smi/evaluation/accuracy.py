"""What every evaluation does first and last: look at its features and labels, and count right answers. n rows, F coordinates, C classes."""

import torch
from torch import Tensor

from smi.errors import UserError

TOP = 5


def check(*pairs: Tensor, num_classes: int | None = None) -> int:
    """Features and labels in turn. Raises what a user can mend; gives the number of classes, by default what the first labels name."""
    features, labels = pairs[::2], pairs[1::2]
    for h, y in zip(features, labels, strict=True):
        if h.ndim != 2 or not h.is_floating_point():
            raise ValueError(
                f"features must be floating point [n, F], not {str(h.dtype).removeprefix('torch.')} {list(h.shape)}"
            )
        if y.shape != h.shape[:1] or y.dtype != torch.long:
            raise ValueError(
                f"labels of {len(h):,} rows must be int64 [{len(h)}], not {str(y.dtype).removeprefix('torch.')} {list(y.shape)}"
            )
        if h.numel() == 0:
            raise UserError(f"there are no features to evaluate: their shape is {list(h.shape)}")
        if h.shape[1] != features[0].shape[1]:
            raise UserError(
                f"features have {features[0].shape[1]:,} and {h.shape[1]:,} coordinates: use one encoder for both"
            )
        if (
            not torch.stack(torch.aminmax(h)).isfinite().all()
        ):  # one pass, which any NaN gets through
            raise UserError(
                "some features are not finite: the encoder has diverged, so there is nothing to evaluate"
            )
    if num_classes is None:
        num_classes = int(labels[0].max()) + 1
    for y in labels:
        if y.min() < 0 or y.max() >= num_classes:
            raise UserError(
                f"labels run from {int(y.min())} to {int(y.max())}, and {num_classes} classes are numbered from 0 on"
            )
    return num_classes


def top_k(scores: Tensor, labels: Tensor) -> tuple[float, float | None]:
    """Share of rows whose class has the largest score, and whose class is among the five largest: None with five classes or fewer.

    Of equal scores, a lower class counts as larger.
    """
    own = scores.gather(1, labels[:, None])  # [n, 1]
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    rank = ((scores > own) | ((scores == own) & lower)).sum(1)  # [n]
    first, among = (
        (rank < place).sum().item() / len(labels) for place in (1, TOP)
    )  # counts: not every device has float64
    return first, among if scores.shape[1] > TOP else None
