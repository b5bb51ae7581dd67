"""Make views of CPU tensors with a C++ kernel, many times faster than PyTorch operations.

The kernel is compiled on first use, which takes some seconds, and kept in smi's cache folder under
a hash of source, compiler and processor. If there is no compiler, or it fails, there is no kernel.
Compiling never happens in the background: the first caller waits, so that all batches of a run are
made by the same backend.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from smi.files import cache_home
from smi.terminal import announce
from smi.views.draws import Parameters
from smi.views.policies import Triple

SOURCE = Path(__file__).with_name("kernel.cpp")
COMPILER_TIMEOUT_SECONDS = 30  # about 2 are usual, and a run should not wait long for its start
# The parts of -ffast-math that do not change the rounding of the whole process.
MATH_FLAGS = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-ffinite-math-only",
)
COMPILER_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", *MATH_FLAGS)
NATIVE_FLAGS = ("-march=native", "-mcpu=native", "")  # the first that the compiler accepts is used


class _Batch(ctypes.Structure):
    """Mirror the struct Batch of kernel.cpp."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("images", "out", "box", "flip", "jitter", "order", "factors")
        ),
        *((name, ctypes.c_void_p) for name in ("gray", "blur", "sigma", "solarize")),
        *(
            (name, ctypes.c_int64)
            for name in ("n", "height", "width", "size", "pad", "blur_kernel", "threads")
        ),
        ("mean", ctypes.c_float * 3),
        ("std", ctypes.c_float * 3),
    )


class Kernel:
    """Call the compiled kernel; a drop-in replacement for pixels.make_view."""

    def __init__(self, library: Path):
        self._make_views = ctypes.CDLL(str(library)).smi_make_views
        self._make_views.argtypes = [ctypes.POINTER(_Batch)]
        self._make_views.restype = ctypes.c_int

    def __call__(self, images: Tensor, parameters: Parameters, mean: Triple, std: Triple) -> Tensor:
        p, images = parameters, images.contiguous()
        n, _, height, width = images.shape
        check_parameters(p, n, height, width)
        out = torch.empty(n, 3, p.size, p.size)
        tensors = {
            "images": images,
            "out": out,
            "box": p.box.contiguous(),
            "flip": p.flip.contiguous(),
            "jitter": p.jitter.contiguous(),
            "order": p.order.contiguous(),
            "factors": p.factors.contiguous(),
            "gray": p.gray.contiguous(),
            "blur": p.blur.contiguous(),
            "sigma": p.sigma.contiguous(),
            "solarize": p.solarize.contiguous(),
        }
        batch = _Batch(
            n=n,
            height=height,
            width=width,
            size=p.size,
            pad=p.pad,
            blur_kernel=p.blur_kernel,
            threads=torch.get_num_threads(),
            mean=mean,
            std=std,
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        )
        if self._make_views(ctypes.byref(batch)) != 0:
            raise MemoryError(f"not enough memory for views of {p.size} x {p.size} pixels")
        return out


def check_parameters(p: Parameters, n: int, height: int, width: int) -> None:
    """Raise an error for parameters that would make the kernel read outside its tensors."""
    types = {
        "box": torch.float32,
        "flip": torch.bool,
        "jitter": torch.bool,
        "order": torch.int64,
        "factors": torch.float32,
        "gray": torch.bool,
        "blur": torch.bool,
        "sigma": torch.float32,
        "solarize": torch.bool,
    }
    for name, dtype in types.items():
        tensor = getattr(p, name)
        shape = (n, 4) if name in ("box", "order", "factors") else (n,)
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            raise ValueError(
                f"{name} must be {dtype} {list(shape)} on the CPU, "
                f"not {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            )
    top, left, h, w = p.box.unbind(1)
    inside = (
        (top >= -p.pad)
        & (left >= -p.pad)
        & (h > 0)
        & (w > 0)
        & (top + h < height + p.pad + 1e-3)
        & (left + w < width + p.pad + 1e-3)
    )
    if not inside.all():
        raise ValueError(f"a crop lies outside its image of {height} x {width} pixels")
    if not ((p.order >= 0) & (p.order < 4)).all():
        raise ValueError("the operations of the jitter are numbered 0 to 3")
    if p.blur_kernel // 2 >= p.size or p.blur_kernel % 2 == 0:
        raise ValueError(
            f"a blur over {p.blur_kernel} pixels does not suit views of {p.size}: "
            "the kernel must be odd and below twice the side"
        )


@functools.cache
def find_kernel() -> Kernel | None:
    """Load the kernel from the cache or compile it; warn and return None if that fails."""
    fallback = "views are made by PyTorch operations, which are slower on a CPU"
    requested = os.environ.get("CXX")
    names = [requested] if requested else ["c++", "g++", "clang++"]
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    if compiler is None:
        reason = f" (CXX={requested} is not a program)" if requested else ""
        announce(f"no C++ compiler found{reason}: {fallback}")
        return None
    try:
        return Kernel(_build(compiler))
    except (OSError, subprocess.SubprocessError) as error:
        announce(f"compiling the kernel for views failed ({_reason(error)}): {fallback}")
        return None


def _reason(error: Exception) -> str:
    """Return the first line of the compiler's output that reports an error."""
    lines = error.stderr.splitlines() if isinstance(error, subprocess.CalledProcessError) else []
    return next((line.strip() for line in lines if "error" in line), str(error))


def _build(compiler: str) -> Path:
    """Return the compiled library from the cache; compile it if it is missing."""
    folder = cache_home() / "kernels"
    library = folder / f"views-{_key(compiler)}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="partial-", dir=folder)
    except OSError:  # the cache is not writable: compile for this process alone
        scratch = tempfile.mkdtemp()
        library = Path(scratch) / library.name
    partial = Path(scratch) / "partial.so"
    try:
        _compile(compiler, partial)
        partial.replace(library)  # atomic: other processes see the complete library or none
    finally:
        if library.parent == folder:
            shutil.rmtree(scratch)
    return library


def _compile(compiler: str, target: Path) -> None:
    for native in NATIVE_FLAGS:
        command = [
            compiler,
            *COMPILER_FLAGS,
            *([native] if native else []),
            str(SOURCE),
            "-o",
            str(target),
        ]
        try:
            subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=COMPILER_TIMEOUT_SECONDS,
                check=True,
            )
            return
        except subprocess.CalledProcessError:
            if not native:
                raise


def _key(compiler: str) -> str:
    """Hash source, compiler and processor, because machines may share a home folder."""
    version = subprocess.run(
        [compiler, "--version"],
        capture_output=True,
        text=True,
        timeout=COMPILER_TIMEOUT_SECONDS,
        check=True,
    ).stdout
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = platform.processor()
    parts = (
        SOURCE.read_text(),
        compiler,
        version,
        " ".join((*COMPILER_FLAGS, *NATIVE_FLAGS)),
        platform.machine(),
        platform.system(),
        processor,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
