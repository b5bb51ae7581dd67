"""Which parameters an optimizer treats alike."""

from typing import Any, Literal

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from smi.errors import UserError
from smi.optim.lars import LARS

FUSED = (
    "cpu",
    "cuda",
    "mps",
)  # devices with an AdamW that is one kernel; elsewhere PyTorch would say so only at the first step

OptimizerName = Literal["AdamW", "LARS", "SGD"]


def create_optimizer(
    module: nn.Module,
    *,
    name: OptimizerName,
    lr: float,
    lr_vectors: float | None,
    weight_decay: float,
    momentum: float = 0.9,
) -> Optimizer:
    """Two groups: matrices, and vectors (biases and norms), which have no weight decay and, if it is given, a learning rate of their own.

    Parameters that need no gradient are left out. Each group keeps its "peak_lr", which schedules are a share of. momentum: of AdamW, the
    first of its betas.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    peaks = (lr, lr if lr_vectors is None else lr_vectors)
    kinds = (
        {
            "params": [p for p in trained if p.ndim > 1],
            "lr": peaks[0],
            "peak_lr": peaks[0],
            "weight_decay": weight_decay,
        },
        {
            "params": [p for p in trained if p.ndim <= 1],
            "lr": peaks[1],
            "peak_lr": peaks[1],
            "weight_decay": 0.0,
        },
    )
    groups: list[dict[str, Any]] = [group for group in kinds if group["params"]]
    if name == "AdamW":
        fused = all(p.device.type in FUSED for p in trained)
        return AdamW(
            groups, betas=(momentum, 0.999), fused=fused or None
        )  # None: PyTorch chooses among the others
    if name == "LARS":
        return LARS(groups, lr, momentum=momentum)
    if name == "SGD":
        return SGD(groups, lr, momentum=momentum)
    raise UserError(f"there is no optimizer {name!r}: choose AdamW, LARS or SGD")
