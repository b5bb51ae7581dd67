"""Update parameters: LARS and LARC, parameter groups, schedules, clipping.

optimizer = create_optimizer(method, name="AdamW", lr=1e-3, lr_vectors=None, weight_decay=1e-4)
factor = lr_factor("cosine", progress, warmup=0.03, final=0.001)
set_schedules(optimizer, progress, factor)      # before each step
"""

from smi.optim.clip import clip_gradients
from smi.optim.groups import OptimizerName, create_optimizer
from smi.optim.larc import LARC
from smi.optim.lars import LARS
from smi.optim.schedules import (
    Schedule,
    constant,
    cosine,
    lr_factor,
    set_lr,
    set_schedules,
    steps,
)

__all__ = [
    "LARC",
    "LARS",
    "OptimizerName",
    "Schedule",
    "clip_gradients",
    "constant",
    "cosine",
    "create_optimizer",
    "lr_factor",
    "set_lr",
    "set_schedules",
    "steps",
]
