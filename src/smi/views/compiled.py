"""Make views of CPU tensors with a C++ kernel, many times faster than PyTorch operations.

A wheel may hold the compiled kernel. Otherwise it is compiled on first use, which takes some
seconds, and kept in smi's cache folder under a hash of source, compiler and processor. If there is
no compiler, or it fails, there is no kernel. Compiling never happens in the background: the first
caller waits, so that all batches of a run are made by the same backend.
"""

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from smi.data.pictures import Pictures
from smi.files import cache_home, sync, temporary_folder
from smi.terminal import announce
from smi.views.compiler import (
    COMPILER_FLAGS,
    SOURCE,
    TIMEOUT_SECONDS,
    compile_kernel,
    find_compiler,
    library_name,
)
from smi.views.draws import Parameters, shapes_of
from smi.views.policies import Triple

NATIVE_FLAGS = ("-march=native", "-mcpu=native", "")  # the first that the compiler accepts is used
MAX_SIDE = 2**20  # pixels of an image; float32 counts up to 2**24 without gaps
MAX_FACTOR = 1000.0
MIN_SIGMA, MAX_SIGMA = 1e-6, 1e6  # pixels of a blur; their squares are finite and not 0

_POINTERS = (
    "pixels",
    "start",
    "shape",
    "out",
    "levels",
    "box",
    "flip",
    "jitter",
    "order",
    "factors",
    "gray",
    "blur",
    "sigma",
    "solarize",
)


class _Batch(ctypes.Structure):
    """Mirror the struct Batch of kernel.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("n", "size", "blur_kernel", "bicubic", "threads")),
        ("mean", ctypes.c_float * 3),
        ("std", ctypes.c_float * 3),
    )


class Kernel:
    """Call the compiled kernel; a drop-in replacement for pixels.make_view."""

    def __init__(self, library: Path):
        self._make_views = ctypes.CDLL(str(library)).smi_make_views
        self._make_views.argtypes = [ctypes.POINTER(_Batch)]
        self._make_views.restype = ctypes.c_int

    def __call__(
        self,
        images: Tensor | Pictures,
        parameters: Parameters,
        mean: Triple,
        std: Triple,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Make one view of every image, channels last.

        out: write the view to this tensor, float32 or uint8 [N, 3, S, S] with channels last. Values
            of uint8 are whole grey levels, not normalised.
        """
        p = parameters
        n = len(images)
        if out is None:
            out = torch.empty(n, 3, p.size, p.size, memory_format=torch.channels_last)
        _check_out(out, n, p.size)
        if isinstance(images, Pictures):
            pixels, start, shape = images.pixels, images.start, images.shape
        else:
            pixels, shape = images, shapes_of(images)
            start = torch.arange(n) * images[:1].numel()
        _check_pictures(pixels, start, shape)
        check_parameters(p, shape)
        _check_normalisation(mean, std)
        tensors = {
            "pixels": pixels.contiguous(),
            "start": start.contiguous(),
            "shape": shape.contiguous(),
            "out" if out.dtype == torch.float32 else "levels": out,
            **{name: getattr(p, name).contiguous() for name in PARAMETER_TYPES},
        }
        batch = _Batch(
            n=n,
            size=p.size,
            blur_kernel=p.blur_kernel,
            bicubic=p.bicubic,
            threads=torch.get_num_threads(),
            mean=mean,
            std=std,
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        )
        if self._make_views(ctypes.byref(batch)) != 0:
            raise MemoryError(f"not enough memory for views of {p.size} x {p.size} pixels")
        return out


