"""Wrap all collectives that the package uses. With one process, each function is the identity."""

import ctypes
import gc
import inspect
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm

from smi.errors import UserError

T = TypeVar("T")

# Rank 0 may decode a large dataset or probe with it while the others wait.
TIMEOUT = timedelta(hours=24)


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the process group if torchrun started several processes, and leave it at the end.

    After an error NCCL is aborted: an orderly end could wait for processes that wait for this one.
    Their collectives fail as soon as this process has ended; torchrun ends them in any case.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world_size() > 1:
        yield
        return
    _end_with_torchrun()
    # DDP imports it. Imported later, its default arguments would hold the group to the very end.
    import torch._dynamo  # noqa: F401

    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
        **_new_store(),
    )
    try:
        yield
    except BaseException as error:
        if device.type == "cuda":
            dist.distributed_c10d._abort_process_group()
        else:
            traceback.clear_frames(error.__traceback__)  # their variables hold the group
            _leave_group()
        raise
    _leave_group()


def _end_with_torchrun() -> None:
    """Let the kernel send SIGTERM when torchrun is killed: a run then stops after a checkpoint.

    Otherwise its processes would train on, and hold the lock of the run.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


_num_groups = 0  # that this process has joined


def _new_store() -> dict[str, Any]:
    """Return the arguments of a new store, unless this is the first group of all.

    That of torchrun may still hold addresses of an earlier group, or of the processes before
    torchrun started them again. Several machines may have started again a different number of
    times, so only their groups are counted (docs/scaling.md).
    """
    global _num_groups
    _num_groups += 1
    one_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if one_machine else 0
    if attempt == 0 and _num_groups == 1:
        return {}
    store, rank, world_size = next(
        dist.rendezvous("env://", timeout=TIMEOUT)  # type: ignore[attr-defined]
    )
    prefix = f"attempt {attempt}, group {_num_groups}"
    store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    return {"store": store, "rank": rank, "world_size": world_size}


def _leave_group() -> None:
    """Leave the process group and wait for its threads.

    A thread that still drops a tensor while Python shuts down would abort the process. The threads
    end with the last reference to the group, and those of DDP are in cycles.
    """
    gc.collect()
    dist.destroy_process_group()


_alone = False  # inside a block of `alone`


@contextmanager
def alone() -> Iterator[None]:
    """Compute inside the block as if this process were the only one, without any collective."""
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


def world_size() -> int:
    """Return the number of processes."""
    initialized = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if initialized and not _alone else 1


def num_launched() -> int:
    """Return the number of processes that torchrun started, also outside a process group."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the rank of this process among all processes."""
    return dist.get_rank() if world_size() > 1 else 0


def local_rank() -> int:
    """Return the rank of this process on its machine, which is the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def from_rank_0(value: Any) -> Any:
    """Return the value of rank 0 on all processes."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values)
    return values[0]


def from_all_ranks(value: T) -> list[T]:
    """Return the values of all processes, in the order of ranks, on each of them."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def on_rank_0(work: Callable[[], T]) -> T:
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


def on_all_ranks(work: Callable[[], T]) -> T:
    """Call `work` on every rank; if it raises a UserError on one, raise it on every rank.

    Every machine prints the error, so that of another rank than 0 names its machine.
    """
    result: T | None = None
    error: str | None = None
    try:
        result = work()
    except UserError as mistake:
        machine = f" (rank {rank()}, on {socket.gethostname()})" if rank() else ""
        error = f"{mistake}{machine}"
    for first in filter(None, from_all_ranks(error)):
        raise UserError(first)
    return cast(T, result)


def barrier() -> None:
    """Wait for all processes."""
    from_rank_0(None)


def data_parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a module so that gradients are averaged over the processes as they are computed.

    Nothing else is exchanged. Every device keeps its own batch norm statistics, unless
    `synchronise_batch_norms` was called.
    """
    if world_size() == 1:
        return module
    wrapper = nn.parallel.DistributedDataParallel
    # PyTorch 2.15 renames broadcast_buffers.
    renamed = "forward_sync_buffers" in inspect.signature(wrapper.__init__).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    options["gradient_as_bucket_view"] = True  # gradients are exchanged in place, not copied
    return wrapper(module, device_ids=[device.index] if device.type == "cuda" else None, **options)


def synchronise_batch_norms(module: nn.Module) -> None:
    """Give the batch norms inside a module, in place, the statistics of all processes.

    Call it after the module was moved to its device. Names and tensors of its state stay the same.
    Outside training mode nothing is exchanged.
    """
    if world_size() == 1:
        return
    on_gpu = any(p.device.type == "cuda" for p in module.parameters())
    for path, norm in list(module.named_modules()):
        if path and isinstance(norm, _BatchNorm) and not _is_synchronised(norm):
            parent, _, name = path.rpartition(".")
            # PyTorch's synchronised batch norm needs a GPU.
            kind = GpuBatchNorm if on_gpu else SynchronisedBatchNorm
            setattr(module.get_submodule(parent), name, _converted(norm, kind))


def has_synchronised_batch_norms(module: nn.Module) -> bool:
    """Return whether a batch norm inside a module has the statistics of all processes."""
    return any(map(_is_synchronised, module.modules()))


def _is_synchronised(module: nn.Module) -> bool:
    return isinstance(module, nn.SyncBatchNorm | SynchronisedBatchNorm)


