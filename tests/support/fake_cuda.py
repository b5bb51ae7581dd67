"""Run code on a GPU that does not exist: PyTorch's fake tensors have shapes and devices only.

with fake_cuda():
    method = on_fake_cuda(method)
    method(views, batch)

A tensor on the wrong device, and everything that makes the host wait for the device, raises an
error: `.item()`, `.tolist()`, boolean indexing, `nonzero`, a blocking copy. Backward passes do not
run on fake CUDA tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)


class BlockingCopyError(AssertionError):
    """Report a copy between host and device for which the host waits."""


class _NoBlockingCopies(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            in_place = func is torch.ops.aten.copy_.default
            source, target = (args[1], args[0]) if in_place else (args[0], out)
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if source.device.type != target.device.type and waits:
                raise BlockingCopyError(f"{source.device} to {target.device}, {list(source.shape)}")
        return out


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Make all new tensors fake, and refuse everything for which the host would wait."""
    with (
        patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
        patch("torch.cuda.is_bf16_supported", return_value=True),
        patch("torch.Tensor.pin_memory", Tensor.clone),  # unknown to fake tensors
        FakeTensorMode(),
        _NoBlockingCopies(),
    ):
        yield


def on_fake_cuda(module: nn.Module) -> nn.Module:
    """Replace all parameters and buffers of a module by fake ones on the GPU."""
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None:
                fake = torch.empty(p.shape, dtype=p.dtype, device=CUDA)
                part._parameters[name] = nn.Parameter(fake, requires_grad=p.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=CUDA)
    return module


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a fake tensor on the GPU."""
    return torch.empty(*shape, dtype=dtype, device=CUDA)
