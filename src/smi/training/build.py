"""Build the parts of a run: its images, method, views and optimizer.

with open_images(config, runtime) as (images, batches):
    job = build_job(config, images, batches, device, compiled=False, weights=None)
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch

from smi.config.schema import Config
from smi.data import Batches
from smi.device import PRECISIONS, Precision, Runtime, choose_precision
from smi.distributed import (
    from_all_ranks,
    on_all_ranks,
    rank,
    synchronise_batch_norms,
    world_size,
)
from smi.errors import UserError
from smi.imports import refused
from smi.methods import Method
from smi.nn.encoders import checkpoint_activations
from smi.optim import create_optimizer
from smi.runs.restore import build_method, build_views
from smi.runs.run import Run
from smi.training.images import Images
from smi.training.job import Job
from smi.training.step import (
    check_averaging,
    check_parts,
    create_scaler,
    synchronises_batch_norms,
)


@contextlib.contextmanager
def open_images(config: Config, runtime: Runtime) -> Iterator[tuple[Images, Batches]]:
    """Open the images, and divide them into batches."""
    if config.batch_size % world_size():
        raise UserError(
            f"batch_size {config.batch_size} is not a multiple of the {world_size()} processes"
        )
    with contextlib.ExitStack() as stack:

        def open_here() -> Images:
            images = Images.open(config, root=runtime.root, num_workers=runtime.num_workers)
            stack.callback(images.close)
            return images

        images = on_all_ranks(open_here)
        _require_same_number(len(images.pretrain), config.data.source)
        batches = Batches(
            images.pretrain,
            config.batch_size // world_size(),
            seed=config.seed,
            rank=rank(),
            world_size=world_size(),
        )
        yield images, batches


def _require_same_number(num_images: int, source: str) -> None:
    """Raise a UserError if the machines have different numbers of images."""
    numbers = from_all_ranks(num_images)
    if len(set(numbers)) > 1:
        raise UserError(
            f"the processes find different numbers of images in {source} "
            f"({', '.join(map(str, numbers))}, in the order of ranks): copy the same images to "
            "every machine, or share their folder"
        )


def build_job(
    config: Config,
    images: Images,
    batches: Batches,
    device: torch.device,
    compiled: bool,
    weights: Mapping[str, torch.Tensor] | None,
    precision: Precision | None = None,
) -> Job:
    """Build the method, the views and the optimizer of a configuration.

    weights: of the encoder's network, to start from. precision: None follows the configuration.
    """
    method = build_method(config, len(images.pretrain), weights)
    check_parts(method, config.accumulate, batches.batch_size)
    if config.checkpoint_activations:
        checkpoint_activations(method.encoder)
    precision = precision or _common_precision(choose_precision(config.precision, device, method))
    check_averaging(method, config, precision)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if synchronises_batch_norms(method, config):
        synchronise_batch_norms(method)
    views = build_views(config, method)
    steps_per_epoch = batches.steps_per_epoch
    log = config.log
    return Job(
        config=config,
        method=method,
        optimizer=build_optimizer(config, method),
        views=views,
        batches=batches,
        device=device,
        precision=precision,
        scaler=create_scaler(precision, device),
        schedule=config.optimizer.schedule or method.schedule,
        steps=config.steps or config.epochs * steps_per_epoch,
        save_every=max(1, round(log.save_every * steps_per_epoch)),
        probe_every=max(1, round(log.probe_every * steps_per_epoch)) if log.probe_every else 0,
        probe=images.probe(views.policy, config, precision),
        requested_batch_size=config.batch_size,
        compiled=compiled,
        keep_every=max(1, round(log.keep_every * steps_per_epoch)) if log.keep_every else 0,
    )


def recorded_precision(run: Run, device: torch.device) -> Precision | None:
    """Return the precision of a run that a CPU has begun and a CPU, maybe another one, resumes.

    None: the run has no checkpoint, or a GPU takes part.
    """
    facts = run.facts
    on_cpus = device.type == "cpu" and " cpu, " in (facts.device or "")
    if not on_cpus or not run.checkpoint.is_file():
        return None
    return next((known for known in PRECISIONS if known == facts.precision), None)


def _common_precision(precision: Precision) -> Precision:
    """Return the precision of all processes, whose machines may differ in what they support."""
    chosen = set(from_all_ranks(precision))
    return precision if len(chosen) == 1 else "float32"


def build_optimizer(config: Config, method: Method) -> torch.optim.Optimizer:
    """Build the optimizer of a configuration."""
    settings = config.optimizer
    scale = config.batch_size / 256 if settings.scale_lr else 1.0
    lr_vectors = None if settings.lr_vectors is None else settings.lr_vectors * scale
    if lr_vectors is not None and config.published and config.method["name"] == "BarlowTwins":
        # The authors sum the correlation matrix C over W devices in place, which autograd takes for
        # the identity: device r gets the gradient dL/dC · dC_r, and DDP averages these to 1/W of
        # dL = sum_r dL/dC · dC_r. Ours is dL. LARS divides matrices by their gradient's length;
        # for biases and norms, lr_vectors was chosen for 1/W of our gradient.
        lr_vectors /= world_size()
    try:
        return create_optimizer(
            method,
            name=settings.name,
            lr=settings.lr * scale,
            lr_vectors=lr_vectors,
            weight_decay=settings.weight_decay,
            final_weight_decay=settings.final_weight_decay,
            decay_vectors=settings.decay_vectors,
            constant_lr=settings.constant_lr or (),
            momentum=settings.momentum,
        )
    except ValueError as error:
        raise refused(error, f"{settings.name} with these settings") from error
