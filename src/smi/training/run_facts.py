"""Collect the facts of a run: for run.json, for the health checks and for the encoder file."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

from smi import __version__
from smi.config.schema import RECIPES, Config
from smi.data import DATASET_NAMES
from smi.device import describe_device, package_commit, versions
from smi.distributed import world_size
from smi.files import expand
from smi.health import Context
from smi.methods import LossSetup, Method, MethodDescription, Output
from smi.runs.run import Facts
from smi.training.job import Job


def collect_facts(
    job: Job, *, earlier: Facts, recipe: str, root: str | Path | None, start: int = 0
) -> Facts:
    """Collect the facts that are known before the first step.

    earlier: those of a run that is resumed; empty for a new one. recipe: a name, or a file, whose
    path is not recorded. start: steps done before.
    """
    method, store, policy = job.method, job.batches.store, job.views.policy
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Facts(
        smi=__version__,
        started=earlier.started or now,
        num_images=len(store),
        resolution=store.resolution,
        value_range=None if store.value_range is None else list(store.value_range),
        root=str(expand(root).resolve()) if root else None,
        world_size=world_size(),
        world_sizes=_world_sizes(earlier, start),
        batch_per_device=job.batches.batch_size,
        requested_batch_size=earlier.requested_batch_size or job.requested_batch_size,
        requested_seconds=earlier.requested_seconds or job.requested_seconds,
        steps=job.steps,
        steps_per_epoch=job.batches.steps_per_epoch,
        num_views=len(policy.views),
        feature_dim=method.encoder.dim,
        parameters=sum(p.numel() for p in method.parameters() if p.requires_grad),
        encoder_parameters=sum(p.numel() for p in method.encoder.parameters()),
        peak_lr=[group["peak_lr"] for group in job.optimizer.param_groups],
        schedule=job.schedule,
        precision=job.precision,
        compiled=job.compiled,
        views=job.views.backend,
        policy=policy.name,
        device=describe_device(job.device),
        versions=versions(),
        commit=package_commit(),
        recipe=earlier.recipe or (recipe if recipe in RECIPES else None),
    )


def _world_sizes(earlier: Facts, start: int) -> list[list[int]]:
    """Return the steps at which the number of processes changed, up to `start`."""
    if not start:
        return [[0, world_size()]]
    before = earlier.world_sizes or [[0, earlier.world_size or world_size()]]
    before = [change for change in before if change[0] < start]  # later ones were lost by a crash
    return before if before[-1][1] == world_size() else [*before, [start, world_size()]]


def changed_processes(job: Job, earlier: Facts) -> str:
    """Say what another number of processes changes in a resumed run; empty if it is the same."""
    before = earlier.world_size
    if before in (None, world_size()):
        return ""
    return (
        f"warning: the number of processes changes from {before} to {world_size()}, with "
        f"{job.batches.batch_size} images on each. The images of every step stay the same. Random "
        "views, batch norm statistics of a device, the samples in the loss of a device (SMI's N, "
        "and λ if it is auto) and rounding change."
    )


def add_first_step(facts: Facts, config: Config, method: Method, out: Output) -> Facts:
    """Add what the first step shows: the embedding dimension and the method's description."""
    per_loss = config.accumulate if method.local else 1  # parts count as devices
    setup = LossSetup(
        batch_size=(facts.batch_per_device or 0) // per_loss,
        embedding_dim=out.z1.shape[1],
        world_size=facts.world_size or 1,
        num_views=facts.num_views or 2,
        settings={name: value for name, value in config.method.items() if name != "name"},
    )
    return replace(
        facts,
        embedding_dim=setup.embedding_dim,
        status="training",
        method=method.describe(setup),
    )


def health_context(config: Config, facts: Facts) -> Context:
    """Return the context of the health checks, which is known after the first step."""
    return Context(
        method=config.method["name"],
        batch_size=facts.batch_per_device or 0,
        embedding_dim=facts.embedding_dim,
        feature_dim=facts.feature_dim or 0,
        epochs=facts.epochs or config.epochs,
        description=MethodDescription.parse(facts.method or {}),
        started_from=config.init.source,
        statistics=config.init.statistics,
        select=config.select,
    )


def encoder_header(job: Job, step: int) -> dict[str, Any]:
    """Return the header of an encoder file: enough to use the encoder after a step anywhere."""
    config, policy = job.config, job.views.policy
    epoch = step / job.batches.steps_per_epoch
    about = {
        "method": config.method["name"],
        "seed": config.seed,
        "step": step,
        "epoch": int(epoch) if epoch == int(epoch) else epoch,
    }
    if config.data.source in DATASET_NAMES:  # the path of a folder is private and useless elsewhere
        about["data"] = config.data.source
    value_range = job.batches.store.value_range
    return {
        "encoder": config.encoder,
        "image_size": config.views.whole_size,
        "resolution": job.batches.store.resolution,
        "mean": policy.mean,
        "std": policy.std,
        "about": about,
    } | ({} if value_range is None else {"value_range": value_range})
