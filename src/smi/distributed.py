"""The only place that calls a collective. One process, or none started: everything here is the identity."""

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
    """Join the others where torchrun started several, and leave them at the end."""
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
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def local_rank() -> int:
    """Which of the devices of this machine is ours."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def from_first(value: Any) -> Any:
    """What the first process brought, on all of them."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values)
    return values[0]


def data_parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """Gradients are averaged over the processes as they come. Nothing else is exchanged: every device keeps statistics of its own."""
    if world_size() == 1:
        return module
    wrapper = nn.parallel.DistributedDataParallel
    renamed = (
        "forward_sync_buffers" in inspect.signature(wrapper.__init__).parameters
    )  # in PyTorch 2.15
    quiet: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return wrapper(module, device_ids=[device.index] if device.type == "cuda" else None, **quiet)


def join(z: Tensor) -> Tensor:
    """The rows of all processes, in the order of their ranks: [N, ...] here becomes [W N, ...] everywhere.

    Every process must bring N rows: drop a last, smaller batch. Differentiable once.

    For a loss that every process then computes whole on the same joined rows. Its gradient over the rows of this process comes back
    times W, without a collective: averaging over the processes, as DDP does with gradients, makes it that of the one joined loss.
    """
    return _Join.apply(z) if world_size() > 1 else z


def all_mean(x: Tensor) -> Tensor:
    """The mean of `x` over all processes, as a constant."""
    x = x.detach().clone()
    if world_size() > 1:
        dist.all_reduce(x)
        x /= world_size()
    return x


def own(joined: Tensor) -> Tensor:
    """The rows of this process among joined ones."""
    return joined.chunk(world_size())[rank()] if world_size() > 1 else joined


def shuffle(x: Tensor) -> Tensor:
    """Rows dealt out like cards: process r of W gets every W-th row of all processes' rows, from the r-th on.

    MoCo's keys go through batch norms in this company and come home by `unshuffle`: a query's statistics then say nothing of its key's.
    The order of images is random as it is, so the deal need not be.
    """
    return join(x)[rank() :: world_size()] if world_size() > 1 else x


def unshuffle(x: Tensor) -> Tensor:
    """What undoes `shuffle`."""
    return (
        own(torch.stack(join(x).chunk(world_size()), dim=1).flatten(0, 1))
        if world_size() > 1
        else x
    )


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        joined = z.new_empty(world_size() * len(z), *z.shape[1:])
        dist.all_gather_into_tensor(joined, z.contiguous())
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return own(grad) * world_size()