PARAMETER_TYPES = {
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


def _check_out(out: Tensor, n: int, size: int) -> None:
    """Raise an error for a tensor that the kernel cannot write to."""
    if (
        out.shape != (n, 3, size, size)
        or out.dtype not in (torch.float32, torch.uint8)
        or out.device.type != "cpu"
        or not out.is_contiguous(memory_format=torch.channels_last)
    ):
        raise ValueError(
            f"out must be float32 or uint8 {[n, 3, size, size]} on the CPU, channels last, "
            f"not {out.dtype} {list(out.shape)} on {out.device} with strides {out.stride()}"
        )


def _check_pictures(pixels: Tensor, start: Tensor, shape: Tensor) -> None:
    """Raise an error for images that do not lie within their bytes."""
    if pixels.dtype != torch.uint8 or pixels.device.type != "cpu":
        raise ValueError(
            f"pixels must be torch.uint8 on the CPU, not {pixels.dtype} on {pixels.device}"
        )
    n = len(start)
    if start.dtype != torch.int64 or shape.dtype != torch.int64 or shape.shape != (n, 2):
        raise ValueError(
            f"start and shape must be torch.int64 [{n}] and [{n}, 2], "
            f"not {start.dtype} {list(start.shape)} and {shape.dtype} {list(shape.shape)}"
        )
    num_bytes = pixels.numel()
    # Sides are checked first: the product of larger ones may overflow, and seem to fit.
    inside = (start >= 0) & (start <= num_bytes) & ((shape > 0) & (shape <= MAX_SIDE)).all(1)
    if not (inside & (start + 3 * shape.prod(1) <= num_bytes)).all():
        raise ValueError(
            f"an image lies outside the {num_bytes:,} bytes of its batch, "
            f"or has more than {MAX_SIDE:,} pixels per side"
        )


def _check_normalisation(mean: Triple, std: Triple) -> None:
    """Raise an error for numbers that would make views NaN or infinite."""
    if not all(map(math.isfinite, (*mean, *std))) or not all(std):
        raise ValueError(f"mean and std must be finite, and std not 0: {mean} and {std}")


def check_parameters(p: Parameters, shapes: Tensor) -> None:
    """Raise an error for parameters that would make the kernel read outside its tensors, or fail.

    shapes: height and width of every image, [N, 2].
    """
    n = len(shapes)
    for name, dtype in PARAMETER_TYPES.items():
        tensor = getattr(p, name)
        shape = (n, 4) if name in ("box", "order", "factors") else (n,)
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            raise ValueError(
                f"{name} must be {dtype} {list(shape)} on the CPU, "
                f"not {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            )
    if not 0 <= p.pad <= MAX_SIDE:
        raise ValueError(f"the padding must lie between 0 and {MAX_SIDE:,}, not {p.pad}")
    top, left, h, w = p.box.unbind(1)
    height, width = shapes.unbind(1)
    inside = (
        (top >= -p.pad)
        & (left >= -p.pad)
        & (h > 0)
        & (w > 0)
        & (top + h < height + p.pad + 1e-3)
        & (left + w < width + p.pad + 1e-3)
    )
    if not inside.all():
        i = int((~inside).int().argmax())
        raise ValueError(f"a crop lies outside its image of {height[i]} x {width[i]} pixels")
    # The kernel is compiled for finite numbers: others have no defined result.
    if not (p.factors.abs() <= MAX_FACTOR).all():
        raise ValueError(f"the factors of the jitter must lie within ±{MAX_FACTOR:g}")
    if not ((p.sigma >= MIN_SIGMA) & (p.sigma <= MAX_SIGMA))[p.blur].all():
        raise ValueError(f"the sigma of a blur must lie between {MIN_SIGMA:g} and {MAX_SIGMA:g}")
    if not ((p.order >= 0) & (p.order < 4)).all():
        raise ValueError("the operations of the jitter are numbered 0 to 3")
    if p.blur_kernel // 2 >= p.size or p.blur_kernel % 2 == 0:
        raise ValueError(
            f"a blur over {p.blur_kernel} pixels does not suit views of {p.size}: "
            "the kernel must be odd and below twice the side"
        )


@functools.cache
def find_kernel() -> Kernel | None:
    """Load the kernel of the wheel or of the cache, or compile it; if that fails, warn."""
    with contextlib.suppress(OSError, AttributeError):  # there is none, or it is damaged
        return Kernel(wheel_library())
    fallback = "views are made by PyTorch operations, which are slower on a CPU"
    compiler = find_compiler()
    if compiler is None:
        requested = os.environ.get("CXX")
        reason = f" (CXX={requested} is not a program)" if requested else ""
        announce(f"no C++ compiler found{reason}: {fallback}")
        return None
    try:
        return _open(compiler)
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        announce(f"compiling the kernel for views failed ({_reason(error)}): {fallback}")
        return None


def wheel_library() -> Path:
    """Return the path that the kernel for this processor and this source has in a wheel."""
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return SOURCE.with_name(library_name("avx2" if has_avx2 else "any"))


def _reason(error: Exception) -> str:
    """Return the first line of the compiler's output that reports an error."""
    lines = error.stderr.splitlines() if isinstance(error, subprocess.CalledProcessError) else []
    return next((line.strip() for line in lines if "error" in line), str(error))


def _open(compiler: str) -> Kernel:
    """Load the kernel; compile it if it is missing, and again if its file is damaged."""
    library = _build(compiler)
    try:
        return Kernel(library)
    except (OSError, AttributeError):
        library.unlink(missing_ok=True)
        return Kernel(_build(compiler))


def _build(compiler: str) -> Path:
    """Return the compiled library from the cache; compile it if it is missing."""
    folder = cache_home() / "kernels"
    library = folder / f"views-{_key(compiler)}.so"
    if library.is_file():
        return library
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(temporary_folder(folder, "views-"))
        except OSError:  # the cache is not writable: compile for this process alone
            scratch = Path(tempfile.mkdtemp())
            library = scratch / library.name
        partial = scratch / "partial.so"
        _compile_native(compiler, partial)
        sync(partial)
        partial.replace(library)  # atomic: other processes see the complete library or none
    return library


def _compile_native(compiler: str, target: Path) -> None:
    for native in NATIVE_FLAGS:
        try:
            compile_kernel(compiler, target, *native.split())
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
        timeout=TIMEOUT_SECONDS,
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
