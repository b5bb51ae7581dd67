"""Train: the loop over steps.

A step is a function of (configuration, step, rank) and the state before it, so a run that was
killed and resumed ends with the same weights as one that was not.
"""

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from smi.device import autocast
from smi.distributed import data_parallel, rank
from smi.methods import Output
from smi.optim import lr_factor, set_lr
from smi.runs.checkpoint import save
from smi.runs.run import Facts, Run
from smi.seeds import derive
from smi.training.job import Job
from smi.training.journal import Journal
from smi.training.run_facts import add_first_step, health_context
from smi.training.signals import Interrupted, follow_rank_0, stop_signals

MAX_SAVING_SHARE = 0.05  # of the time may go into checkpoints


def train(job: Job, journal: Journal, run: Run, facts: Facts, *, start: int = 0) -> None:
    """Take all steps from `start` on, with probes and checkpoints between them.

    facts: for run.json, which is written after the first step.
    """
    config, method, optimizer = job.config, job.method, job.optimizer
    if job.compiled:
        method.compile()
    model = data_parallel(method, job.device)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    batches = job.batches.starting_at(start)
    saver = Saver(job, journal, run.checkpoint)
    warmup = config.optimizer.warmup_epochs / config.epochs
    final_lr = config.optimizer.final_lr
    with stop_signals() as stop, follow_rank_0(stop, journal):
        for step in range(start, job.steps):
            done, progress = step + 1, step / job.steps
            method.progress, method.epoch = progress, step // job.batches.steps_per_epoch
            set_lr(optimizer, lr_factor(job.schedule, progress, warmup=warmup, final=final_lr))
            # For random numbers that the network itself draws, such as dropout.
            torch.manual_seed(derive(config.seed, "step", step, rank()))
            with journal.waiting():
                batch = next(batches).to(job.device)
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
            if step == start:
                _record_first_step(job, journal, run, facts, out)
            journal.record(done, out, norm, lr=optimizer.param_groups[0]["lr"])
            if _probe_is_due(job, done):
                _probe(job, journal)
            journal.show()
            last = done == job.steps or stop.requested
            if last or done % job.save_every == 0:
                saver(done, must=last)
            if stop.requested:
                raise Interrupted(done, stop.signal)


def _record_first_step(job: Job, journal: Journal, run: Run, facts: Facts, out: Output) -> None:
    """Write run.json and start the health checks, now that the settings are known to work."""
    facts = add_first_step(facts, job.config, job.method, out)
    if rank() == 0:
        run.write_facts(facts)
    journal.start_watch(health_context(job.config, facts))


def _probe_is_due(job: Job, done: int) -> bool:
    if job.probe is None or rank() != 0:
        return False
    return done == job.steps or (job.probe_every > 0 and done % job.probe_every == 0)


def _probe(job: Job, journal: Journal) -> None:
    assert job.probe is not None
    with journal.paused():
        journal.check_finite()
        journal.record_probe(job.probe(job.method.encoder))


@torch.no_grad()
def gradient_norm(parameters: list[Tensor]) -> Tensor:
    """Return the total norm of all gradients."""
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


class Saver:
    """Write checkpoints on rank 0: all ranks have the same weights and state.

    A checkpoint is skipped if saving takes too large a share of the time, unless `must` is true.
    """

    def __init__(self, job: Job, journal: Journal, path: Path):
        self._job = job
        self._journal = journal
        self._path = path
        self._last_saved = time.perf_counter()
        self._seconds = 0.0  # for the last checkpoint

    def __call__(self, done: int, *, must: bool) -> None:
        """Save the state after `done` steps."""
        begin = time.perf_counter()
        too_soon = begin - self._last_saved < self._seconds / MAX_SAVING_SHARE
        if rank() != 0 or (too_soon and not must):
            return
        with self._journal.paused():
            state = {
                "step": done,
                "method": self._job.method.state_dict(),
                "optimizer": self._job.optimizer.state_dict(),
                "journal": self._journal.state(),
            }
            save(self._path, state)
        self._last_saved = time.perf_counter()
        self._seconds = self._last_saved - begin
