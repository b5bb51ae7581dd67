"""Train: the loop over steps.

A step is a function of (configuration, step, rank) and the state before it, so a run that was
killed and resumed ends with the same weights as one that was not.
"""

import time
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from smi.data import Batch
from smi.distributed import barrier, from_all_ranks, rank, world_size
from smi.methods import Output
from smi.optim import lr_factor, set_schedules
from smi.runs.checkpoint import Writer, snapshot
from smi.runs.run import Facts, Run
from smi.terminal import announce
from smi.training.feeding import Feeder
from smi.training.job import Job
from smi.training.journal import Journal
from smi.training.run_facts import add_first_step, health_context
from smi.training.selection import HALF, Selection, score_of
from smi.training.signals import Interrupted, stop_signals
from smi.training.step import Step, is_out_of_memory

MAX_SAVING_SHARE = 0.05  # of the time may go into checkpoints


class BatchDoesNotFitError(RuntimeError):
    """Report on all processes that one of them has too little memory for its first step."""


def train(job: Job, journal: Journal, run: Run, facts: Facts, *, start: int = 0) -> None:
    """Take all steps from `start` on, with probes and checkpoints between them.

    facts: for run.json, which is written after the first step.
    """
    config, method, optimizer = job.config, job.method, job.optimizer
    take = Step(job)
    selection = Selection(job, run)
    warmup = config.optimizer.warmup_epochs / (job.steps / job.batches.steps_per_epoch)
    final_lr = config.optimizer.final_lr
    with (
        stop_signals() as stop,
        Saver(job, journal, run) as saver,
        Feeder(job.batches, job.views, job.device, start, waiting=journal.waiting) as feeder,
    ):
        journal.agree_on(stop)
        if start == 0 and (job.probe_every or job.config.init.source is not None):
            _probe(job, journal, selection)  # what the encoder is worth without training
        for step in range(start, job.steps):
            done, progress = step + 1, step / job.steps
            method.progress, method.epoch = progress, step // job.batches.steps_per_epoch
            factor = lr_factor(job.schedule, progress, warmup=warmup, final=final_lr)
            set_schedules(optimizer, progress, factor)
            batch, x = next(feeder)
            if step == 0:
                require_memory(take, x, batch)
            taken = take(step, x, batch)
            if step == start:
                _record_first_step(job, journal, run, facts, taken.out)
            journal.record(
                done,
                taken.out,
                taken.gradient_norm,
                lr=optimizer.param_groups[0]["lr"],
                skipped=taken.skipped,
                scale=take.scale,
            )
            if _probe_is_due(job, done):
                _probe(job, journal, selection)
            journal.show()
            stopping = stop.requested and job.processes_agree(done)
            saver(done, last=done == job.steps or stopping)
            if stopping:
                saver.wait()
                barrier()  # torchrun ends all processes when the first one leaves
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


def _probe(job: Job, journal: Journal, selection: Selection) -> None:
    """Measure the encoder on held-out images, on rank 0 and if there are any."""
    if job.probe is None or rank() != 0:
        return
    with journal.paused():
        journal.check_finite()
        encoder = job.method.get_submodule(job.method.exported_encoder)
        result = job.probe(encoder)
        halfway = selection.halfway(encoder) if journal.done else None
        if halfway is None:
            journal.record_probe(result)
            if journal.done or job.config.init.source is not None:  # an untrained one is not kept
                selection.offer(journal.done, result, encoder)
            return
        measured = job.probe(halfway)
        journal.record_probe(result | {"halfway": score_of(measured)})
        selection.offer(journal.done, result, encoder)
        selection.offer(journal.done, measured, halfway, share=HALF)


def require_memory(take: Step, views: Sequence[Tensor], batch: Batch) -> None:
    """Raise a BatchDoesNotFitError on all processes if one of them has too little memory.

    In a real step, the others would wait for that one.
    """
    if world_size() == 1:
        return
    fits = True
    try:
        take.rehearse(0, views, batch)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    if not all(from_all_ranks(fits)):
        raise BatchDoesNotFitError("one of the processes runs out of memory")


class Saver:
    """Save checkpoints on rank 0, after steps that leave all ranks with the same state.

    The state is copied between two steps and written by a thread. A checkpoint is skipped if the
    one before is still being written, or if copying takes too large a share of the time, but never
    the last one and those that are kept.
    """

    def __init__(self, job: Job, journal: Journal, run: Run):
        self._job = job
        self._journal = journal
        self._run = run
        self._writer = Writer()
        self._last_saved = time.perf_counter()
        self._seconds = 0.0  # that training stood still for the last checkpoint

    def __call__(self, done: int, *, last: bool) -> None:
        """Save the state after `done` steps if it is due."""
        if rank() != 0:
            return
        self._writer.check()
        keep_every = self._job.keep_every
        keep = keep_every > 0 and done % keep_every == 0
        if last or keep or (done % self._job.save_every == 0 and self._may_save()):
            self._save(done, keep=keep)

    def _may_save(self) -> bool:
        since = time.perf_counter() - self._last_saved
        return not self._writer.busy and since >= self._seconds / MAX_SAVING_SHARE

    def _save(self, done: int, *, keep: bool) -> None:
        begin = time.perf_counter()
        with self._journal.paused():
            state = {
                "step": done,
                "method": self._job.method.state_dict(),
                "optimizer": self._job.optimizer.state_dict(),
                "scaler": self._job.scaler.state_dict(),
                "journal": self._journal.state(),
            }
            epoch = done / self._job.batches.steps_per_epoch
            keep_as = self._run.kept_checkpoint(epoch) if keep else None
            self._writer.start(self._run.checkpoint, snapshot(state), keep_as)
        self._last_saved = time.perf_counter()
        self._seconds = self._last_saved - begin

    def wait(self) -> None:
        """Wait until the last checkpoint is written; raise the error if it cannot be."""
        self._writer.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            if failure is not error:
                announce(f"the last checkpoint was not written: {failure}")
        finally:
            self._writer.close()