def join(z: Tensor) -> Tensor:
    """Gather the rows of all W processes in the order of ranks: [N, ...] becomes [W N, ...].

    Every process must pass N rows, so drop a smaller last batch. Differentiable once.

    It is meant for a loss that every process computes in full on the same joined rows. The gradient
    for the rows of this process is multiplied by W, without a collective. DDP then averages
    gradients over the processes, which gives the gradient of the one joined loss.
    """
    return _Join.apply(z) if world_size() > 1 else z


def all_mean(x: Tensor) -> Tensor:
    """Return the mean of `x` over all processes, without a gradient."""
    x = x.detach().clone()
    if world_size() > 1:
        dist.all_reduce(x)
        x /= world_size()
    return x


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes, with one exchange per type of number."""
    if world_size() == 1:
        return
    for dtype in {x.dtype: None for x in tensors}:  # in the same order on all processes
        group = [x for x in tensors if x.dtype == dtype]
        mean = all_mean(torch.cat([x.reshape(-1) for x in group]))
        for x, values in zip(group, torch.split(mean, [x.numel() for x in group]), strict=True):
            x.copy_(values.view(x.shape))


def own_rows(joined: Tensor) -> Tensor:
    """Return the rows of this process among joined ones."""
    return joined.chunk(world_size())[rank()] if world_size() > 1 else joined


def in_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply `function` to a part of the rows on each process, and gather the results in order.

    x: the same rows on all processes. Differentiable once, as `join` is. With fewer rows than
    processes, each process computes all of them.
    """
    if world_size() == 1 or len(x) < world_size():
        return function(x)
    parts = x.tensor_split(world_size())
    y = function(parts[rank()])
    missing = len(parts[0]) - len(y)  # the first part is the largest
    joined = join(_sendable(pad(y, (0, 0) * (y.ndim - 1) + (0, missing)))).chunk(world_size())
    rows = [joined_part[: len(part)] for joined_part, part in zip(joined, parts, strict=True)]
    return torch.cat(rows).to(y.device)


def send_rows(x: Tensor, sender: int) -> None:
    """Overwrite `x` on all processes with the `x` of one of them."""
    if world_size() > 1:
        message = _sendable(x)
        dist.broadcast(message, sender)
        x.copy_(message)


def _sendable(x: Tensor) -> Tensor:
    """Return a tensor on the device from which the processes exchange tensors."""
    return x.cuda() if dist.get_backend() == "nccl" else x.cpu()


def shuffle(x: Tensor) -> Tensor:
    """Exchange rows between processes: process r of W gets every W-th joined row, from row r on.

    MoCo's keys pass their batch norms in this order and return by `unshuffle`, so that the batch
    norm statistics of a query do not reveal its key. The order of images is already random, so the
    exchange need not be.
    """
    return join(x)[rank() :: world_size()] if world_size() > 1 else x


def unshuffle(x: Tensor) -> Tensor:
    """Undo `shuffle`."""
    if world_size() == 1:
        return x
    return own_rows(torch.stack(join(x).chunk(world_size()), dim=1).flatten(0, 1))


class _Join(torch.autograd.Function):
    """Gather rows; pass W times the gradient of the rows of this process back."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        joined = z.new_empty(world_size() * len(z), *z.shape[1:])
        dist.all_gather_into_tensor(joined, z.contiguous())
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return own_rows(grad) * world_size()


class _AllMean(torch.autograd.Function):
    """Average a tensor over all processes, and its gradient too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_mean(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # Every process has a loss of its own. DDP averages their gradients.
        return all_mean(grad)


class SynchronisedBatchNorm(_BatchNorm):
    """Normalise with the mean and the variance over the batches of all processes, on any device.

    Every process must pass as many rows. The gradient is that of the joined batch.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # any number of dimensions

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input, then dropout and activation where timm's norm has them."""
        y = self._normalise(input) if self.training else super().forward(input)
        for part in self.children():
            y = part(y)
        return y

    def _normalise(self, x: Tensor) -> Tensor:
        y: Tensor
        dims = [0, *range(2, x.ndim)]
        shape = [1, -1] + [1] * (x.ndim - 2)
        with torch.autocast(x.device.type, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            mean = _AllMean.apply(wide.mean(dims))
            centred = wide - mean.view(shape)
            variance = _AllMean.apply(centred.square().mean(dims))
            self._track(mean.detach(), variance.detach(), x.numel() // x.shape[1] * world_size())
            y = centred * (variance + self.eps).rsqrt().view(shape)
            if self.affine:
                y = y * self.weight.view(shape) + self.bias.view(shape)
            return y.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share: float | Tensor | None = self.momentum
        if share is None:  # the mean over all batches
            share = self.num_batches_tracked.to(self.running_mean).reciprocal()
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var), share)


class GpuBatchNorm(nn.SyncBatchNorm):
    """Extend PyTorch's synchronised batch norm by the dropout and activation of timm's norms."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input, then dropout and activation where timm's norm has them."""
        y = super().forward(input)
        for part in self.children():
            y = part(y)
        return y


def _converted(norm: _BatchNorm, kind: type[_BatchNorm]) -> _BatchNorm:
    """Return a batch norm of another kind with the tensors and the parts of this one."""
    result = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    result._parameters = norm._parameters
    result._buffers = norm._buffers
    result._modules = norm._modules
    return result.train(norm.training)
