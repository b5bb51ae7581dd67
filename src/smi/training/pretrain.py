"""From one command to a trained encoder: settles the configuration, builds what the loop needs, and keeps the run's folder.

run = smi.pretrain(data="~/photos", out="runs/mine")
run = smi.pretrain("cifar10", out="runs/a", method="BarlowTwins", epochs=100, settings={"optimizer.lr": 5e-4})
"""

import contextlib
import datetime
import fcntl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from smi import __version__
from smi.config.choose import choose_recipe
from smi.config.resolve import resolve
from smi.config.schema import Config, differences, plain
from smi.data import NAMES, Batches, write_bad
from smi.device import choose_device, choose_precision, describe_device, keep_memory, versions
from smi.distributed import from_first, local_rank, processes, rank, world_size
from smi.errors import TrainingError, UserError
from smi.files import disk_errors, expand, write_text
from smi.health import Context
from smi.imports import refused
from smi.methods import LossSetup, Method, MethodDescription
from smi.optim import create_optimizer
from smi.runs.checkpoint import load as load_checkpoint
from smi.runs.checkpoint import save_encoder
from smi.runs.restore import create, create_views
from smi.runs.run import Run, move_aside, write_about
from smi.terminal import announce
from smi.training.journal import Journal
from smi.training.loggers import check_loggers, create_loggers
from smi.training.loop import Job, train
from smi.training.probe import Images
from smi.training.signals import Interrupted

T = TypeVar("T")


