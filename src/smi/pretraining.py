"""From one command to a trained encoder: settles the configuration, builds what the loop needs, and keeps the run's folder.

run = smi.pretrain(data="~/photos", out="runs/mine")
run = smi.pretrain("cifar10", out="runs/a", method="BarlowTwins", epochs=100, settings={"optimizer.lr": 5e-4})
"""

import contextlib
import datetime
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smi import __version__
from smi.checkpoint import load as load_checkpoint
from smi.checkpoint import save_encoder, write_text
from smi.choice import choose_recipe
from smi.config import Config, differences, plain, resolve
from smi.data import Batches, Store, load, write_bad
from smi.data.batches import derive
from smi.data.places import announce, disk_errors, expand
from smi.data.subset import Subset
from smi.distributed import from_first, local_rank, processes, rank, world_size
from smi.errors import UserError
from smi.evaluate import extract_labelled, knn_accuracy
from smi.health import Context
from smi.journal import Journal
from smi.loggers import check_loggers, create_loggers
from smi.machine import choose_device, choose_precision, describe_device, versions
from smi.methods import create_method
from smi.nn import create_encoder
from smi.optim import create_optimizer
from smi.run import Run, move_aside, write_about
from smi.train import Interrupted, Job, train
from smi.views import Policy, Views, policy


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
    named = {"data": data, "method": method, "encoder": encoder, "epochs": epochs, "batch_size": batch_size, "seed": seed}
    asked = {**(settings or {}), **{key: str(value) if key == "data" else value for key, value in named.items() if value is not None}}
    check_loggers(loggers)
    where = choose_device(device, local_rank())
    with processes(where):
        if recipe is None:
            recipe, chosen = from_first(_choose(asked, root, where) if rank() == 0 else None)
            asked = {**chosen, **asked}
        config = resolve(recipe, asked)
        machine = Machine(where, root, num_workers, tuple(loggers), compiled)
        return _pretrain(config, expand(out), fresh, machine, f"recipe {recipe}")


@dataclass(frozen=True)
class Machine:
    """What does not change what is learned: where it is computed, and where data lies."""

    device: torch.device
    root: str | Path | None
    num_workers: int | None
    loggers: tuple[str, ...]
    compiled: bool


def _choose(asked: Mapping[str, Any], root: str | Path | None, device: torch.device) -> tuple[str, dict[str, Any]]:
    source = asked.get("data") or asked.get("data.source")
    if source is None:
        raise UserError("name a recipe (`smi pretrain cifar10-small`) or a folder of images (`--data DIR`)")
    choice = choose_recipe(str(source), root, device)
    print(f"chose {choice.sentence}")
    return choice.recipe, choice.settings


