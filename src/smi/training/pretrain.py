"""Pretrain an encoder: resolve the configuration, build the parts, and train into a folder.

run = smi.pretrain(data="~/photos", out="runs/mine")
run = smi.pretrain("cifar10", out="runs/a", method="BarlowTwins", overrides={"epochs": 100})
"""

import contextlib
import gc
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from smi.config.schema import Config
from smi.data import Batches
from smi.data.given import Given, as_source
from smi.device import Precision, Runtime, choose_device, prepare_training, release_memory
from smi.distributed import (
    from_all_ranks,
    local_rank,
    on_rank_0,
    processes,
    rank,
    world_size,
)
from smi.errors import TrainingError, UserError
from smi.files import expand
from smi.imports import refused
from smi.runs.run import Run, has_steps, is_run
from smi.terminal import announce, quietly, say
from smi.training.budget import (
    check_length,
    check_time,
    fit,
    fit_sentence,
    fitted_before,
    lateness,
    measure_pace,
    seconds_to_fill,
)
from smi.training.build import build_job, open_images, recorded_precision
from smi.training.configure import Configured, configure
from smi.training.images import Images
from smi.training.job import Job
from smi.training.loggers import check_loggers
from smi.training.loop import BatchDoesNotFitError
from smi.training.plan import plan_lines
from smi.training.recipe_choice import choose_for_run
from smi.training.run_facts import encoder_header
from smi.training.session import FirstStepDoesNotFitError, train_into_folder
from smi.training.step import is_out_of_memory

LEAST_PART = 4  # images that pass through the network together; fewer are not tried


