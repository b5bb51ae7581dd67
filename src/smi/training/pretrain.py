"""Pretrain an encoder: resolve the configuration, build the parts, and train into a folder.

run = smi.pretrain(data="~/photos", out="runs/mine")
run = smi.pretrain("cifar10", out="runs/a", method="BarlowTwins", overrides={"epochs": 100})
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from smi.config.choose import choose_recipe
from smi.config.resolve import resolve
from smi.config.schema import Config, plain
from smi.data import DATASET_NAMES, Batches
from smi.device import Runtime, choose_device, choose_precision, keep_memory
from smi.distributed import from_rank_0, local_rank, processes, rank, world_size
from smi.errors import TrainingError, UserError
from smi.files import expand
from smi.imports import refused
from smi.methods import Method
from smi.optim import create_optimizer
from smi.runs.checkpoint import load as load_checkpoint
from smi.runs.restore import build_method, build_views
from smi.runs.run import Facts, Run
from smi.terminal import quietly, say
from smi.training.bar import Length
from smi.training.images import Images
from smi.training.job import Job
from smi.training.journal import Journal
from smi.training.loggers import check_loggers, create_loggers
from smi.training.loop import train
from smi.training.plan import plan_lines
from smi.training.run_facts import collect_facts, encoder_header
from smi.training.signals import Interrupted

T = TypeVar("T")


def pretrain(
    recipe: str | Path | None = None,
    *,
    out: str | Path,
    data: str | Path | None = None,
    method: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    loggers: Sequence[str] = (),
    compiled: bool = False,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Run:
    """Pretrain an encoder into the folder `out`, or resume the run that is there.

    run = smi.pretrain("cifar10", out="runs/a", method="BarlowTwins",
                       overrides={"epochs": 100, "optimizer.lr": 5e-4})

    recipe: a name or a YAML file; None chooses one that suits the images and the device.
    data: the name of a dataset, or a folder of images. method: a name or an import path.
    overrides: any other setting: epochs, batch_size, seed, encoder, method.redundancy_weight, …
    fresh: rename an existing `out` and start over.
    loggers: "tensorboard", "wandb". compiled: use torch.compile.
    """
    check_loggers(loggers)
    requested = dict(overrides or {})
    if data is not None:
        requested["data"] = absolute_source(data)
    if method is not None:
        requested["method"] = method
    device = choose_device(runtime.device, local_rank())
    if device.type == "cpu":
        keep_memory()
    with quietly(quiet), processes(device):
        if recipe is None:
            recipe, settings = _on_rank_0(
                lambda: choose_recipe_for(requested, runtime.root, device)
            )
            requested = settings | requested
        config = resolve(recipe, requested)
        with _open(config, expand(out), fresh, runtime) as (run, images, batches):
            if _on_rank_0(lambda: run.finished):
                _say(f"{run.folder} is finished: nothing to do (--fresh starts over)")
                return run
            job = _build(config, images, batches, device, compiled)
            _train(job, run, images, runtime, loggers, origin=f"recipe {recipe}")
            return run


def absolute_source(source: str | Path) -> str:
    """Return the absolute path of a folder, so that a configuration works from anywhere."""
    folder = expand(source)
    return (
        str(folder.resolve())
        if str(source) not in DATASET_NAMES and folder.is_dir()
        else str(source)
    )


def choose_recipe_for(
    overrides: Mapping[str, Any], root: str | Path | None, device: torch.device
) -> tuple[str, dict[str, Any]]:
    """Choose a recipe for the images, and settings to change in it, and print the choice."""
    source = overrides.get("data") or overrides.get("data.source")
    if source is None:
        raise UserError(
            "name a recipe (`smi pretrain cifar10-small`) or a folder of images (`--data DIR`)"
        )
    choice = choose_recipe(str(source), root, device)
    say(f"chose {choice.sentence}")
    return choice.recipe, choice.settings


# ---------------------------------------------------------------------------------- the processes


def _on_rank_0(work: Callable[[], T]) -> T:
    """Call `work` on rank 0, and return its result or raise its UserError on every rank."""
    result: tuple[T | None, UserError | None] = (None, None)
    if rank() == 0:
        try:
            result = (work(), None)
        except UserError as error:
            result = (None, error)
    value, user_error = from_rank_0(result)
    if user_error is not None:
        raise user_error
    return cast(T, value)


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
    if config.batch_size % world_size():
        raise UserError(
            f"batch_size {config.batch_size} is not a multiple of the {world_size()} processes"
        )
    with contextlib.ExitStack() as stack:
        images = Images.open(config, root=runtime.root, num_workers=runtime.num_workers)
        stack.callback(images.close)
        batches = Batches(
            images.pretrain,
            config.batch_size // world_size(),
            seed=config.seed,
            rank=rank(),
            world_size=world_size(),
        )
        claim = Run.claim(
            folder, config, num_images=len(images.pretrain), world_size=world_size(), fresh=fresh
        )
        run = _on_rank_0(lambda: stack.enter_context(claim))
        yield run, images, batches


def _build(
    config: Config, images: Images, batches: Batches, device: torch.device, compiled: bool
) -> Job:
    """Build the method, the views and the optimizer of a configuration."""
    method = build_method(config, len(images.pretrain))
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    views = build_views(config, method)
    steps_per_epoch = batches.steps_per_epoch
    log = config.log
    return Job(
        config=config,
        method=method,
        optimizer=_optimizer(config, method),
        views=views,
        batches=batches,
        device=device,
        precision=choose_precision(config.precision, device),
        schedule=config.optimizer.schedule or method.schedule,
        steps=config.epochs * steps_per_epoch,
        save_every=max(1, round(log.save_every * steps_per_epoch)),
        probe_every=max(1, round(log.probe_every * steps_per_epoch)) if log.probe_every else 0,
        probe=images.probe(views.policy, config),
        compiled=compiled,
    )


def _optimizer(config: Config, method: Method) -> torch.optim.Optimizer:
    settings = config.optimizer
    scale = config.batch_size / 256 if settings.scale_lr else 1.0
    lr_vectors = None if settings.lr_vectors is None else settings.lr_vectors * scale
    try:
        return create_optimizer(
            method,
            name=settings.name,
            lr=settings.lr * scale,
            lr_vectors=lr_vectors,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
        )
    except ValueError as error:
        raise refused(error, f"{settings.name} with these settings") from error


# ----------------------------------------------------------------------------------- the training


def _train(
    job: Job, run: Run, images: Images, runtime: Runtime, loggers: Sequence[str], *, origin: str
) -> None:
    """Resume from the last checkpoint if there is one, train, and write the encoder."""
    start, earlier = _restore(job, run)
    if rank() == 0:
        run.cut_metrics(earlier["position"])
        say("\n".join(plan_lines(job, images, origin, start=start)))
    facts = collect_facts(job, started=run.facts.started, root=runtime.root)
    journal = _journal(job, run, loggers, start, earlier["pending"])
    try:
        _train_or_explain(job, journal, run, facts, start)
    finally:
        journal.close()
        if rank() == 0:
            run.write_bad_files(images.pretrain.bad)
    if rank() == 0:
        encoder = job.method.get_submodule(job.method.exported_encoder)
        weights = encoder.get_submodule("network").state_dict()
        run.finish(weights, encoder_header(job))


def _restore(job: Job, run: Run) -> tuple[int, dict[str, Any]]:
    """Load the last checkpoint; return the steps done and the state of the journal."""
    if not run.checkpoint.is_file():
        return 0, {"pending": {}, "position": 0}
    state = load_checkpoint(run.checkpoint, job.device)
    job.method.load_state_dict(state["method"])
    job.optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["journal"]


def _journal(
    job: Job, run: Run, loggers: Sequence[str], start: int, pending: Mapping[str, torch.Tensor]
) -> Journal:
    config = job.config
    names = loggers if rank() == 0 else ()
    return Journal(
        run,
        Length(job.steps, job.batches.steps_per_epoch, config.batch_size),
        log_every=config.log.every,
        device=job.device,
        loggers=create_loggers(names, run.folder, plain(config), start=start),
        start=start,
        pending=pending,
    )


def _train_or_explain(job: Job, journal: Journal, run: Run, facts: Facts, start: int) -> None:
    """Train, and explain an interruption or an error in one sentence."""
    try:
        train(job, journal, run, facts, start=start)
    except Interrupted as stop:
        _say(
            f"stopped after step {stop.step:,} of {job.steps:,}; "
            "rerun the same command to resume from there"
        )
        raise
    except TrainingError as error:
        if rank() == 0:
            run.set_status(f"stopped: {error}")
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        if journal.done > start:
            raise
        # If the first step fails, the settings are wrong; a later failure is a bug.
        name = job.config.method["name"]
        raise refused(error, f"{name} with these settings") from error
