"""Fit a run into a time: choose the encoder, time its first steps, choose epochs and images.

    large = steps_within(config, 1800, device) >= ENOUGH_STEPS
    pace = measure_pace(job, seconds=1800)
    config = fit(config, 1800, pace, num_images=45_000)

The run stays a function of its configuration: it records what was chosen, and resumes with it.
"""

import io
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from smi.config.schema import Config
from smi.device import Precision, autocast, choose_precision, synchronize
from smi.distributed import on_rank_0, rank, world_size
from smi.errors import UserError
from smi.imports import refused
from smi.nn import create_encoder
from smi.nn.encoders import Encoder
from smi.runs.run import Run
from smi.terminal import duration, epochs_text
from smi.training.feeding import Feeder
from smi.training.job import Job
from smi.training.loop import require_memory
from smi.training.step import Step, is_out_of_memory

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# The first steps compile, allocate, and use views that a thread has made ahead.
NUM_UNTIMED_STEPS = {"cpu": 2}
NUM_UNTIMED_ELSEWHERE = 8
NUM_STEPS_TOGETHER = 5  # between two looks at the clock, for which a GPU must be waited for
MIN_STEPS_PER_EPOCH = 2
TIMED_SHARE, MAX_TIMED_SHARE = 0.02, 0.1  # of the time, in which steps are timed
MIN_TIMED_SECONDS, MAX_TIMED_SECONDS = 3.0, 60.0
ENOUGH_STEPS = 4000  # of a large encoder, a rule of thumb: 20 epochs of CIFAR-10
NUM_TIMED_VIEWS = 256  # that pass through an encoder; fewer if they need too much memory
NUM_TIMED_PASSES = 3
MAX_UNUSED_SHARE = 0.05  # of the time, rather than to leave images out
SPARE_SHARE = 0.05  # of the time: without it nine runs took 5 % longer than requested, on average
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
    except (ValueError, KeyError, TypeError):
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise UserError(f"--time must be a number with s, m, h or d, such as 30m, not {text!r}")
    return seconds


def check_length(overrides: Mapping[str, Any]) -> None:
    """Refuse two lengths of a run."""
    if overrides.get("steps") is not None and overrides.get("epochs") is not None:
        raise UserError("give --steps or --epochs, not both")


def check_time(text: str, overrides: Mapping[str, Any] | None) -> float:
    """Return the seconds of a time, refusing settings that it decides."""
    for name in ("epochs", "steps"):
        if (overrides or {}).get(name) is not None:
            raise UserError(f"give --time or --{name}, not both: the time decides the {name}")
    return parse_time(text)


def require_same_time(run: Run, seconds: float | None) -> None:
    """Refuse to resume a run with another time than its own; seconds: None if none is given."""
    before = run.facts.requested_seconds
    if before != seconds:
        made = "without --time" if before is None else f"with --time {before:g}s"
        raise UserError(f"{run.folder} was made {made}: do the same, or use another --out")


def fitted_before(config: Config, run: Run, seconds: float | None) -> Config:
    """Return a configuration with what was chosen for a run that has taken steps.

    seconds: the time of the run, which must not change; None: no time is given.
    """
    require_same_time(run, seconds)
    if seconds is None:
        return config
    recorded = run.resolve()
    return replace(
        config,
        epochs=recorded.epochs,
        data=replace(config.data, images=recorded.data.images),
        optimizer=replace(config.optimizer, warmup_epochs=recorded.optimizer.warmup_epochs),
    )


def steps_within(config: Config, seconds: float, device: torch.device) -> float:
    """Estimate how many steps fit into a time, from the speed of the encoder alone.

    Small crops and teachers are not counted.
    """
    name, size = config.encoder["name"], config.views.size
    encoder = create_encoder(**config.encoder, image_size=size)
    precision = choose_precision(config.precision, device, encoder)
    num_timed = NUM_TIMED_VIEWS
    try:
        encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        while True:
            try:
                views = torch.rand(num_timed, 3, size, size, device=device)
                per_view = _seconds_of_pass(encoder, views, precision) / num_timed
                break
            except RuntimeError as error:
                if num_timed == 1 or not is_out_of_memory(error):
                    raise
                num_timed //= 2
    except (ValueError, TypeError, RuntimeError) as error:
        raise refused(error, f"the encoder {name} with these settings") from error
    num_views = config.method.get("views")
    if not isinstance(num_views, int) or num_views < 2:  # the method refuses a wrong number later
        num_views = 2
    return seconds * world_size() / (per_view * num_views * config.batch_size)


def _seconds_of_pass(encoder: Encoder, views: Tensor, precision: Precision) -> float:
    """Return the time of the fastest pass forward and back, after one that is not timed."""
    views = views.contiguous(memory_format=torch.channels_last)
    fastest = math.inf
    for i in range(1 + NUM_TIMED_PASSES):
        start = time.perf_counter()
        with autocast(views.device, precision):
            features = encoder(views)
        if features.requires_grad:
            features.float().sum().backward()
        synchronize(views.device)
        if i:
            fastest = min(fastest, time.perf_counter() - start)
    return fastest


