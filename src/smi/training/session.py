"""Train a job into the folder of its run: restore its state, train, and write the encoder.

    train_into_folder(job, run, images, runtime, loggers=(), recipe="digits", notes=())

Errors are explained in one sentence here, with what is left in the folder.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smi.config.schema import plain
from smi.device import Runtime
from smi.distributed import from_all_ranks, on_rank_0, rank, world_size
from smi.errors import TrainingError, UserError
from smi.imports import refused
from smi.runs.checkpoint import does_not_fit
from smi.runs.checkpoint import load as load_checkpoint
from smi.runs.run import Facts, Run
from smi.terminal import announce, say
from smi.training.bar import Length
from smi.training.images import Images
from smi.training.job import Job
from smi.training.journal import Journal
from smi.training.loggers import create_loggers
from smi.training.loop import BatchDoesNotFitError, train
from smi.training.plan import plan_lines
from smi.training.run_facts import changed_processes, collect_facts
from smi.training.selection import Selection
from smi.training.signals import Interrupted
from smi.training.step import is_out_of_memory


class FirstStepDoesNotFitError(Exception):
    """Report that the first step of a new run did not fit into the memory of a device.

    claimed: whether the folder of the run was created already, and an earlier one renamed.
    """

    def __init__(self, *, claimed: bool):
        super().__init__("the first step runs out of memory")
        self.claimed = claimed


def train_into_folder(
    job: Job,
    run: Run,
    images: Images,
    runtime: Runtime,
    loggers: Sequence[str],
    *,
    recipe: str,
    notes: Sequence[str],
) -> None:
    """Resume from the last checkpoint if there is one, train, and write the encoder."""
    start, earlier = _restore(job, run)
    if rank() == 0:
        run.cut_metrics(earlier["position"])
        say("\n".join(plan_lines(job, images, recipe, start=start, notes=notes)))
    before = on_rank_0(lambda: run.facts)
    if start and rank() == 0 and (sentence := changed_processes(job, before)):
        announce(sentence)
    facts = collect_facts(job, earlier=before, recipe=recipe, root=runtime.root, start=start)
    journal = _journal(job, run, loggers, start, earlier["pending"])
    with _disk_errors(run):
        try:
            _train_or_explain(job, journal, run, facts, start)
        finally:
            journal.close()
            if rank() == 0:
                run.write_bad_files(images.pretrain.bad)
        bad = [item for of_rank in from_all_ranks(images.pretrain.bad) for item in of_rank]
        on_rank_0(lambda: run.write_bad_files(bad))
        on_rank_0(lambda: _finish(job, run))


@contextlib.contextmanager
def _disk_errors(run: Run) -> Iterator[None]:
    """Explain a full disk, or a folder that was removed, in one sentence."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        kept = "its last checkpoint is kept" if run.checkpoint.is_file() else "it has no checkpoint"
        raise UserError(
            f"writing to {run.folder} failed: {error.strerror or error}{where}; {kept}. Fix the "
            "problem, then rerun the same command."
        ) from error


def _finish(job: Job, run: Run) -> None:
    """Write the encoder file of the run, and say which encoder it is."""
    selection = Selection(job, run)
    run.finish(*selection.result(job.method.get_submodule(job.method.exported_encoder)))
    if sentence := selection.sentence():
        say(sentence)


def _restore(job: Job, run: Run) -> tuple[int, dict[str, Any]]:
    """Load the last checkpoint; return the steps done and the state of the journal.

    Rank 0 reads it for all ranks: other machines may not have the folder.
    """
    state = on_rank_0(lambda: load_checkpoint(run.checkpoint) if run.checkpoint.is_file() else None)
    if state is None:
        return 0, {"pending": {}, "position": 0}
    try:
        job.method.load_state_dict(state["method"])
        job.optimizer.load_state_dict(state["optimizer"])
        if state.get("scaler"):  # empty unless the precision is float16
            job.scaler.load_state_dict(state["scaler"])
        earlier = {name: state["journal"][name] for name in ("pending", "position")}
        _require_fitting_state(job.optimizer, earlier)
    except Exception as error:  # wrong parts are refused in any way
        raise does_not_fit(run.checkpoint, error) from error
    return state["step"], earlier


def _require_fitting_state(optimizer: torch.optim.Optimizer, journal: Mapping[str, Any]) -> None:
    """Raise a ValueError for a state that would fail in a later step."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if torch.is_tensor(value) and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} of the optimizer has the shape {list(value.shape)}")
    if not isinstance(journal["position"], int) or not all(
        torch.is_tensor(values) and values.ndim == 1 for values in journal["pending"].values()
    ):
        raise ValueError("the state of the metrics is damaged")


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
        if rank() == 0:
            say(
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
        # Several processes try again only if all of them know; otherwise torchrun ends them.
        alone = world_size() == 1 and is_out_of_memory(error)
        if start == 0 and (alone or isinstance(error, BatchDoesNotFitError)):
            raise FirstStepDoesNotFitError(claimed=True) from error
        if is_out_of_memory(error):
            raise UserError(
                "the first step runs out of memory: use a smaller --batch-size, --accumulate 2 or "
                "--checkpoint-activations"
            ) from error
        # If the first step fails, the settings are wrong; a later failure is a bug.
        name = job.config.method["name"]
        raise refused(error, f"{name} with these settings") from error
