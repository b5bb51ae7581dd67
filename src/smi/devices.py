"""What this machine has to compute with."""

import os
import platform
import resource
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from smi.errors import UserError

Precision = Literal["float32", "bfloat16"]


def choose_device(asked: str | None = None, local_rank: int = 0) -> torch.device:
    """CUDA, else MPS, else the CPU, unless one is asked for; of several GPUs that of this process."""
    if asked is None:
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        device = torch.device(kind)
    else:
        try:
            device = torch.device(asked)
        except RuntimeError as error:
            raise UserError(f"there is no device {asked!r}: it is cuda, mps or cpu") from error
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        if not there.get(device.type):
            raise UserError(f"this machine has no {device.type} device that PyTorch can use")
    if device.type == "cuda":
        device = torch.device("cuda", device.index if device.index is not None else local_rank)
        torch.cuda.set_device(device)
    return device


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}" + (f", {torch.get_num_threads()} threads" if device.type == "cpu" else "")


def choose_precision(asked: Literal["auto", "float32", "bfloat16"], device: torch.device) -> Precision:
    """bfloat16 by itself only on GPUs that compute in it; on CPUs only where asked for, since most are slower with it."""
    if asked != "auto":
        return asked
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def peak_memory_mb(device: torch.device) -> float:
    """The most so far: of tensors on a GPU, of the whole process on a CPU; on MPS what is held now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def versions() -> dict[str, str]:
    import timm

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "system": f"{platform.system()} {os.uname().release}",
    }
