"""Create optimizers with groups: matrices, vectors, and parts without a schedule."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from smi.errors import UserError
from smi.optim.larc import LARC
from smi.optim.lars import LARS, MOMENTUM

# Devices on which AdamW can be one kernel; on others PyTorch fails only at the first step.
FUSED_ADAMW_DEVICES = ("cpu", "cuda", "mps")

OptimizerName = Literal["AdamW", "LARS", "LARC", "SGD"]


def create_optimizer(
    module: nn.Module,
    *,
    name: OptimizerName,
    lr: float,
    lr_vectors: float | None,
    weight_decay: float,
    final_weight_decay: float | None = None,
    decay_vectors: bool = False,
    constant_lr: Sequence[str] = (),
    momentum: float = MOMENTUM,
) -> Optimizer:
    """Create an optimizer with two groups: matrices, and vectors (biases and norms).

    Parameters that need no gradient are left out. Each group keeps its "peak_lr", which schedules
    multiply.
    lr_vectors: of vectors; None is `lr`.
    final_weight_decay: the end of a cosine; None keeps weight decay constant.
    decay_vectors: weight decay, and the factor of LARS and LARC, for vectors too.
    constant_lr: parts of the module whose learning rate has no schedule, in groups of their own.
    momentum: for AdamW, the first of its betas.
    """
    scheduled, constant = _split(module, constant_lr)
    matrices = {
        "lr": lr,
        "peak_lr": lr,
        "weight_decay": weight_decay,
        "first_weight_decay": weight_decay,
        "final_weight_decay": final_weight_decay,
    }
    vectors = matrices | {"adapt_vectors": True}
    if not decay_vectors:
        vectors = {"weight_decay": 0.0, "final_weight_decay": None}
    vectors["lr"] = vectors["peak_lr"] = lr if lr_vectors is None else lr_vectors
    groups: list[dict[str, Any]] = [
        settings | {"params": params, "constant_lr": is_constant}
        for parameters, is_constant in ((scheduled, False), (constant, True))
        for settings, params in (
            (matrices, [p for p in parameters if p.ndim > 1]),
            (vectors, [p for p in parameters if p.ndim <= 1]),
        )
        if params
    ]
    if name == "AdamW":
        fused = all(p.device.type in FUSED_ADAMW_DEVICES for p in (*scheduled, *constant))
        # With None, PyTorch chooses among the other implementations.
        return AdamW(groups, betas=(momentum, 0.999), fused=fused or None)
    if name == "LARS":
        return LARS(groups, lr, momentum=momentum)
    if name == "LARC":
        return LARC(groups, lr, momentum=momentum)
    if name == "SGD":
        return SGD(groups, lr, momentum=momentum)
    raise UserError(f"there is no optimizer {name!r}: choose AdamW, LARS, LARC or SGD")


def _split(module: nn.Module, parts: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the trained parameters outside of the named parts, and those inside."""
    trained = [p for p in module.parameters() if p.requires_grad]
    options = [
        name
        for name, child in module.named_children()
        if any(p.requires_grad for p in child.parameters())
    ]
    for part in parts:
        if part not in options:
            raise UserError(
                f"optimizer.constant_lr: {type(module).__name__} has no part {part!r}; "
                f"its parts are {', '.join(options)}"
            )
    inside = {id(p) for part in parts for p in module.get_submodule(part).parameters()}
    return (
        [p for p in trained if id(p) not in inside],
        [p for p in trained if id(p) in inside],
    )
