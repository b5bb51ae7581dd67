"""Compute the learning rate and other schedules from progress.

Progress is the share of training that is done, from 0 to 1.
"""

import math
from typing import Literal

from torch.optim import Optimizer

Schedule = Literal["cosine", "step", "constant"]


def cosine(start: float, end: float, progress: float) -> float:
    """Return the value of half a cosine wave that begins at start and ends at end."""
    share = (1 + math.cos(math.pi * progress)) / 2
    return share * start + (1 - share) * end


def steps(progress: float) -> float:
    """Return 1, a tenth from 60 % of training, a hundredth from 80 %: MoCo's steps."""
    if progress < 0.6:
        return 1.0
    return 0.1 if progress < 0.8 else 0.01


def constant(progress: float) -> float:
    """Return 1."""
    return 1.0


def lr_factor(schedule: Schedule, progress: float, warmup: float, final: float) -> float:
    """Return the factor of the peak learning rate.

    warmup: the share of training in which it rises linearly from 0. The cosine begins after it;
    steps do not move.
    final: the end of the cosine, as a share of the peak.
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must be between 0 and 1; got {progress}.")
    if not 0 <= warmup < 1:
        raise ValueError(
            f"warmup must be a share of training, 0 or more and less than 1; got {warmup}."
        )
    if progress < warmup:
        risen, rest = progress / warmup, 0.0
    else:
        risen, rest = 1.0, (progress - warmup) / (1 - warmup)
    if schedule == "cosine":
        return risen * cosine(1.0, final, rest)
    if schedule == "step":
        return risen * steps(progress)
    if schedule == "constant":
        return risen * constant(progress)
    raise ValueError(f"there is no schedule {schedule!r}: choose cosine, step or constant.")


def set_lr(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to this share of its peak; "constant_lr" stays there."""
    for group in optimizer.param_groups:
        # Checkpoints of earlier versions do not have the key.
        group["lr"] = group["peak_lr"] * (1.0 if group.get("constant_lr", False) else factor)


def set_schedules(optimizer: Optimizer, progress: float, factor: float) -> None:
    """Set the learning rate and the weight decay of each group for the next step.

    factor: of the peak learning rate, from `lr_factor`. Weight decay follows a cosine in groups
    that have a "final_weight_decay".
    """
    set_lr(optimizer, factor)
    for group in optimizer.param_groups:
        final = group.get("final_weight_decay")
        if final is not None:
            group["weight_decay"] = cosine(group["first_weight_decay"], final, progress)
