"""Wrap all collectives that the package uses. With one process, each function is the identity."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the process group if torchrun started several processes, and leave it at the end."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world_size() > 1:
        yield
        return
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


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


def data_parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a module so that gradients are averaged over the processes as they are computed.

    Nothing else is exchanged: every device keeps its own batch norm statistics.
    """
    if world_size() == 1:
        return module
    wrapper = nn.parallel.DistributedDataParallel
    # PyTorch 2.15 renames broadcast_buffers.
    renamed = "forward_sync_buffers" in inspect.signature(wrapper.__init__).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return wrapper(module, device_ids=[device.index] if device.type == "cuda" else None, **options)


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


def own_rows(joined: Tensor) -> Tensor:
    """Return the rows of this process among joined ones."""
    return joined.chunk(world_size())[rank()] if world_size() > 1 else joined


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
