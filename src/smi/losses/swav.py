"""SwAV's swapped prediction (Caron et al. 2020, arXiv:2006.09882). N samples on this device, P prototypes, scores [N, P]."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smi.distributed import join, own
from smi.losses.embeddings import check, check_lists, check_positive, float32_island
from smi.losses.terms import Terms


class SwAVLoss(nn.Module):
    """`swav_loss` as a module: `SwAVLoss()(scores, low_resolution)` is the scalar to minimise."""

    def __init__(self, temperature: float = 0.1, epsilon: float = 0.05, num_iterations: int = 3):
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
    temperature: float = 0.1,
    epsilon: float = 0.05,
    num_iterations: int = 3,
) -> Terms:
    """Predict each full view's code, a balanced assignment to prototypes, from every other view.

    scores: cosines with the prototypes, a tensor per full view; those make the codes. `smi.nn.Prototypes` gives them.
    low_resolution: the same of small crops, which only predict.
    queued: more scores per full view, of earlier samples: they balance the codes and are not predicted.

    W devices: codes are balanced over all devices; the loss is the mean of W local ones, which is that of the joined batch.

    Fewer than two views, shapes or devices that differ, integers and temperatures that are not positive are ValueErrors. Computed in
    float32, or float64 if an input is, whatever autocast says.
    """
    check_positive(temperature=temperature)
    check_lists(scores, low_resolution, queued)
    if not scores or len(scores) + len(low_resolution) < 2:
        raise ValueError(
            f"SwAV needs a full view and another; got {len(scores)} full and {len(low_resolution)} small."
        )
    if queued and len(queued) != len(scores):
        raise ValueError(
            f"SwAV needs queued scores for every full view or for none; got {len(queued)} for {len(scores)}."
        )
    check(*scores, *low_resolution)
    with float32_island(*scores, *low_resolution, *queued, same_shape=False) as tensors:
        views, rest = (
            tensors[: len(scores) + len(low_resolution)],
            tensors[len(scores) + len(low_resolution) :],
        )
        predictions = [torch.log_softmax(view / temperature, dim=1) for view in views]
        total = views[0].new_zeros(())
        for v in range(len(scores)):
            code = sinkhorn(
                torch.cat([views[v], *rest[v : v + 1]]),
                epsilon=epsilon,
                num_iterations=num_iterations,
            )[: len(views[v])]
            total = total - sum(
                (code * p).sum(dim=1).mean() for w, p in enumerate(predictions) if w != v
            )
        return Terms(alignment=total / (len(scores) * (len(views) - 1)))


@torch.no_grad()
def sinkhorn(scores: Tensor, *, epsilon: float = 0.05, num_iterations: int = 3) -> Tensor:
    """Soft assignment [N, P] with the highest scores among those that use all prototypes alike; balanced over all devices.

    In logarithms, so that no score is too large or too small to be counted.
    """
    check_positive(epsilon=epsilon)
    if num_iterations < 1:
        raise ValueError(f"Sinkhorn needs one iteration or more; got {num_iterations}.")
    with float32_island(scores) as (scores,):
        q = join(scores / epsilon)
        for _ in range(num_iterations):
            q = q - q.logsumexp(dim=0)
            q = q - q.logsumexp(dim=1, keepdim=True)
        return own(q).exp()
