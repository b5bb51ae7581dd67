"""Take one training step: forward, backward, clip, optimizer, and the method's own updates.

A batch may pass through the network in parts, one after another (`accumulate`). A part counts as a
device for a method whose devices have losses of their own (`Method.local`). For every other method
the loss is that of the whole batch: the embeddings of all parts are computed first and without a
graph, then the loss and its gradient for each embedding, then every part again with a graph.

Several processes average their gradients in each step. With `average_every` they do not: each takes
steps of its own, and the weights, batch norm statistics and moments of the optimizer are averaged
after some of them (`Job.processes_agree`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from smi.config.schema import Config
from smi.data import Batch
from smi.device import Precision, autocast
from smi.distributed import (
    all_mean,
    alone,
    average,
    data_parallel,
    rank,
    send_rows,
    world_size,
)
from smi.errors import TrainingError, UserError
from smi.losses import Terms
from smi.methods import Method, Output
from smi.optim import clip_gradients
from smi.seeds import derive
from smi.training.job import Job

LEAST_SCALE = 2.0**-10  # of the loss in float16; below, every gradient is infinite or NaN

Model = Callable[..., Any]  # a method or its embeddings, compiled and in DDP if they are


@dataclass(frozen=True)
class Taken:
    """Hold the result of a step."""

    out: Output
    gradient_norm: Tensor  # of all parameters together, before clipping
    skipped: bool  # a gradient overflowed in float16, so the step changed nothing but the scale


class Step:
    """Take the steps of a job, each from the views of a batch.

    The random numbers that the network itself draws (dropout) are seeded by the seed of the run,
    the step, and the rank; part i of k on rank r has those of rank k r + i.
    """

    def __init__(self, job: Job):
        self._method = job.method
        self._optimizer = job.optimizer
        self._scaler = job.scaler
        self._device = job.device
        self._precision = job.precision
        self._config = job.config
        self._num_parts = job.config.accumulate
        self._network: nn.Module = job.method
        if self._num_parts > 1 and not job.method.local:
            self._network = _Embedding(job.method)
        if job.compiled:
            self._network.compile()
        self._processes_agree = job.processes_agree
        self._takes_local_steps = job.config.average_every > 1 and world_size() > 1
        self._model: nn.Module = self._network
        if self._takes_local_steps:
            for tensor in job.method.state_dict().values():
                send_rows(tensor, 0)  # all begin with the same weights, as DDP has it
        else:
            self._model = data_parallel(self._network, job.device)
        self._parameters = [p for group in job.optimizer.param_groups for p in group["params"]]
        # The factor of the loss in float16, read from the device; None for other precisions.
        self.scale = job.scaler.get_scale if job.scaler.is_enabled() else None
        self._norms = [m for m in job.method.modules() if isinstance(m, _BatchNorm)]
        self._statistics = _Statistics(self._norms)

    def __call__(self, step: int, views: Sequence[Tensor], batch: Batch) -> Taken:
        """Take step number `step`, counted from 0."""
        # A number that overflows in the network must not stay in the statistics of batch norms.
        statistics = self._statistics.copy() if self._scaler.is_enabled() else []
        out = self._backward(self._model, step, views, batch)
        self._scaler.unscale_(self._optimizer)
        norm = gradient_norm(self._parameters)
        if self._config.optimizer.clip is not None:
            clip_gradients(self._parameters, self._config.optimizer.clip)
        self._method.before_step()
        # Only float16 waits for the device here: the host must know whether to update the method.
        # Gradients are those of all devices, so every device decides alike.
        skipped = self._scaler.is_enabled() and not norm.isfinite().item()
        if not skipped:
            self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        if skipped:
            self._statistics.restore(statistics)
            self._require_scale()
        else:
            self._method.after_step()
        if self._takes_local_steps and self._processes_agree(step + 1):
            self._average()
            norm = all_mean(norm)  # NaN on all processes if it is NaN on one of them
        return Taken(out, norm, skipped)

    def _average(self) -> None:
        """Average everything that a step changes over the processes.

        The moments of the optimizer are averaged, too: a checkpoint of one process is then that of
        all. Counters are the same everywhere.
        """
        tensors = self._method.state_dict().values()
        average([tensor for tensor in tensors if tensor.is_floating_point()])
        states = [self._optimizer.state.get(p, {}) for p in self._parameters]
        values = [x for state in states for name, x in state.items() if name != "step"]
        average([x for x in values if isinstance(x, Tensor)])

    def rehearse(self, step: int, views: Sequence[Tensor], batch: Batch) -> None:
        """Run forward and backward without other processes, and change nothing.

        A process that runs out of memory in a real step leaves the others waiting for it.
        """
        synchronised = [m for m in self._norms if isinstance(m, nn.SyncBatchNorm) and m.training]
        for norm in synchronised:
            norm.eval()
        try:
            with alone(), self._statistics.kept():
                self._backward(self._network.forward, step, views, batch)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
            for norm in synchronised:
                norm.train()

    # ---------------------------------------------------------------------------------- backward

    def _backward(self, model: Model, step: int, views: Sequence[Tensor], batch: Batch) -> Output:
        """Compute the gradients of a batch; return its output."""
        if self._num_parts == 1:
            self._seed(step, 0)
            return self._one_pass(model, views, batch)
        if self._network is self._method:
            return self._parts_as_devices(model, step, views, batch)
        return self._parts_of_one_loss(model, step, views, batch)

    def _one_pass(
        self, model: Model, views: Sequence[Tensor], batch: Batch, share: float = 1.0
    ) -> Output:
        """Compute the gradients of a batch, times its share in the loss."""
        with self._autocast():
            out: Output = model(views, batch)
        loss = out.loss if share == 1 else out.loss * share
        # Checkpointed activations are computed a second time in here.
        twice = self._config.checkpoint_activations
        with self._statistics.kept() if twice else nullcontext():
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return out

    def _parts_as_devices(
        self, model: Model, step: int, views: Sequence[Tensor], batch: Batch
    ) -> Output:
        """Compute the mean gradient of the parts, as if each were on a device of its own."""
        outputs = []
        for i, (x, part) in enumerate(self._parts(views, batch)):
            self._seed(step, i)
            with self._exchange(model, last=i == self._num_parts - 1):
                out = self._one_pass(model, x, part, share=1 / self._num_parts)
            outputs.append(_detached(out))
        return _mean(outputs)

    def _parts_of_one_loss(
        self, model: Model, step: int, views: Sequence[Tensor], batch: Batch
    ) -> Output:
        """Compute the gradient of one loss over all parts, with the activations of one part."""
        embeddings, num_learned = self._embed_parts(step, views, batch)
        for embedding in embeddings[:num_learned]:
            embedding.requires_grad_()
        with self._autocast():
            out = self._method.objective(embeddings, batch)
        self._scaler.scale(out.loss).backward()  # type: ignore[no-untyped-call]
        gradients = [z.grad for z in embeddings[:num_learned]]
        pieces = [() if g is None else g.chunk(self._num_parts) for g in gradients]
        with self._statistics.kept():  # the first pass has updated them
            for i, (x, _) in enumerate(self._parts(views, batch)):
                self._seed(step, i)
                with self._exchange(model, last=i == self._num_parts - 1):
                    with self._autocast():
                        learned: tuple[Tensor, ...] = model(x)
                    used = [j for j, z in enumerate(learned) if z.requires_grad and pieces[j]]
                    torch.autograd.backward(
                        [learned[j] for j in used], [pieces[j][i] for j in used]
                    )
        return _detached(out)

    @torch.no_grad()
    def _embed_parts(
        self, step: int, views: Sequence[Tensor], batch: Batch
    ) -> tuple[tuple[Tensor, ...], int]:
        """Return the embeddings and targets of all parts, and the number of embeddings."""
        num_learned, rows = 0, []
        for i, (x, _) in enumerate(self._parts(views, batch)):
            self._seed(step, i)
            with self._autocast():
                learned = self._network(x)
                rows.append((*learned, *self._method.targets(x)))
            num_learned = len(learned)
        return tuple(torch.cat(parts) for parts in zip(*rows, strict=True)), num_learned

    def _parts(self, views: Sequence[Tensor], batch: Batch) -> Iterator[tuple[list[Tensor], Batch]]:
        """Yield the views of each part, and its images."""
        k = self._num_parts
        for i in range(k):
            # The images stay as they are: the views are made, and methods do not look at images.
            part = replace(batch, index=batch.index.chunk(k)[i], seed=derive(batch.seed, "part", i))
            yield [x.chunk(k)[i] for x in views], part

    def _seed(self, step: int, part: int) -> None:
        """Seed the random numbers that the network itself draws."""
        device = rank() * self._num_parts + part
        torch.manual_seed(derive(self._config.seed, "step", step, device))

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self._device, self._precision)

    @staticmethod
    def _exchange(model: Model, *, last: bool) -> AbstractContextManager[None]:
        """Return a context in which only the last part exchanges gradients between processes."""
        if last or not isinstance(model, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return model.no_sync()

    def _require_scale(self) -> None:
        """Stop a run whose gradients overflow at every scale."""
        scale = self._scaler.get_scale()
        if scale < LEAST_SCALE:
            raise TrainingError(
                f"the gradients are infinite or NaN in float16 even with the loss times {scale:g}: "
                "start over (--fresh) with --precision float32, or with a lower learning rate"
            )


class _Embedding(nn.Module):
    """Make the forward pass of a method's embeddings a module, to compile it and for DDP."""

    def __init__(self, method: Method):
        super().__init__()
        self.method = method

    def forward(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self.method.embed(views)


def create_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Return a scaler of gradients, which does nothing unless the precision is float16."""
    return torch.amp.GradScaler(device.type, enabled=precision == "float16")


def check_parts(method: Method, accumulate: int, batch_per_device: int) -> None:
    """Raise a UserError if a batch cannot pass through the method in parts."""
    if accumulate < 1:
        raise UserError(f"accumulate must be 1 or more, not {accumulate}")
    if batch_per_device % accumulate:
        raise UserError(
            f"the {batch_per_device} images on each device are not a multiple of "
            f"accumulate {accumulate}"
        )
    if accumulate > 1 and not method.local and type(method).objective is Method.objective:
        raise UserError(
            f"accumulate {accumulate} needs a method with `embed` and `objective`, and "
            f"{type(method).__name__} has only `forward`"
        )


def check_averaging(method: Method, config: Config, precision: Precision) -> None:
    """Raise a UserError if the processes cannot take steps without one another."""
    if config.average_every == 1:
        return
    reason = ""
    if method.gathers or method.stored:
        reason = f"the loss of {type(method).__name__} needs those of other devices"
    elif synchronises_batch_norms(method, config):
        reason = "batch norms are synchronised (--sync-batch-norm false switches it off)"
    elif precision == "float16":
        reason = "each device would skip other steps in float16"
    if reason:
        raise UserError(
            f"average_every {config.average_every} lets every device take steps of its own, "
            f"and {reason}: use average_every 1"
        )


def synchronises_batch_norms(method: Method, config: Config) -> bool:
    """Return whether batch norms use the statistics of all processes."""
    chosen = config.sync_batch_norm
    return method.synchronises_batch_norm if chosen is None else chosen


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device had too little memory; on MPS only the message says so."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error)
    )


@torch.no_grad()
def gradient_norm(parameters: Sequence[Tensor]) -> Tensor:
    """Return the total norm of all gradients."""
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


class _Statistics:
    """Copy and restore the running statistics of batch norms: a pass must not count twice."""

    def __init__(self, norms: Sequence[nn.Module]):
        buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
        # Tensors of one type are copied by one kernel.
        types = {buffer.dtype for buffer in buffers}
        self._groups = [[b for b in buffers if b.dtype == dtype] for dtype in types]

    @torch.no_grad()
    def copy(self) -> list[tuple[Tensor, ...]]:
        """Return the statistics of this moment."""
        return [torch._foreach_add(group, 0) for group in self._groups]

    @torch.no_grad()
    def restore(self, copies: Sequence[tuple[Tensor, ...]]) -> None:
        """Set the statistics back."""
        for group, values in zip(self._groups, copies, strict=True):
            torch._foreach_copy_(group, values)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Set the statistics back at the end of the block."""
        copies = self.copy()
        try:
            yield
        finally:
            self.restore(copies)


def _detached(out: Output) -> Output:
    """Return an output without the graph that made it."""
    terms = Terms(out.loss.detach(), **{name: value.detach() for name, value in out.terms.items()})
    return Output(terms, out.h.detach(), out.z1.detach(), out.z2.detach())


def _mean(outputs: Sequence[Output]) -> Output:
    """Return the mean loss of all parts, with the features of all."""
    names = outputs[0].terms
    terms = {name: torch.stack([out.terms[name] for out in outputs]).mean() for name in names}
    total = torch.stack([out.loss for out in outputs]).mean()
    h, z1, z2 = (torch.cat([getattr(out, name) for out in outputs]) for name in ("h", "z1", "z2"))
    return Output(Terms(total, **terms), h, z1, z2)