def _pretrain(config: Config, folder: Path, fresh: bool, machine: Machine, origin: str) -> Run:
    if config.batch_size % world_size():
        raise UserError(f"batch_size {config.batch_size} is not a multiple of the {world_size()} processes")
    with contextlib.ExitStack() as stack:
        images = _Images.open(config, machine)
        stack.callback(images.close)
        batches = Batches(images.pretrain, config.batch_size // world_size(), seed=config.seed, rank=rank(), world_size=world_size())
        if rank() == 0:
            with disk_errors(f"writing to {folder}"):
                stack.enter_context(_folder(folder, config, fresh, images, machine))
        from_first(None)  # the others wait for the folder
        run = Run(folder)
        if from_first(run.finished):
            if rank() == 0:
                print(f"{folder} is finished: nothing to do (--fresh starts over)")
            return run
        _train(config, run, batches, images, machine, origin)
        return run


def _train(config: Config, run: Run, batches: Batches, images: "_Images", machine: Machine, origin: str) -> None:
    device = machine.device
    torch.manual_seed(derive(config.seed, "encoder"))  # methods compared under one seed start from one encoder
    encoder = create_encoder(**config.encoder, image_size=config.views.size)
    torch.manual_seed(derive(config.seed, "method"))
    named = {name: value for name, value in config.method.items() if name != "name"}
    method = create_method(config.method["name"], encoder, num_images=len(images.pretrain), **named)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    views = Views(method.policy(policy(config.views.policy, size=config.views.size)))
    scale = config.batch_size / 256 if config.optimizer.scale_lr else 1.0
    vectors = config.optimizer.lr_vectors
    optimizer = create_optimizer(
        method,
        name=config.optimizer.name,
        lr=config.optimizer.lr * scale,
        lr_vectors=None if vectors is None else vectors * scale,
        weight_decay=config.optimizer.weight_decay,
        momentum=config.optimizer.momentum,
    )
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
        probe_every=max(1, round(config.log.probe_every * per_epoch)) if config.log.probe_every else 0,
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
    facts = _facts(config, job, images, machine)
    context = Context(
        method=config.method["name"],
        batch_size=batches.batch_size,
        embedding_dim=None,
        feature_dim=encoder.dim,
        num_views=len(views.policy.views),
        settings=named,
        world_size=world_size(),
        epochs=config.epochs,
    )
    journal = Journal(
        run.folder,
        context=context,
        total=job.total,
        steps_per_epoch=per_epoch,
        every=config.log.every,
        device=device,
        loggers=create_loggers(machine.loggers, run.folder, plain(config), start=start) if rank() == 0 else (),
        start=start,
        pending=kept["pending"],
        lines=run.lines() if rank() == 0 else (),
        begin=lambda dim: write_about(run.folder, facts | {"embedding_dim": dim, "status": "training"}),
    )
    try:
        train(job, journal, run.checkpoint, start=start)
    except Interrupted as stop:
        print(f"stopped after step {stop.step:,} of {job.total:,}; the same command goes on from there", flush=True)
        raise
    finally:
        journal.close()
        if rank() == 0 and images.pretrain.bad:
            write_bad(run.folder / "bad-files.txt", images.pretrain.bad)
    if rank() == 0:
        about = {"encoder": config.encoder, "image_size": config.views.size, "mean": views.policy.mean, "std": views.policy.std}
        save_encoder(run.folder / "encoder.safetensors", encoder.network.state_dict(), {k: str(v) for k, v in about.items()})
        write_about(run.folder, run.about | {"status": "finished"})


# -------------------------------------------------------------------------------------------------------------------- the folder


@contextlib.contextmanager
def _folder(folder: Path, config: Config, fresh: bool, images: "_Images", machine: Machine) -> Iterator[None]:
    """The run's folder, new or as it was left; ours alone until the end."""
    if fresh and folder.exists():
        with _alone(folder):
            announce(f"moved {folder} to {move_aside(folder)}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder to write the run to")
    is_run = (folder / "config.yaml").is_file()
    if folder.is_dir() and not is_run and any(path.name != ".lock" for path in folder.iterdir()):
        raise UserError(f"{folder} has files in it and is no run: give another folder, or --fresh to move it aside")
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if is_run:
            _check_same(Run(folder), config, images)
        else:
            write_text(folder / "config.yaml", config.text())
        yield


def _check_same(run: Run, config: Config, images: "_Images") -> None:
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
            file.truncate(position)


# -------------------------------------------------------------------------------------------------------------------- the images


class _Images:
    """What is trained on, and what probes look at: labelled images of the training set, and held-out ones the encoder never sees."""

    def __init__(self, pretrain: Store, bank: Store | None, held_out: Store | None):
        self.pretrain, self.bank, self.held_out = pretrain, bank, held_out

    @classmethod
    def open(cls, config: Config, machine: Machine) -> "_Images":
        data = config.data

        def read(split: Any) -> Store:
            return load(data.source, split, resolution=data.resolution, root=machine.root, num_workers=machine.num_workers)

        pretrain = read("pretrain")
        chosen = torch.randperm(len(pretrain), generator=torch.Generator().manual_seed(derive(config.seed, "images")))
        train = read("train") if config.log.probe_every else None
        labelled = train is not None and train.labels is not None
        apart = chosen[:0]
        if data.validation:
            if not labelled:
                raise UserError(f"data.validation keeps labelled images apart, and {data.source} has no labels")
            assert train is not None
            apart = chosen[chosen < len(train)][: round(data.validation * len(train))]
            chosen = chosen[~torch.isin(chosen, apart)]
        if data.images is not None:
            if data.images > len(chosen):
                raise UserError(f"data.images asks for {data.images:,} images, and {data.source} has {len(chosen):,} to train on")
            chosen = chosen[: data.images]
        whole = len(chosen) == len(pretrain)
        used = pretrain if whole else Subset(pretrain, chosen.sort().values)
        if not labelled or rank() != 0:
            return cls(used, None, None)
        assert train is not None
        bank = Subset(train, chosen[chosen < len(train)][: config.log.probe_images].sort().values)
        if len(apart):
            return cls(used, bank, Subset(train, apart[: config.log.probe_images].sort().values))
        held_out = read("val")
        if held_out.labels is None or len(held_out) == 0:
            return cls(used, None, None)
        some = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(derive(config.seed, "probe")))
        return cls(used, bank, Subset(held_out, some[: config.log.probe_images].sort().values))

    def probe(self, seen: Policy, config: Config) -> Callable[[nn.Module], dict[str, Any]] | None:
        """Weighted kNN of held-out images among labelled training images; None without labels."""
        if self.bank is None or self.held_out is None:
            return None
        bank, held_out = self.bank, self.held_out

        def look(encoder: nn.Module) -> dict[str, Any]:
            def features(store: Store) -> tuple[Tensor, Tensor]:
                return extract_labelled(encoder, store, mean=seen.mean, std=seen.std, size=config.views.size)

            queries, labels = features(held_out)
            found = knn_accuracy(*features(bank), queries, labels, num_classes=len(bank.classes) if bank.classes else None)
            return {
                "knn": found.top1,
                "k": found.k,
                "temperature": found.temperature,
                "bank": len(bank),
                "images": len(held_out),
                "split": "validation" if config.data.validation else "val",
                "chance": labels.bincount().max().item() / len(labels),
            }

        return look

    def close(self) -> None:
        for store in (self.pretrain, self.bank, self.held_out):
            if store is not None:
                store.close()