def pretrain(
    recipe: str | Path | None = None,
    *,
    out: str | Path,
    data: Given | None = None,
    method: str | None = None,
    published: bool = False,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    loggers: Sequence[str] = (),
    compiled: bool = False,
    time: str | None = None,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Run:
    """Pretrain an encoder into the folder `out`, or resume the run that is there.

    run = smi.pretrain("cifar10", out="runs/a", method="BarlowTwins",
                       overrides={"epochs": 100, "optimizer.lr": 5e-4})

    recipe: a name or a YAML file; None chooses one that suits the images, the device and the time.
    data: the name of a dataset, a folder, or any other source of images: see `smi.data.given`.
    method: a name or an import path.
    published: train the method as its authors do: the recipe's section as_published.
    overrides: any other setting: epochs, batch_size, seed, encoder, method.redundancy_weight, …
    fresh: rename an existing `out` and start over.
    loggers: "tensorboard", "wandb". compiled: use torch.compile.
    time: of the whole run, such as "30m": the first steps are timed, then epochs and images chosen.
    """
    check_loggers(loggers)
    device = choose_device(runtime.device, local_rank())
    budget = _Budget.of(time, overrides)
    requested = _requested(data, method, published, overrides)
    prepare_training(device)
    with quietly(quiet), processes(device):
        if not fresh:
            _require_run_on_rank_0(expand(out))
        seconds = None if budget is None else budget.seconds
        choose = partial(choose_for_run, requested, runtime.root, device, seconds)
        name, configured = _configure(recipe, requested, expand(out), device, fresh, choose)
        config = configured.config

        def build(
            config: Config, images: Images, batches: Batches, precision: Precision | None = None
        ) -> Job:
            weights = configured.weights
            return build_job(config, images, batches, device, compiled, weights, precision)

        def attempt(folder: Path, batch_size: int, fresh: bool) -> Run:
            tried = replace(config, batch_size=batch_size)
            if budget is not None:
                earlier = None if fresh else folder
                tried = _fit(tried, budget, build, runtime, earlier=earlier)
            with _open(tried, folder, fresh, runtime) as (run, images, batches):
                if on_rank_0(lambda: run.finished):
                    _say(f"{run.folder} is finished: nothing to do (--fresh starts over)")
                    return run
                precision = on_rank_0(lambda: recorded_precision(run, device))
                job = replace(
                    build(tried, images, batches, precision),
                    requested_batch_size=config.batch_size,
                    requested_seconds=seconds,
                )
                if configured.weights is not None and rank() == 0:
                    run.write_start(configured.weights, encoder_header(job, 0))
                is_new = on_rank_0(lambda: not run.checkpoint.is_file())
                train_into_folder(
                    job, run, images, runtime, loggers, recipe=name, notes=configured.notes
                )
                if budget is not None and is_new and rank() == 0:
                    _report_lateness(budget)
                return run

        return _with_a_batch_that_fits(attempt, config, expand(out), fresh, device)


@dataclass(frozen=True)
class Preview:
    """Hold the plan of a run that is not started."""

    lines: tuple[str, ...]

    def text(self) -> str:
        """Return the plan as it is printed before training."""
        return "\n".join(self.lines)

    def plain(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return {"plan": list(self.lines)}


def preview(
    recipe: str | Path | None = None,
    *,
    out: str | Path | None = None,
    data: Given | None = None,
    method: str | None = None,
    published: bool = False,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    compiled: bool = False,
    time: str | None = None,
    runtime: Runtime = Runtime(),
) -> Preview:
    """Return the plan of a run with the arguments of `pretrain`, without its folder.

    With `time`, the first steps are timed.
    """
    device = choose_device(runtime.device, local_rank())
    budget = _Budget.of(time, overrides)
    requested = _requested(data, method, published, overrides)
    prepare_training(device)
    folder = expand(out or os.devnull)  # nothing is in there
    with processes(device):
        seconds = None if budget is None else budget.seconds
        choose = partial(choose_for_run, requested, runtime.root, device, seconds)
        name, configured = _configure(recipe, requested, folder, device, fresh, choose)

        def recorded() -> Precision | None:
            return recorded_precision(Run(folder), device) if is_run(folder) else None

        precision = None if fresh else on_rank_0(recorded)

        def build(config: Config, images: Images, batches: Batches) -> Job:
            weights = configured.weights
            return build_job(config, images, batches, device, compiled, weights, precision)

        config = configured.config
        if not fresh:
            size = config.batch_size
            config = replace(
                config, batch_size=on_rank_0(lambda: _fitting_batch_size(folder, size))
            )
        if budget is not None:
            try:
                config = _fit(config, budget, build, runtime, earlier=None if fresh else folder)
            except FirstStepDoesNotFitError as error:
                raise UserError(f"{error} with a batch of {config.batch_size}") from error
        with open_images(config, runtime) as (images, batches):
            job = build(config, images, batches)
            return Preview(tuple(plan_lines(job, images, name, notes=configured.notes)))


def _requested(
    data: Given | None,
    method: str | None,
    published: bool,
    overrides: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return all requested settings by their names."""
    requested = dict(overrides or {})
    check_length(requested)
    if data is not None:
        requested["data"] = as_source(data)
    if method is not None:
        requested["method"] = method
    if published:
        requested["published"] = True
    return requested


def _configure(
    recipe: str | Path | None,
    requested: Mapping[str, Any],
    folder: Path,
    device: torch.device,
    fresh: bool,
    choose: Callable[[Path, bool], tuple[str, dict[str, Any]]],
) -> tuple[str, Configured]:
    """Return the name of the recipe, which may have to be chosen, and the configuration."""
    if recipe is None:
        recipe, settings = on_rank_0(lambda: choose(folder, fresh))
        requested = {**settings, **requested}
    configured = on_rank_0(
        lambda: configure(recipe, requested, folder=folder, device=device, fresh=fresh)
    )
    return str(recipe), configured


# ---------------------------------------------------------------------------------- the batch size


def _with_a_batch_that_fits(
    attempt: Callable[[Path, int, bool], Run],
    config: Config,
    folder: Path,
    fresh: bool,
    device: torch.device,
) -> Run:
    """Train with the requested batch, or half of it, and so on, if the first step does not fit.

    A run that is resumed keeps the batch that fitted.
    """
    batch_size = config.batch_size
    if not fresh:
        batch_size = on_rank_0(lambda: _fitting_batch_size(folder, batch_size))
    while True:
        try:
            return attempt(folder, batch_size, fresh)
        except FirstStepDoesNotFitError as error:
            fresh = fresh and not error.claimed
        batch_size = _halve(config, batch_size)
        gc.collect()  # the networks of the attempt
        release_memory(device)


def _fitting_batch_size(folder: Path, batch_size: int) -> int:
    """Return the batch size of the run in a folder, which may be smaller than the requested one."""
    return Run(folder).fitting_batch_size(batch_size) if has_steps(folder) else batch_size


def _halve(config: Config, batch_size: int) -> int:
    """Return about half a batch size, and say so."""
    multiple = world_size() * config.accumulate
    half = batch_size // 2 // multiple * multiple
    if half < LEAST_PART * multiple:
        raise UserError(
            f"the first step runs out of memory with a batch of {batch_size} on {world_size()} "
            "device(s): use a smaller encoder, smaller views or --checkpoint-activations"
        )
    lr = "follows" if config.optimizer.scale_lr else "stays the same"
    if rank() == 0:
        announce(
            f"warning: the first step runs out of memory with a batch of {batch_size}. Training "
            f"starts again with {half}; the learning rate {lr}. --accumulate "
            f"{2 * config.accumulate} would keep the batch of {batch_size}."
        )
    return half


# --------------------------------------------------------------------------------------- the time


@dataclass(frozen=True)
class _Budget:
    """Hold the time that a run may take, and when it began."""

    seconds: float
    began: float

    @classmethod
    def of(cls, time: str | None, overrides: Mapping[str, Any] | None) -> "_Budget | None":
        """Begin now; None if no time is given."""
        return None if time is None else cls(check_time(time, overrides), perf_counter())

    @property
    def spent(self) -> float:
        """Return the seconds since it began."""
        return perf_counter() - self.began


def _report_lateness(budget: _Budget) -> None:
    """Say it if a run took longer than it was asked to."""
    if sentence := lateness(budget.seconds, budget.spent):
        announce(sentence)


def _fit(
    config: Config,
    budget: _Budget,
    build: Callable[[Config, Images, Batches], Job],
    runtime: Runtime,
    *,
    earlier: Path | None,
) -> Config:
    """Choose the epochs and images that fit into a time, or take those of a run that is resumed.

    earlier: the folder of that run, if there is one.
    """

    def of_earlier() -> Config | None:
        if earlier is None or not has_steps(earlier):
            return None
        return fitted_before(config, Run(earlier), budget.seconds)

    if (before := on_rank_0(of_earlier)) is not None:
        return before
    try:
        with open_images(config, runtime) as (images, batches):
            num_images = len(images.pretrain)
            start = perf_counter()
            job = build(config, images, batches)
            building = perf_counter() - start
            pace = measure_pace(job, budget.seconds)
    except (UserError, TrainingError):
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        alone = world_size() == 1 and is_out_of_memory(error)
        if alone or isinstance(error, BatchDoesNotFitError):
            raise FirstStepDoesNotFitError(claimed=False) from error
        raise refused(error, f"{config.method['name']} with these settings") from error
    del job
    gc.collect()  # the networks whose steps were timed
    left = seconds_to_fill(budget.seconds, budget.spent + building)  # they are built once more
    fitted = on_rank_0(lambda: fit(config, left, pace, num_images=num_images))
    _say(fit_sentence(fitted, pace, budget.seconds, num_images))
    return fitted


# ---------------------------------------------------------------------------------- the processes


def _require_run_on_rank_0(folder: Path) -> None:
    """Raise a UserError if another machine has the checkpoint of a run and rank 0 does not.

    torchrun may give rank 0 to another machine when it starts again: training would start over.
    """
    has_checkpoint = is_run(folder) and Run(folder).checkpoint.is_file()
    machines = from_all_ranks((socket.gethostname(), has_checkpoint))
    owner = next((name for name, has_run in machines if has_run), None)
    if owner is not None and not machines[0][1]:
        raise UserError(
            f"{folder} has a checkpoint on {owner} and none on {machines[0][0]}, which is rank 0 "
            f"now: share the folder between the machines, make {owner} rank 0 (--node-rank 0 of "
            "torchrun), or add --fresh to start over"
        )


def _say(text: str) -> None:
    """Print on rank 0."""
    if rank() == 0:
        say(text)


# -------------------------------------------------------------------------------------- the parts


@contextlib.contextmanager
def _open(
    config: Config, folder: Path, fresh: bool, runtime: Runtime
) -> Iterator[tuple[Run, Images, Batches]]:
    """Open the images, then claim the folder, so that a mistake in the data leaves no folder."""
    with open_images(config, runtime) as (images, batches), contextlib.ExitStack() as stack:
        claim = Run.claim(folder, config, num_images=len(images.pretrain), fresh=fresh)
        run = on_rank_0(lambda: stack.enter_context(claim))
        yield run, images, batches
