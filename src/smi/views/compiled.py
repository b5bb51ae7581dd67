"""The same views from a kernel in C++, for tensors on the CPU: many times faster than PyTorch's operations one after another.

It is compiled when first asked for, which takes some seconds, and kept in smi's cache folder under a hash of source, compiler and
processor. Where there is no compiler, or it fails, there is no kernel. Nothing is compiled behind a run's back: whoever asks waits, so
all batches of a run are made the same way.
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
PATIENCE = 30  # seconds: some 2 are usual, and a run should not wait a minute for its first batch
# What -ffast-math would allow, but for what changes how the whole process rounds: it would be linked in.
FREE_MATH = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-ffinite-math-only",
)
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", *FREE_MATH)
NATIVE = ("-march=native", "-mcpu=native", "")  # the first that the compiler knows


class _Batch(ctypes.Structure):
    """As in kernel.cpp."""

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
    """kernel(images, parameters, mean, std) equals pixels.make_view."""

    def __init__(self, library: Path):
        self._make_views = ctypes.CDLL(str(library)).smi_make_views
        self._make_views.argtypes = [ctypes.POINTER(_Batch)]
        self._make_views.restype = ctypes.c_int

    def __call__(self, images: Tensor, parameters: Parameters, mean: Triple, std: Triple) -> Tensor:
        p, images = parameters, images.contiguous()
        n, _, height, width = images.shape
        check(p, n, height, width)
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
            raise MemoryError(f"no memory for views of {p.size} x {p.size} pixels")
        return out


def check(p: Parameters, n: int, height: int, width: int) -> None:
    """The kernel reads where it is told to; nothing here may lead it out of the tensors."""
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
                f"{name} must be {dtype} {list(shape)} on the CPU, not {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
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
        raise ValueError("the jitter's operations are numbered 0 to 3")
    if p.blur_kernel // 2 >= p.size or p.blur_kernel % 2 == 0:
        raise ValueError(
            f"a blur over {p.blur_kernel} pixels does not suit views of {p.size}: the kernel must be odd and below twice the side"
        )


@functools.cache
def find_kernel() -> Kernel | None:
    """From the cache, or compiled now; None, and a sentence on stderr, where that cannot be."""
    asked = os.environ.get("CXX")
    compiler = next(
        (
            path
            for name in ([asked] if asked else ["c++", "g++", "clang++"])
            if (path := shutil.which(name))
        ),
        None,
    )
    if compiler is None:
        asked_for = f" (CXX={asked} is not a program)" if asked else ""
        announce(
            f"no C++ compiler found{asked_for}: views are made by PyTorch's operations, which is slower on a CPU"
        )
        return None
    try:
        return Kernel(_build(compiler))
    except (OSError, subprocess.SubprocessError) as error:
        announce(
            f"compiling the views' kernel failed ({_reason(error)}): PyTorch's operations make them, which is slower on a CPU"
        )
        return None


def _reason(error: Exception) -> str:
    """Of all that a compiler says, the first line that is an error."""
    said = error.stderr.splitlines() if isinstance(error, subprocess.CalledProcessError) else []
    return next((line.strip() for line in said if "error" in line), str(error))


def _build(compiler: str) -> Path:
    folder = cache_home() / "kernels"
    library = folder / f"views-{_key(compiler)}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        workshop = tempfile.mkdtemp(prefix="partial-", dir=folder)
    except OSError:  # a cache that may not be written to: compile for this process alone
        workshop = tempfile.mkdtemp()
        library = Path(workshop) / library.name
    partial = Path(workshop) / "partial.so"
    try:
        _compile(compiler, partial)
        partial.replace(
            library
        )  # at once, so that a process beside this one sees all of it or nothing
    finally:
        if library.parent == folder:
            shutil.rmtree(workshop)
    return library


def _compile(compiler: str, target: Path) -> None:
    for native in NATIVE:
        command = [compiler, *FLAGS, *([native] if native else []), str(SOURCE), "-o", str(target)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
            return
        except subprocess.CalledProcessError:
            if not native:
                raise


def _key(compiler: str) -> str:
    """Also of the processor, for a home folder may be shared by several machines."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True
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
        " ".join((*FLAGS, *NATIVE)),
        platform.machine(),
        platform.system(),
        processor,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
