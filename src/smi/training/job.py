"""Define the input of the training loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from smi.config.schema import Config
from smi.data import Batches
from smi.device import Precision
from smi.distributed import world_size
from smi.methods import Method
from smi.optim import Schedule
from smi.views import Views


@dataclass(frozen=True)
class Job:
    """Hold the method, the images, the optimizer and the length of a training run."""

    config: Config
    method: Method
    optimizer: torch.optim.Optimizer
    views: Views
    batches: Batches
    device: torch.device
    precision: Precision
    scaler: torch.amp.GradScaler  # of the loss in float16; does nothing otherwise
    schedule: Schedule
    steps: int
    save_every: int  # steps
    probe_every: int  # steps; 0: never
    probe: Callable[[nn.Module], dict[str, Any]] | None
    requested_batch_size: int  # before it was halved because it did not fit
    compiled: bool = False
    keep_every: int = 0  # steps; 0: only the last checkpoint is kept
    requested_seconds: float | None = None  # that the run was fitted into; None: no time was given

    def processes_agree(self, done: int) -> bool:
        """Return whether all processes have the same weights and state after `done` steps.

        With `average_every`, weights are averaged after these steps: also before each probe and
        checkpoint. It depends on the settings alone, so a resumed run averages as often.
        """
        intervals = (
            self.config.average_every,
            self.save_every,
            self.probe_every,
            self.keep_every,
        )
        due = any(interval and done % interval == 0 for interval in intervals)
        return due or done == self.steps or world_size() == 1