def seconds_to_time(seconds: float) -> float:
    """Return for how many seconds the first steps of a run are timed; seconds: of the whole run.

    This is a share of the time, because a processor may slow down after its first seconds. A short
    run has a larger share.
    """
    least = max(MIN_TIMED_SECONDS, min(TIMED_SHARE * seconds, MAX_TIMED_SECONDS))
    return min(least, MAX_TIMED_SHARE * seconds)


def measure_pace(job: Job, seconds: float) -> Pace:
    """Time some steps, a probe and a checkpoint of a job that is not used afterwards.

    seconds: the time of the whole run.
    """
    take = Step(job)
    for group in job.optimizer.param_groups:
        group["lr"] = 0.0  # without warm-up, weights might become NaN
    with Feeder(job.batches, job.views, job.device) as feeder:

        def take_steps(first: int, count: int) -> None:
            for step in range(first, first + count):
                batch, x = next(feeder)
                if step == 0:
                    require_memory(take, x, batch)
                take(step, x, batch)
            synchronize(job.device)

        def is_enough() -> bool:
            return time.perf_counter() - start >= seconds_to_time(seconds)

        num_untimed = NUM_UNTIMED_STEPS.get(job.device.type, NUM_UNTIMED_ELSEWHERE)
        take_steps(0, num_untimed)
        start = time.perf_counter()
        num_timed = 0
        while num_timed == 0 or not on_rank_0(is_enough):  # all processes take as many steps
            take_steps(num_untimed + num_timed, NUM_STEPS_TOGETHER)
            num_timed += NUM_STEPS_TOGETHER
        per_step = (time.perf_counter() - start) / num_timed
    return Pace(per_step, _seconds_of_probe(job), _seconds_of_save(job))


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


def seconds_to_fill(seconds: float, spent: float) -> float:
    """Return the seconds for epochs: the rest of a time, less a reserve for a slower machine."""
    return (1 - SPARE_SHARE) * seconds - spent


def fit(config: Config, seconds: float, pace: Pace, *, num_images: int) -> Config:
    """Return a configuration with the epochs, images and warm-up that fit into a time.

    seconds: that are left. num_images: to train on. All images are used if that leaves little of
    the time unused. Otherwise there is one epoch more, of fewer images. A method that freezes a
    part in its first epochs has more epochs than these.
    """
    batch_size = config.batch_size
    all_steps = num_images // batch_size
    probe = pace.probe
    at_start = probe if config.log.probe_every or config.init.source is not None else 0.0
    if config.select == "best" and config.init.source is not None:
        probe *= 2  # also of the encoder halfway
    per_epoch = pace.save / config.log.save_every
    per_epoch += probe / config.log.probe_every if config.log.probe_every else 0.0
    left = seconds - at_start - pace.save
    if config.log.probe_every != 1:
        left -= probe  # after the last step, which may be within an interval
    possible = left / (all_steps * pace.step + per_epoch)
    epochs, steps = max(0, math.floor(possible)), all_steps
    least_epochs = 1 + int(config.method.get("frozen_epochs", 0))
    least_steps = min(MIN_STEPS_PER_EPOCH, all_steps)
    if epochs < least_epochs or possible - epochs > MAX_UNUSED_SHARE * possible:
        more = max(epochs + 1, least_epochs)
        fewer = math.floor((left / more - per_epoch) / pace.step)
        if epochs < least_epochs or fewer >= least_steps:
            epochs, steps = more, fewer
    if steps < least_steps:
        least = seconds - left + epochs * (least_steps * pace.step + per_epoch)
        raise UserError(
            f"--time is too short: after the first steps were timed, {epochs_text(epochs)} of few "
            f"images, with probes and checkpoints, would take about {duration(least)}"
        )
    images = config.data.images if steps >= all_steps else steps * batch_size
    warmup = config.optimizer.warmup_epochs * epochs / config.epochs
    return replace(
        config,
        epochs=epochs,
        steps=None,
        data=replace(config.data, images=images),
        optimizer=replace(config.optimizer, warmup_epochs=warmup),
    )


def fit_sentence(config: Config, pace: Pace, seconds: float, num_images: int) -> str:
    """Say what fits into a time, and why."""
    images = f"{num_images:,} images"
    if config.data.images is not None and config.data.images < num_images:
        images = f"{config.data.images:,} of {num_images:,} images"
    passes = epochs_text(config.epochs)
    probe = f", a probe {pace.probe:.2g} s" if pace.probe else ""
    return f"{time_text(seconds)}: {passes} of {images} fit (a step takes {pace.step:.2g} s{probe})"


def time_text(seconds: float) -> str:
    """Format a requested time."""
    return f"{seconds:g} s" if seconds < 600 else duration(seconds)  # 100 s are not 2 min


def lateness(seconds: float, spent: float) -> str:
    """Say that a run took longer than it was asked to; empty if it did not."""
    if spent <= (1 + MAX_LATE_SHARE) * seconds:
        return ""
    return (
        f"warning: this took {duration(spent)} instead of {duration(seconds)}: it was slower than "
        "the first steps suggested"
    )
