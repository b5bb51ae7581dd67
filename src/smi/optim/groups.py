"""Create optimizers with one group for matrices and one for vectors."""

from typing import Any, Literal

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from smi.errors import UserError
from smi.optim.lars import LARS, MOMENTUM

# Devices on which AdamW can be one kernel; on others PyTorch fails only at the first step.
FUSED_ADAMW_DEVICES = ("cpu", "cuda", "mps")

OptimizerName = Literal["AdamW", "LARS", "SGD"]


def create_optimizer(
    module: nn.Module,
    *,
    name: OptimizerName,
    lr: float,
    lr_vectors: float | None,
    weight_decay: float,
    momentum: float = MOMENTUM,
) -> Optimizer:
    """Create an optimizer with two groups: matrices, and vectors (biases and norms).

    Vectors have no weight decay and, if `lr_vectors` is given, their own learning rate. Parameters
    that need no gradient are left out. Each group keeps its "peak_lr", which schedules multiply.
    momentum: for AdamW, the first of its betas.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if lr_vectors is None:
        lr_vectors = lr
    matrices = {
        "params": [p for p in trained if p.ndim > 1],
        "lr": lr,
        "peak_lr": lr,
        "weight_decay": weight_decay,
    }
    vectors = {
        "params": [p for p in trained if p.ndim <= 1],
        "lr": lr_vectors,
        "peak_lr": lr_vectors,
        "weight_decay": 0.0,
    }
    groups: list[dict[str, Any]] = [group for group in (matrices, vectors) if group["params"]]
    if name == "AdamW":
        fused = all(p.device.type in FUSED_ADAMW_DEVICES for p in trained)
        # With None, PyTorch chooses among the other implementations.
        return AdamW(groups, betas=(momentum, 0.999), fused=fused or None)
    if name == "LARS":
        return LARS(groups, lr, momentum=momentum)
    if name == "SGD":
        return SGD(groups, lr, momentum=momentum)
    raise UserError(f"there is no optimizer {name!r}: choose AdamW, LARS or SGD")
