"""What this machine has to compute with. torch is imported when it is asked for: `smi cost` answers without it."""

import contextlib
import ctypes
import os
import platform
import resource
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from smi.errors import UserError

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Runtime:
    """Say where a command computes and reads; none of it changes what is learned.

    device: cuda, mps or cpu; None takes the first of these that is there.
    root: the folder of named datasets; None is `data` in smi's cache folder.
    num_workers: processes that decode files; None is one per core.
    """

    device: str | None = None
    root: str | Path | None = None
    num_workers: int | None = None

    def choose_device(self) -> "torch.device":
        """Return the device to compute on, and keep freed memory if it is a CPU."""
        device = choose_device(self.device)
        if device.type == "cpu":
            keep_memory()
        return device


def default_device() -> "torch.device":
    """CUDA, else MPS, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_device(asked: str | None = None, local_rank: int = 0) -> "torch.device":
    """What is asked for, or the default; of several GPUs that of this process."""
    import torch

    device = default_device() if asked is None else _asked_for(asked)
    if device.type == "cuda":
        device = torch.device("cuda", device.index if device.index is not None else local_rank)
        torch.cuda.set_device(device)
    return device


def _asked_for(name: str) -> "torch.device":
    import torch

    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"there is no device {name!r}: it is cuda, mps or cpu") from error
    if not there.get(device.type) or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise UserError(f"this machine has no device {name} that PyTorch can use")
    return device


def describe_device(device: "torch.device | None" = None) -> str:
    import torch

    device = device or default_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def wait(device: "torch.device") -> None:
    """Until the device has done what it was given, so that a clock can be read."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def give_back(device: "torch.device") -> None:
    """What was reserved of a GPU's memory and is not in use, for another process."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def choose_precision(
    asked: Literal["auto", "float32", "bfloat16"], device: "torch.device"
) -> Precision:
    """bfloat16 by itself only on GPUs that compute in it; on CPUs only where it is asked for."""
    import torch

    if asked != "auto":
        return asked
    return (
        "bfloat16"
        if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        else "float32"
    )


def autocast(device: "torch.device", precision: Precision) -> AbstractContextManager[object]:
    """Return a context that computes in `precision`; float32 also turns an outer autocast off."""
    import torch

    if precision not in get_args(Precision):
        raise UserError(f"the precision must be float32, bfloat16 or float16, not {precision!r}")
    dtype = getattr(torch, precision)
    return torch.autocast(device.type, dtype, enabled=precision != "float32")


def keep_memory() -> None:
    """Have glibc keep memory that was freed, for the next step to use again.

    It would give large pieces back to the system at once, which then clears every page anew: a sixth of a training step on a CPU. Other
    systems' allocators are left as they are.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3  # as malloc.h numbers them
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**30)


def peak_memory_mb(device: "torch.device") -> float:
    """The most so far: of tensors on a GPU, of the whole process on a CPU; on MPS what is held now."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / 1e6
    with (
        contextlib.suppress(OSError, StopIteration),
        open("/proc/self/status", encoding="ascii", errors="replace") as status,
    ):
        # getrusage would count the process that started this one, if that was larger
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def versions() -> dict[str, str]:
    from importlib.metadata import version

    system = f"{platform.system()} {os.uname().release}"
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "timm")},
        "system": system,
    }


def device_of(
    encoder: "torch.nn.Module", device: "torch.device | str | None" = None
) -> "torch.device":
    import torch

    weights = next(encoder.parameters(), None)
    if weights is not None:
        return weights.device
    return torch.device(device or "cpu")
