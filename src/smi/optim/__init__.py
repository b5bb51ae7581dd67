"""Update parameters: LARS, parameter groups, schedules.

optimizer = create_optimizer(method, name="AdamW", lr=1e-3, lr_vectors=None, weight_decay=1e-4)
set_lr(optimizer, lr_factor("cosine", progress, warmup=0.03, final=0.001))      # before each step
"""

from smi.optim.groups import OptimizerName, create_optimizer
from smi.optim.lars import LARS
from smi.optim.schedules import Schedule, constant, cosine, lr_factor, set_lr, steps

__all__ = [
    "LARS",
    "OptimizerName",
    "Schedule",
    "constant",
    "cosine",
    "create_optimizer",
    "lr_factor",
    "set_lr",
    "steps",
]
