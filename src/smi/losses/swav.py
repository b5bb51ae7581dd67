"""Compute SwAV's swapped prediction loss (Caron et al. 2020, arXiv:2006.09882).

N samples on this device, P prototypes, scores [N, P].
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smi.distributed import join, own_rows
from smi.losses.numerics import (
    bounded,
    check_embeddings,
    check_lists,
    check_positive,
    float32_island,
)
from smi.losses.terms import Terms

TEMPERATURE = 0.1
EPSILON = 0.05
NUM_ITERATIONS = 3


class SwAVLoss(nn.Module):
    """Wrap `swav_loss`: `SwAVLoss()(scores, low_resolution)` is the scalar to minimise."""

    def __init__(
        self,
        temperature: float = TEMPERATURE,
        epsilon: float = EPSILON,
        num_iterations: int = NUM_ITERATIONS,
    ):
        super().__init__()
        self.temperature = temperature
        self.epsilon = epsilon
        self.num_iterations = num_iterations

    def forward(
        self,
        scores: Sequence[Tensor],
        low_resolution: Sequence[Tensor] = (),
        queued: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the scalar to minimise."""
        return swav_loss(
            scores,
            low_resolution,
            queued,
            temperature=self.temperature,
            epsilon=self.epsilon,
            num_iterations=self.num_iterations,
        ).total


def swav_loss(
    scores: Sequence[Tensor],
    low_resolution: Sequence[Tensor] = (),
    queued: Sequence[Tensor] = (),
    *,
    temperature: float = TEMPERATURE,
    epsilon: float = EPSILON,
    num_iterations: int = NUM_ITERATIONS,
) -> Terms:
    """Predict each large view's code from every other view.

    A code is a balanced assignment to the prototypes.

    scores: cosines with the prototypes, a tensor per large view; the codes are made from them.
    `smi.nn.Prototypes` computes them.
    low_resolution: the same for small views, which predict but have no code.
    queued: scores of earlier samples per large view; they balance the codes and are not predicted.
    epsilon, num_iterations: see `sinkhorn`.

    W devices: codes are balanced over all devices. The loss is the mean of W local losses, which is
    the loss of the joined batch.

    Scores divided by a temperature are bounded by 1e30. Fewer than two views, different shapes or
    devices, integers and temperatures that are not positive raise a ValueError. The loss is
    computed in float32, or in float64 if an input is, also under autocast.
    """
    check_positive(temperature=temperature)
    check_lists(scores, low_resolution, queued)
    if not scores or len(scores) + len(low_resolution) < 2:
        raise ValueError(
            "SwAV needs a large view and another view; "
            f"got {len(scores)} large and {len(low_resolution)} small."
        )
    if queued and len(queued) != len(scores):
        raise ValueError(
            "SwAV needs queued scores for every large view or for none; "
            f"got {len(queued)} for {len(scores)}."
        )
    check_embeddings(*scores, *low_resolution)
    with float32_island(*scores, *low_resolution, *queued, same_shape=False) as tensors:
        num_views = len(scores) + len(low_resolution)
        views = tensors[:num_views]
        earlier = tensors[num_views:]
        predictions = [torch.log_softmax(bounded(view / temperature), dim=1) for view in views]
        total = views[0].new_zeros(())
        for v in range(len(scores)):
            code = sinkhorn(
                torch.cat([views[v], *earlier[v : v + 1]]),
                epsilon=epsilon,
                num_iterations=num_iterations,
            )[: views[v].shape[0]]
            total = total - sum(
                (code * p).sum(dim=1).mean() for w, p in enumerate(predictions) if w != v
            )
        return Terms(alignment=total / (len(scores) * (len(views) - 1)))


@torch.no_grad()
def sinkhorn(
    scores: Tensor, *, epsilon: float = EPSILON, num_iterations: int = NUM_ITERATIONS
) -> Tensor:
    """Return the soft assignment [N, P] with the highest scores that uses all prototypes equally.

    It is balanced over all devices. epsilon: a larger one makes the assignment softer.

    The iterations work with logarithms, so that no score overflows or vanishes. Scores divided by
    epsilon are bounded by 1e30.
    """
    check_positive(epsilon=epsilon)
    if num_iterations < 1:
        raise ValueError(f"Sinkhorn needs one iteration or more; got {num_iterations}.")
    with float32_island(scores.detach()) as (scores,):  # forward mode ignores no_grad
        q = join(bounded(scores / epsilon))
        for _ in range(num_iterations):
            q = q - q.logsumexp(dim=0)
            q = q - q.logsumexp(dim=1, keepdim=True)
        return own_rows(q).exp()