def pretrain(
    recipe: str | Path | None = None,
    *,
    out: str | Path,
    data: str | Path | None = None,
    method: str | None = None,
    encoder: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    fresh: bool = False,
    root: str | Path | None = None,
    num_workers: int | None = None,
    loggers: Sequence[str] = (),
    compiled: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Pretrain an encoder into the folder `out`; again, to go on where it stopped. Without a recipe one is chosen from images and machine.

    settings: anything else of the configuration, dotted: {"optimizer.lr": 1e-3, "method.redundancy_weight": 0.1}.
    device: chosen by itself unless given. root: where named sets lie. loggers: "tensorboard", "wandb". compiled: by torch.compile.
    fresh: start over; what is in `out` is moved aside.
    """
    named = {
        "data": data,
        "method": method,
        "encoder": encoder,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
    }
    asked = {
        **(settings or {}),
        **{key: value for key, value in named.items() if value is not None},
    }
    if data is not None:
        asked["data"] = located(data)
    check_loggers(loggers)
    where = choose_device(device, local_rank())
    if where.type == "cpu":
        keep_memory()
    with processes(where):
        if recipe is None:
            recipe, chosen = _by_first(lambda: choose(asked, root, where))
            asked = {**chosen, **asked}
        config = resolve(recipe, asked)
        machine = Machine(where, root, num_workers, tuple(loggers), compiled)
        return _pretrain(config, expand(out), fresh, machine, f"recipe {recipe}")


def located(source: str | Path) -> str:
    """A folder by its whole path, so that the run's configuration means the same from anywhere."""
    folder = expand(source)
    return str(folder.resolve()) if str(source) not in NAMES and folder.is_dir() else str(source)


def _by_first(work: Callable[[], T]) -> T:
    """Done by the first process alone; what it found, or its mistake, is everybody's."""
    result: tuple[T | None, UserError | None] = (None, None)
    if rank() == 0:
        try:
            result = (work(), None)
        except UserError as error:
            result = (None, error)
    found, mistake = from_first(result)
    if mistake is not None:
        raise mistake
    return cast(T, found)


@dataclass(frozen=True)
class Machine:
    """What does not change what is learned: where it is computed, and where data lies."""

    device: torch.device
    root: str | Path | None
    num_workers: int | None
    loggers: tuple[str, ...]
    compiled: bool


def choose(
    asked: Mapping[str, Any], root: str | Path | None, device: torch.device
) -> tuple[str, dict[str, Any]]:
    """A recipe for the images, and what to set on top of it; says so."""
    source = asked.get("data") or asked.get("data.source")
    if source is None:
        raise UserError(
            "name a recipe (`smi pretrain cifar10-small`) or a folder of images (`--data DIR`)"
        )
    choice = choose_recipe(str(source), root, device)
    print(f"chose {choice.sentence}")
    return choice.recipe, choice.settings


def _pretrain(config: Config, folder: Path, fresh: bool, machine: Machine, origin: str) -> Run:
    if config.batch_size % world_size():
        raise UserError(
            f"batch_size {config.batch_size} is not a multiple of the {world_size()} processes"
        )
    with contextlib.ExitStack() as stack:
        images = Images.open(config, root=machine.root, num_workers=machine.num_workers)
        stack.callback(images.close)
        batches = Batches(
            images.pretrain,
            config.batch_size // world_size(),
            seed=config.seed,
            rank=rank(),
            world_size=world_size(),
        )
        finished = _by_first(lambda: _claim(folder, config, fresh, images, stack))
        run = Run(folder)
        if finished:
            if rank() == 0:
                print(f"{folder} is finished: nothing to do (--fresh starts over)")
            return run
        _train(config, run, batches, images, machine, origin)
        return run


def _train(
    config: Config, run: Run, batches: Batches, images: Images, machine: Machine, origin: str
) -> None:
    device = machine.device
    named = {name: value for name, value in config.method.items() if name != "name"}
    method = create(config, len(images.pretrain))
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder = method.encoder
    views = create_views(config, method)
    optimizer = _optimizer(config, method)
    per_epoch = batches.steps_per_epoch
    job = Job(
        method=method,
        optimizer=optimizer,
        views=views,
        batches=batches,
        device=device,
        precision=choose_precision(config.precision, device),
        seed=config.seed,
        total=config.epochs * per_epoch,
        schedule=config.optimizer.schedule or method.schedule,
        warmup=config.optimizer.warmup_epochs / config.epochs,
        final_lr=config.optimizer.final_lr,
        save_every=max(1, round(config.log.save_every * per_epoch)),
        probe_every=max(1, round(config.log.probe_every * per_epoch))
        if config.log.probe_every
        else 0,
        probe=images.probe(views.policy, config),
        compiled=machine.compiled,
    )
    start = 0
    kept: dict[str, Any] = {"pending": {}, "position": 0}
    if run.checkpoint.is_file():
        state = load_checkpoint(run.checkpoint, device)
        method.load_state_dict(state["method"])
        optimizer.load_state_dict(state["optimizer"])
        start, kept = state["step"], state["journal"]
    if rank() == 0:
        _cut(run.folder / "metrics.jsonl", kept["position"])
        _announce_plan(config, job, images, origin, start)
    facts = _facts(run, job, images, machine)
    context = Context(
        method=config.method["name"],
        batch_size=batches.batch_size,
        embedding_dim=None,
        feature_dim=encoder.dim,
        epochs=config.epochs,
    )

    def begin(embedding_dim: int) -> Context:
        """Write run.json, with what the method says about itself, and return the full context."""
        setup = LossSetup(
            batch_size=batches.batch_size,
            embedding_dim=embedding_dim,
            world_size=world_size(),
            num_views=len(views.policy.views),
            settings=named,
        )
        description = method.describe(setup)
        sizes = {"embedding_dim": embedding_dim, "status": "training", "method": description}
        write_about(run.folder, facts | sizes)
        return replace(
            context,
            embedding_dim=embedding_dim,
            description=MethodDescription.parse(description),
        )

    journal = Journal(
        run.folder,
        context=context,
        total=job.total,
        steps_per_epoch=per_epoch,
        every=config.log.every,
        device=device,
        loggers=create_loggers(machine.loggers, run.folder, plain(config), start=start)
        if rank() == 0
        else (),
        start=start,
        pending=kept["pending"],
        lines=run.lines() if rank() == 0 else (),
        begin=begin,
    )
    try:
        train(job, journal, run.checkpoint, start=start)
    except Interrupted as stop:
        if rank() == 0:
            print(
                f"stopped after step {stop.step:,} of {job.total:,}; the same command goes on from there",
                flush=True,
            )
        raise
    except TrainingError as error:
        if rank() == 0:
            write_about(run.folder, run.about | {"status": f"stopped: {error}"})
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        if (
            journal.done == start
        ):  # what does not work once is a matter of settings; whatever comes later is not
            raise refused(error, f"{config.method['name']} with these settings") from error
        raise
    finally:
        journal.close()
        if rank() == 0 and images.pretrain.bad:
            write_bad(run.folder / "bad-files.txt", images.pretrain.bad)
    if rank() == 0:
        save_encoder(
            run.folder / "encoder.safetensors", encoder.network.state_dict(), _header(config, job)
        )
        write_about(run.folder, run.about | {"status": "finished"})


def _header(config: Config, job: Job) -> dict[str, Any]:
    """What a file of weights says of them: enough to use it without the run."""
    about = {
        "method": config.method["name"],
        "seed": config.seed,
        "step": job.total,
        "epoch": config.epochs,
    }
    if config.data.source in NAMES:  # a folder of this machine says nothing elsewhere
        about["data"] = config.data.source
    network = {
        "encoder": config.encoder,
        "image_size": config.views.size,
        "resolution": job.batches.store.resolution,
    }
    return network | {"mean": job.views.policy.mean, "std": job.views.policy.std, "about": about}


def _optimizer(config: Config, method: Method) -> torch.optim.Optimizer:
    asked = config.optimizer
    scale = config.batch_size / 256 if asked.scale_lr else 1.0
    vectors = None if asked.lr_vectors is None else asked.lr_vectors * scale
    try:
        return create_optimizer(
            method,
            name=asked.name,
            lr=asked.lr * scale,
            lr_vectors=vectors,
            weight_decay=asked.weight_decay,
            momentum=asked.momentum,
        )
    except ValueError as error:
        raise refused(error, f"{asked.name} with these settings") from error


# -------------------------------------------------------------------------------------------------------------------- the folder


def _claim(
    folder: Path, config: Config, fresh: bool, images: Images, stack: contextlib.ExitStack
) -> bool:
    """Make the run's folder, or take it up as it was left; ours alone until the end. True if there is nothing left to do."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder to write the run to")
    with disk_errors(f"writing to {folder}"):
        if fresh and folder.exists():
            with _alone(folder):
                announce(f"moved {folder} to {move_aside(folder)}")
        has_config = (folder / "config.yaml").is_file()
        ours = {".lock", "checkpoints", "run.json", "metrics.jsonl"}
        others = (
            [
                path
                for path in folder.iterdir()
                if path.name not in ours and path.suffix != ".partial"
            ]
            if folder.is_dir()
            else []
        )
        if others and not has_config:
            raise UserError(
                f"{folder} has files in it and is no run: give another folder, or --fresh to move it aside"
            )
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        stack.enter_context(_alone(folder))
        begun = [
            path
            for path in (folder / "checkpoints" / "last.pt", folder / "metrics.jsonl")
            if path.is_file() and path.stat().st_size
        ]
        if has_config and begun:
            _check_same(Run(folder), config, images)
            return Run(folder).finished
        write_text(folder / "config.yaml", config.text())  # also over one that never took a step
        (folder / "run.json").unlink(missing_ok=True)
        return False


def _check_same(run: Run, config: Config, images: Images) -> None:
    """What a folder has begun is not mixed with something else."""
    before = {**run.config, "methods": {}}
    changed = differences(before, {**plain(config), "methods": {}})
    about = run.about
    for name, now in {"world_size": world_size(), "num_images": len(images.pretrain)}.items():
        if about.get(name, now) != now:
            changed.append(f"{name}: {about[name]} there, {now} now")
    if changed:
        raise UserError(
            f"{run.folder} was begun with another configuration ({'; '.join(changed)}): "
            "repeat it as it was, choose another --out, or start over with --fresh"
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is training into {folder}") from error
        yield


def _cut(path: Path, position: int) -> None:
    """What was logged after the checkpoint is done again."""
    if path.is_file():
        with path.open("r+b") as file:
            kept = file.read(position)
            file.truncate(
                kept.rfind(b"\n") + 1
            )  # a crash of the machine may have left less than that


# ---------------------------------------------------------------------------------------------------------------- what is said


def _facts(run: Run, job: Job, images: Images, machine: Machine) -> dict[str, Any]:
    return {
        "smi": __version__,
        "started": run.about.get("started")
        or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "num_images": len(images.pretrain),
        "resolution": images.pretrain.resolution,
        "root": str(expand(machine.root).resolve()) if machine.root else None,
        "world_size": world_size(),
        "batch_per_device": job.batches.batch_size,
        "steps": job.total,
        "steps_per_epoch": job.batches.steps_per_epoch,
        "num_views": len(job.views.policy.views),
        "feature_dim": job.method.encoder.dim,
        "parameters": sum(p.numel() for p in job.method.parameters() if p.requires_grad),
        "encoder_parameters": sum(p.numel() for p in job.method.encoder.parameters()),
        "peak_lr": [group["peak_lr"] for group in job.optimizer.param_groups],
        "schedule": job.schedule,
        "precision": job.precision,
        "compiled": machine.compiled,
        "views": job.views.backend,
        "policy": job.views.policy.name,
        "device": describe_device(job.device),
        "versions": versions(),
    }


def _announce_plan(config: Config, job: Job, images: Images, origin: str, start: int) -> None:
    facts_of = job.method.encoder
    millions = sum(p.numel() for p in job.method.parameters() if p.requires_grad) / 1e6
    device_batch = (
        f" ({job.batches.batch_size} on each of {world_size()} devices)"
        if world_size() > 1
        else " on one device"
    )
    rates = sorted({group["peak_lr"] for group in job.optimizer.param_groups}, reverse=True)
    scaled = (
        f" = {config.optimizer.lr:g} × {config.batch_size}/256" if config.optimizer.scale_lr else ""
    )
    vectors = f", {rates[-1]:g} for biases and norms" if len(rates) > 1 else ""
    probe = (
        f", kNN on {len(images.held_out):,} held-out images"
        if images.held_out is not None
        else f", {images.why_not}"
    )
    sizes = Counter(view.size for view in job.views.policy.views for _ in range(view.grid**2))
    views = " and ".join(f"{count} of {size} px" for size, count in sizes.items())
    lines = [
        f"{origin}: {config.method['name']} on {config.data.source}",
        f"  images     {len(images.pretrain):,} at {images.pretrain.resolution} px{probe}",
        f"  encoder    {config.encoder['name']}, {facts_of.dim} features; {millions:.1f} M parameters are trained",
        f"  views      {job.views.policy.name}, {views} ({job.views.backend})",
        f"  batch      {config.batch_size}{device_batch}; {job.total:,} steps in {config.epochs} epochs",
        f"  optimizer  {config.optimizer.name}, peak lr {rates[0]:g}{scaled}{vectors}, weight decay {config.optimizer.weight_decay:g}, "
        f"{job.schedule} after {config.optimizer.warmup_epochs:g} warm-up epochs",
        f"  device     {describe_device(job.device)}, {job.precision}",
    ]
    if start:
        lines.append(
            f"  resumed    after step {start:,}, epoch {start / job.batches.steps_per_epoch:.1f}"
        )
    print("\n".join(lines), flush=True)


def say_what_next(run: Run) -> None:
    """After the last step."""
    if rank() != 0 or not run.finished:
        return
    print(f"done: {run.folder / 'encoder.safetensors'}, metrics in {run.folder / 'metrics.jsonl'}")
    print(f"next: smi doctor {run.folder}, smi evaluate {run.folder}")