# ---------------------------------------------------------------------------------------------------------------- what is said


def _facts(config: Config, job: Job, images: _Images, machine: Machine) -> dict[str, Any]:
    return {
        "smi": __version__,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "num_images": len(images.pretrain),
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


def _announce_plan(config: Config, job: Job, images: _Images, origin: str, start: int) -> None:
    facts_of = job.method.encoder
    millions = sum(p.numel() for p in job.method.parameters() if p.requires_grad) / 1e6
    device_batch = f" ({job.batches.batch_size} on each of {world_size()} devices)" if world_size() > 1 else " on one device"
    rates = sorted({group["peak_lr"] for group in job.optimizer.param_groups}, reverse=True)
    scaled = f" = {config.optimizer.lr:g} × {config.batch_size}/256" if config.optimizer.scale_lr else ""
    vectors = f", {rates[-1]:g} for biases and norms" if len(rates) > 1 else ""
    probe = f", kNN on {len(images.held_out):,} held-out images" if images.held_out is not None else ", no labels to probe with"
    lines = [
        f"{origin}: {config.method['name']} on {config.data.source}",
        f"  images     {len(images.pretrain):,} at {images.pretrain.resolution} px{probe}",
        f"  encoder    {config.encoder['name']}, {facts_of.dim} features; {millions:.1f} M parameters are trained",
        f"  views      {job.views.policy.name}, {len(job.views.policy.views)} of {config.views.size} px ({job.views.backend})",
        f"  batch      {config.batch_size}{device_batch}; {job.total:,} steps in {config.epochs} epochs",
        f"  optimizer  {config.optimizer.name}, peak lr {rates[0]:g}{scaled}{vectors}, weight decay {config.optimizer.weight_decay:g}, "
        f"{job.schedule} after {config.optimizer.warmup_epochs:g} warm-up epochs",
        f"  device     {describe_device(job.device)}, {job.precision}",
    ]
    if start:
        lines.append(f"  resumed    after step {start:,}, epoch {start / job.batches.steps_per_epoch:.1f}")
    print("\n".join(lines), flush=True)


def say_what_next(run: Run) -> None:
    """After the last step."""
    if rank() != 0 or not run.finished:
        return
    print(f"done: {run.folder / 'encoder.safetensors'}, metrics in {run.folder / 'metrics.jsonl'}")
    print(f"next: smi doctor {run.folder}")
