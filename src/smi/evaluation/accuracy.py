"""Check features and labels, and count correct predictions. n rows, F coordinates, C classes."""

import torch
from torch import Tensor

from smi.errors import UserError

TOP_RANK = 5  # top-5 accuracy


def check_features(*pairs: Tensor, num_classes: int | None = None) -> int:
    """Check features and labels, given alternately, and return the number of classes.

    num_classes: None takes the largest of the first labels plus one.
    """
    features, labels = pairs[::2], pairs[1::2]
    for h, y in zip(features, labels, strict=True):
        _check_types(h, y)
        if h.shape[1] != features[0].shape[1]:
            raise UserError(
                f"features have {features[0].shape[1]:,} and {h.shape[1]:,} coordinates: "
                "use one encoder for both"
            )
        check_finite(h)
    if num_classes is None:
        num_classes = int(labels[0].max()) + 1
    for y in labels:
        if y.min() < 0 or y.max() >= num_classes:
            raise UserError(
                f"labels run from {int(y.min())} to {int(y.max())}, but the {num_classes} classes "
                "are numbered from 0"
            )
    return num_classes


def check_finite(features: Tensor) -> None:
    """Raise a UserError if some features are infinite or NaN."""
    # aminmax reads the features once and propagates NaN
    if not torch.stack(torch.aminmax(features)).isfinite().all():
        raise UserError(
            "some features are not finite, so they cannot be evaluated: the encoder diverged"
        )


def _check_types(h: Tensor, y: Tensor) -> None:
    if h.ndim != 2 or not h.is_floating_point():
        raise ValueError(f"features must be floating point [n, F], not {_dtype(h)} {list(h.shape)}")
    if y.shape != h.shape[:1] or y.dtype != torch.long:
        raise ValueError(
            f"labels of {len(h):,} rows must be int64 [{len(h)}], not {_dtype(y)} {list(y.shape)}"
        )
    if h.numel() == 0:
        raise UserError(f"there are no features to evaluate: their shape is {list(h.shape)}")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def top_k(scores: Tensor, labels: Tensor) -> tuple[float, float | None]:
    """Return top-1 and top-5 accuracy; top-5 is None with five classes or fewer.

    Ties go to the lower class.
    """
    own = scores.gather(1, labels[:, None])  # [n, 1]
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    rank = ((scores > own) | ((scores == own) & lower)).sum(1)  # [n]
    # Counts are divided in Python: not every device has float64.
    top1 = (rank < 1).sum().item() / len(labels)
    top5 = (rank < TOP_RANK).sum().item() / len(labels)
    return top1, top5 if scores.shape[1] > TOP_RANK else None
