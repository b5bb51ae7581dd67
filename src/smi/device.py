"""Choose and describe the device to compute on.

torch is imported on first use, because `smi table 2` answers without it.
"""

import contextlib
import ctypes
import math
import os
import platform
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from smi.errors import UserError

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

# The parameters of mallopt, as malloc.h numbers them, and their values.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
TRIM_THRESHOLD_BYTES = 2**31 - 1
MMAP_THRESHOLD_BYTES = 2**30

ASSUMED_MEMORY_BYTES = 8 * 2**30  # of a machine that does not tell


@dataclass(frozen=True)
class Runtime:
    """Hold the device, dataset folder and workers of a command; they do not change results.

    device: cuda, mps or cpu; None takes the first of these that is available.
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
    """Return CUDA if it is available, else MPS, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_device(name: str | None = None, local_rank: int = 0) -> "torch.device":
    """Return the named device or the default; with several GPUs, the one of this process."""
    import torch

    device = default_device() if name is None else _named_device(name)
    several = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if several > 1 and device.index is not None:
        raise UserError(
            f"the device {name} is for one process, and torchrun started {several} here: "
            f"use --device {device.type}"
        )
    if device.type == "cuda":
        # Also on local rank 0, which prints the error.
        if device.index is None and max(several, local_rank + 1) > torch.cuda.device_count():
            raise UserError(
                f"torchrun started {several} processes, and this machine has "
                f"{torch.cuda.device_count()} GPUs: start one process for each"
            )
        device = torch.device("cuda", device.index if device.index is not None else local_rank)
        torch.cuda.set_device(device)
    return device


def _named_device(name: str) -> "torch.device":
    import torch

    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"there is no device {name!r}: it is cuda, mps or cpu") from error
    missing_gpu = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    if not available.get(device.type) or missing_gpu:
        raise UserError(f"this machine has no device {name} that PyTorch can use")
    return device


def describe_device(device: "torch.device | None" = None) -> str:
    """Return the name of a GPU, or the processor, its threads and the version of torch."""
    import torch

    device = device or default_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    threads = f"{count} thread{'' if count == 1 else 's'}"
    return f"{platform.machine()} {device.type}, {threads}, torch {torch.__version__}"


def upload(tensor: "torch.Tensor", device: "torch.device | str") -> "torch.Tensor":
    """Copy a CPU tensor to a device; on CUDA through pinned memory, so that the host does not wait.

    PyTorch keeps the pinned memory until the copy is finished. On other devices the copy is
    complete on return: an unfinished one could read memory that is already freed.
    """
    import torch

    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def synchronize(device: "torch.device") -> None:
    """Wait until the device has finished its work, so that a clock can be read."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def release_memory(device: "torch.device") -> None:
    """Release reserved but unused memory of a GPU for other processes."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def choose_precision(
    setting: Literal["auto", "float32", "bfloat16", "float16"],
    device: "torch.device",
    network: "torch.nn.Module | None" = None,
) -> Precision:
    """Return the precision of a setting; auto is bfloat16 on GPUs that compute in it.

    network: to train. With it, auto is also bfloat16 on CPUs where the network trains faster so.
    """
    import torch

    if setting != "auto":
        return setting
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bfloat16"
    if device.type == "cpu" and network is not None and trains_faster_in_bfloat16(network):
        return "bfloat16"
    return "float32"


def trains_faster_in_bfloat16(network: "torch.nn.Module") -> bool:
    """Return whether a CPU has instructions for bfloat16 and a network that gains by them.

    With AVX-512 BF16, ResNets train up to twice as fast as in float32. Grouped convolutions may be
    slow in bfloat16: EfficientNet-Lite0 and MobileNetV3 take more than twice as long.
    """
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # not in every version
    has_instructions = any(getattr(torch.cpu, c)() for c in checks if hasattr(torch.cpu, c))
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    return has_instructions and all(m.groups == 1 for m in convolutions)


def autocast(device: "torch.device", precision: Precision) -> AbstractContextManager[object]:
    """Return a context that computes in `precision`; float32 also turns an outer autocast off."""
    import torch

    if precision not in PRECISIONS:
        raise UserError(f"the precision must be float32, bfloat16 or float16, not {precision!r}")
    dtype = getattr(torch, precision)
    return torch.autocast(device.type, dtype, enabled=precision != "float32")


def keep_memory() -> None:
    """Make glibc keep freed memory for the next step, instead of returning it to the system.

    By default, glibc returns large blocks at once, and the system then clears every page again when
    they are allocated for the next step: a sixth of a training step on a CPU. The allocators of
    other systems are left as they are.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def prepare_training(device: "torch.device") -> None:
    """Choose the settings of PyTorch and the system that make training on a device fast."""
    import torch

    if device.type == "cpu":
        keep_memory()
    elif device.type == "cuda":
        # All batches of a run have the same shapes: let cuDNN try its algorithms once.
        torch.backends.cudnn.benchmark = True


def peak_memory_mb(device: "torch.device") -> float:
    """Return the peak memory so far, in megabytes; NaN where the system does not tell (Windows).

    On CUDA it counts tensors, on a CPU the whole process. On MPS it is the memory in use now.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / 1e6
    with (
        contextlib.suppress(OSError, StopIteration),
        open("/proc/self/status", encoding="ascii", errors="replace") as status,
    ):
        # getrusage would report the peak of the parent process if that was larger
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1e3
    try:
        import resource
    except ImportError:
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def total_memory_bytes() -> int:
    """Return the memory of the machine, or an assumed one where the system does not tell."""
    return _memory_bytes("SC_PHYS_PAGES") or ASSUMED_MEMORY_BYTES


def free_memory_bytes() -> int | None:
    """Return the memory that nothing uses now, or None where the system does not tell."""
    return _memory_bytes("SC_AVPHYS_PAGES")


def _memory_bytes(pages: str) -> int | None:
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has none of it, macOS a part
        return None


def versions() -> dict[str, str]:
    """Return the versions of Python, torch, timm and the system."""
    from importlib.metadata import version

    system = f"{platform.system()} {platform.release()}"
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "timm")},
        "system": system,
    }


def package_commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None if it is installed.

    It ends with -dirty if there are uncommitted changes.
    """
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    git = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    try:
        ran = subprocess.run(git, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of somebody else
        return None
    return ran.stdout.strip()


def device_of(
    encoder: "torch.nn.Module", device: "torch.device | str | None" = None
) -> "torch.device":
    """Return the device of an encoder; one without parameters is on `device`, or on the CPU."""
    import torch

    weights = next(encoder.parameters(), None)
    if weights is not None:
        return weights.device
    return torch.device(device or "cpu")
