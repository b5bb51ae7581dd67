"""The loop. A step is a function of (configuration, step, rank) and the state before it, so a killed run goes on as if it had not been."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smi.data import Batches
from smi.device import Precision, autocast
from smi.distributed import data_parallel, rank
from smi.methods import Method, Output
from smi.optim import Schedule, lr_factor, set_lr
from smi.runs.checkpoint import save
from smi.seeds import derive
from smi.training.journal import Journal
from smi.training.signals import Interrupted, quiet_end, stop_signals
from smi.views import Views


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and for how long."""

    method: Method
    optimizer: torch.optim.Optimizer
    views: Views
    batches: Batches
    device: torch.device
    precision: Precision
    seed: int
    total: int  # steps
    schedule: Schedule
    warmup: float  # share of training
    final_lr: float  # share of the peak
    save_every: int  # steps
    probe_every: int  # steps; 0: never
    probe: Callable[[nn.Module], dict[str, Any]] | None
    compiled: bool = False


def train(job: Job, journal: Journal, checkpoint: Path, *, start: int = 0) -> None:
    method, optimizer = job.method, job.optimizer
    if job.compiled:
        method.compile()
    model = data_parallel(method, job.device)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    arriving = job.batches.starting_at(start)
    saver = Saver(job, journal, checkpoint)
    with stop_signals() as stop, quiet_end(stop, journal):
        for step in range(start, job.total):
            done, progress = step + 1, step / job.total
            method.progress, method.epoch = progress, step // job.batches.steps_per_epoch
            set_lr(
                optimizer, lr_factor(job.schedule, progress, warmup=job.warmup, final=job.final_lr)
            )
            torch.manual_seed(
                derive(job.seed, "step", step, rank())
            )  # for what a network itself draws, such as dropout
            with journal.waiting():
                batch = next(arriving).to(job.device)
            x = [
                view.to(memory_format=torch.channels_last)
                for view in job.views(batch.images, batch.generator())
            ]
            with autocast(job.device, job.precision):
                out: Output = model(x, batch)
            out.loss.backward()  # type: ignore[no-untyped-call]
            norm = gradient_norm(parameters)
            method.before_step()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            method.after_step()
            journal.note(
                done, out, norm, lr=optimizer.param_groups[0]["lr"]
            )  # the only host sync, when a line is due
            if (
                job.probe
                and (done == job.total or (job.probe_every and done % job.probe_every == 0))
                and rank() == 0
            ):
                with journal.aside():
                    journal.check()
                    journal.probe(done, job.probe(method.encoder))
            journal.show(done)
            if done == job.total or stop.asked or done % job.save_every == 0:
                saver(done, must=done == job.total or stop.asked)
            if stop.asked:
                raise Interrupted(done, stop.signal)


@torch.no_grad()
def gradient_norm(parameters: list[Tensor]) -> Tensor:
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


class Saver:
    """Writes checkpoints, from the first process alone: all others have the same weights and state.

    Where steps are so short that saving on schedule would take more than a twentieth of the time, some are passed over.
    """

    def __init__(self, job: Job, journal: Journal, path: Path):
        self._job, self._journal, self._path = job, journal, path
        self._saved, self._took = time.perf_counter(), 0.0

    def __call__(self, done: int, *, must: bool) -> None:
        begun = time.perf_counter()
        if rank() != 0 or (not must and begun - self._saved < 20 * self._took):
            return
        with self._journal.aside():
            state = {
                "step": done,
                "method": self._job.method.state_dict(),
                "optimizer": self._job.optimizer.state_dict(),
            }
            save(self._path, {**state, "journal": self._journal.state()})
        self._saved = time.perf_counter()
        self._took = self._saved - begun
