"""Fit a run into a time: time its first steps, then choose epochs and the number of images.

    pace = measure_pace(job, seconds=1800)
    config = fit(config, 1800, pace, num_images=45_000)

The run stays a function of its configuration: it records what was chosen, and resumes with it.
"""

import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from smi.config.schema import Config
from smi.device import synchronize
from smi.distributed import on_rank_0, rank
from smi.errors import UserError
from smi.runs.run import Run
from smi.terminal import duration
from smi.training.feeding import Feeder
from smi.training.job import Job
from smi.training.loop import require_memory
from smi.training.step import Step

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NUM_UNTIMED_STEPS = 2  # they compile and allocate
MIN_TIMED_STEPS = 5
MIN_TIMED_SECONDS = 3.0
MAX_TIMED_SHARE = 0.1  # of the time
MAX_UNUSED_SHARE = 0.05  # of the time, rather than to leave images out
MAX_LATE_SHARE = 0.1  # of the time; a later end is reported


@dataclass(frozen=True)
class Pace:
    """Hold the seconds that parts of a run take."""

    step: float
    probe: float = 0.0  # of one encoder
    save: float = 0.0  # of a checkpoint


def parse_time(text: str) -> float:
    """Return the seconds of a time such as 90s, 30m, 2h or 1d."""
    try:
        seconds = float(text[:-1]) * UNITS[text[-1:]]
    except (ValueError, KeyError):
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise UserError(f"--time must be a number with s, m, h or d, such as 30m, not {text!r}")
    return seconds


def check_time(text: str, overrides: Mapping[str, Any] | None) -> float:
    """Return the seconds of a time, refusing settings that it decides."""
    if (overrides or {}).get("epochs") is not None:
        raise UserError("give --time or --epochs, not both: the time decides the epochs")
    return parse_time(text)


def fitted_before(config: Config, run: Run, seconds: float | None) -> Config:
    """Return a configuration with what was chosen for a run that has taken steps.

    seconds: the time of the run, which must not change; None: no time is given.
    """
    facts = run.facts
    if facts.requested_seconds != seconds:
        made = "without --time"
        if facts.requested_seconds is not None:
            made = f"to take {duration(facts.requested_seconds)}"
        raise UserError(
            f"{run.folder} was made {made}: use the same --time, another --out, or --fresh "
            "to start over"
        )
    if seconds is None:
        return config
    recorded = run.resolve()
    return replace(
        config,
        epochs=recorded.epochs,
        data=replace(config.data, images=recorded.data.images),
        optimizer=replace(config.optimizer, warmup_epochs=recorded.optimizer.warmup_epochs),
    )


def measure_pace(job: Job, seconds: float) -> Pace:
    """Time some steps, a probe and a checkpoint of a job that is not used afterwards.

    seconds: the time of the whole run.
    """
    take = Step(job)
    with Feeder(job.batches, job.views, job.device) as feeder:
        done = 0

        def go_on(stop: Callable[[], bool]) -> bool:
            """Take a step; all processes take as many as rank 0 wants."""
            nonlocal done
            batch, x = next(feeder)
            if done == 0:
                require_memory(take, x, batch)
            take(done, x, batch)
            done += 1
            synchronize(job.device)
            return not on_rank_0(stop)

        while go_on(lambda: done >= NUM_UNTIMED_STEPS):
            pass
        start = time.perf_counter()

        def is_enough() -> bool:
            timed, spent = done - NUM_UNTIMED_STEPS, time.perf_counter() - start
            if spent > MAX_TIMED_SHARE * seconds:
                return True
            return timed >= MIN_TIMED_STEPS and spent >= MIN_TIMED_SECONDS

        while go_on(is_enough):
            pass
        step = (time.perf_counter() - start) / (done - NUM_UNTIMED_STEPS)
    return Pace(step, _seconds_of_probe(job), _seconds_of_save(job))


def _seconds_of_probe(job: Job) -> float:
    """Return the time of a probe, which rank 0 makes."""
    if job.probe is None or rank() != 0:
        return 0.0
    start = time.perf_counter()
    job.probe(job.method.get_submodule(job.method.exported_encoder))
    return time.perf_counter() - start


def _seconds_of_save(job: Job) -> float:
    """Return the time of a checkpoint, written to memory."""
    start = time.perf_counter()
    torch.save([job.method.state_dict(), job.optimizer.state_dict()], io.BytesIO())
    return time.perf_counter() - start


def fit(config: Config, seconds: float, pace: Pace, *, num_images: int) -> Config:
    """Return a configuration with the epochs, images and warm-up that fit into a time.

    seconds: that are left. num_images: to train on. All images are used if that leaves little of
    the time unused. Otherwise there is one epoch more, of fewer images.
    """
    batch_size = config.batch_size
    all_steps = num_images // batch_size
    probe = pace.probe
    at_start = probe if config.init.source is not None else 0.0
    if config.select == "best" and config.init.source is not None:
        probe *= 2  # also of the encoder halfway
    per_epoch = pace.save / config.log.save_every
    per_epoch += probe / config.log.probe_every if config.log.probe_every else 0.0
    left = seconds - at_start - pace.save - (0.0 if config.log.probe_every else probe)
    possible = left / (all_steps * pace.step + per_epoch)
    epochs = max(0, math.floor(possible))
    steps = all_steps
    if epochs < 1 or possible - epochs > MAX_UNUSED_SHARE * possible:
        epochs += 1
        steps = math.floor((left / epochs - per_epoch) / pace.step)
    if steps < 1:
        least = seconds - left + pace.step + per_epoch
        raise UserError(
            f"--time is too short: the first step would end after about {duration(least)} more"
        )
    images = config.data.images if steps >= all_steps else steps * batch_size
    warmup = config.optimizer.warmup_epochs * epochs / config.epochs
    return replace(
        config,
        epochs=epochs,
        data=replace(config.data, images=images),
        optimizer=replace(config.optimizer, warmup_epochs=warmup),
    )


def fit_sentence(config: Config, pace: Pace, seconds: float, num_images: int) -> str:
    """Say what fits into a time, and why."""
    images = f"{num_images:,} images"
    if config.data.images is not None and config.data.images < num_images:
        images = f"{config.data.images:,} of {num_images:,} images"
    passes = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    probe = f", a probe {pace.probe:.2g} s" if pace.probe else ""
    return f"{duration(seconds)}: {passes} of {images} fit (a step takes {pace.step:.2g} s{probe})"


def lateness(seconds: float, spent: float) -> str:
    """Say that a run took longer than it was asked to; empty if it did not."""
    if spent <= (1 + MAX_LATE_SHARE) * seconds:
        return ""
    return (
        f"warning: this took {duration(spent)} instead of {duration(seconds)}: the machine was "
        "slower than in the first steps"
    )
