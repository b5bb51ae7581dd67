"""Describe a run before its first step, and list the next commands after its last step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smi.device import describe_device
from smi.distributed import has_synchronised_batch_norms, world_size
from smi.evaluation.label_free import sample
from smi.losses.smi import AUTO_REDUNDANCY, weight_in_batch
from smi.nn.encoders import is_import_path, is_resnet, stem_of
from smi.runs.run import Run
from smi.terminal import counted, epochs_text
from smi.training.images import Images
from smi.training.job import Job


def plan_lines(
    job: Job, images: Images, recipe: str, *, start: int = 0, notes: Sequence[str] = ()
) -> list[str]:
    """Return the plan that is printed before training.

    recipe: its name. start: steps done before, when the run is resumed. notes: what the weights
    that it starts from lost or changed.
    """
    config, store, optimizer = job.config, images.pretrain, job.config.optimizer
    millions = sum(p.numel() for p in job.method.parameters() if p.requires_grad) / 1e6
    warmup = counted(optimizer.warmup_epochs, "warm-up epoch")
    published = ", as published" if config.published else ""
    lines = [
        f"recipe {recipe}{published}: {config.method['name']} on {config.data.source}",
        f"  images     {len(store):,} at {store.resolution} px, {_probe(images)}",
        f"  encoder    {config.encoder['name']}{_stem(job)}, {job.method.encoder.dim} features; "
        f"{millions:.1f} M parameters are trained",
        f"  views      {job.views.policy.name}, {_views(job)} ({job.views.backend})",
        f"  batch      {config.batch_size}{_per_device(job)}; "
        f"{job.steps:,} steps in {epochs_text(job.steps / job.batches.steps_per_epoch)}",
        f"  optimizer  {optimizer.name}, {_learning_rates(job)}, "
        f"{_weight_decay(job)}, {job.schedule} after {warmup}{_clip(job)}",
        f"  device     {describe_device(job.device)}, {job.precision}",
    ]
    if config.method.get("redundancy_weight") == "auto":
        num_samples = job.batches.batch_size // config.accumulate
        weight = weight_in_batch("auto", num_samples)
        lines.insert(
            5, f"  λ          {weight:.3g}: {AUTO_REDUNDANCY:g} / (N - 1) for N = {num_samples}"
        )
    if config.average_every > 1 and world_size() > 1:
        lines.append(
            f"  averaging  of weights and optimizer every {config.average_every} steps, before "
            "probes and before checkpoints; gradients are not exchanged"
        )
    if config.init.source is not None:
        kept = "kept" if config.init.statistics == "keep" else "updated"
        lines.insert(3, f"  start      {config.init.source}, batch norm statistics {kept}")
        lines[4:4] = [f"             {note}" for note in notes]
    if start:
        epoch = start / job.batches.steps_per_epoch
        lines.append(f"  resumed    after step {start:,}, epoch {epoch:.1f}")
    return lines


@dataclass(frozen=True)
class Outcome:
    """Describe a run after its last step."""

    run: Run

    def text(self) -> str:
        """Return the files of a finished run and the commands to try next."""
        return next_steps(self.run)

    def plain(self) -> dict[str, Any]:
        """Return the folder, its encoder, how the run ended, and its last probe."""
        run, probes = self.run, self.run.probes()
        return {
            "folder": str(run.folder),
            "encoder": str(run.folder / "encoder.safetensors") if run.finished else None,
            "status": run.facts.status,
            "epochs": run.facts.epochs,
            "probe": probes[-1]["probe"] if probes else None,
        }


def next_steps(run: Run) -> str:
    """Return the files of a finished run and the commands to try next."""
    if not run.finished:
        return ""
    probing = bool((run.config.get("log") or {}).get("probe_every", 1))
    labelled = not probing or any("knn" in line["probe"] for line in run.probes())
    then = f"smi evaluate {run.folder}" if labelled else f"smi report {run.folder}"
    return (
        f"done: {run.folder / 'encoder.safetensors'}, metrics in {run.folder / 'metrics.jsonl'}\n"
        f"next: smi doctor {run.folder}, {then}"
    )


def _stem(job: Job) -> str:
    """Return the first layers of a ResNet in words."""
    network, config = job.method.encoder.network, job.config
    if not is_resnet(network) or is_import_path(str(config.encoder["name"])):
        return ""
    stem = stem_of(
        network, str(config.encoder["name"]), config.views.size, config.encoder.get("stem")
    )
    return f" with the {stem} stem"


def _probe(images: Images) -> str:
    if images.held_out is None:
        return images.why_not
    if images.bank is None:
        return f"retrieval of views on {len(sample(images.held_out)):,} held-out images"
    return f"kNN on {len(images.held_out):,} held-out images"


def _views(job: Job) -> str:
    sizes = Counter(view.size for view in job.views.policy.views for _ in range(view.grid**2))
    made = " and ".join(f"{count} of {size} px" for size, count in sizes.items())
    whole, size = job.config.views.whole_size, job.config.views.size
    return made if whole == size else f"{made}, for whole images of {whole} px"


def _per_device(job: Job) -> str:
    parts = f" in {job.config.accumulate} parts" if job.config.accumulate > 1 else ""
    if world_size() == 1:
        return f" on one device{parts}"
    synchronised = (
        f", batch norm synchronised over {world_size()} devices"
        if has_synchronised_batch_norms(job.method)
        else ""
    )
    return f" ({job.batches.batch_size} on each of {world_size()} devices{parts}{synchronised})"


def _learning_rates(job: Job) -> str:
    optimizer = job.config.optimizer
    rates = sorted({group["peak_lr"] for group in job.optimizer.param_groups}, reverse=True)
    constant = f", constant for {', '.join(optimizer.constant_lr)}" if optimizer.constant_lr else ""
    scaled = f" = {optimizer.lr:g} × {job.config.batch_size}/256" if optimizer.scale_lr else ""
    vectors = f", {rates[-1]:g} for biases and norms" if len(rates) > 1 else ""
    return f"peak lr {rates[0]:g}{scaled}{vectors}{constant}"


def _weight_decay(job: Job) -> str:
    optimizer = job.config.optimizer
    final = optimizer.final_weight_decay
    end = "" if final is None else f" to {final:g}"
    return f"weight decay {optimizer.weight_decay:g}{end}"


def _clip(job: Job) -> str:
    clip = job.config.optimizer.clip
    return "" if clip is None else f", gradients clipped at {clip:g}"
