"""Compile kernel.cpp: on first use, or into a wheel.

setup.py runs this file where neither torch nor smi is installed. A library in a wheel has a digest
of its source and flags in its name, so that one of another source is never loaded.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.cpp")
TIMEOUT_SECONDS = 30  # about 2 are usual, and a run should not wait long for its start
# The parts of -ffast-math that do not change the rounding of the whole process.
MATH_FLAGS = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-ffinite-math-only",
)
COMPILER_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", *MATH_FLAGS)
# Libraries of a wheel by processor: PyTorch, too, asks for AVX2 and FMA together. One for AVX-512
# was not faster.
WHEEL_FLAGS = {"any": (), "avx2": ("-mavx2", "-mfma")}


def find_compiler() -> str | None:
    """Return the path of a C++ compiler: the one that CXX names, or a usual one.

    There is none on Windows: Microsoft's compiler does not know the vectors of the kernel, and GCC
    does not align the stack there as AVX needs it.
    """
    if os.name == "nt":
        return None
    requested = os.environ.get("CXX")
    names = [requested] if requested else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def compile_kernel(compiler: str, target: Path, *flags: str) -> None:
    """Compile the kernel into a library."""
    subprocess.run(
        [compiler, *COMPILER_FLAGS, *flags, str(SOURCE), "-o", str(target)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )


def library_name(processor: str) -> str:
    """Return the file name of a library in a wheel."""
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((COMPILER_FLAGS, WHEEL_FLAGS)).encode())
    return f"kernel-{digest.hexdigest()[:16]}-{processor}.so"


def compile_for_wheel(folder: Path) -> str:
    """Compile the libraries of a wheel for this kind of machine, all or none, into a folder.

    Returns why there are none, or an empty text.
    """
    for stale in folder.glob("kernel-*.so"):
        stale.unlink()
    compiler = find_compiler()
    if compiler is None:
        return "there is no suitable C++ compiler"
    processors = WHEEL_FLAGS if platform.machine() == "x86_64" else ("any",)
    try:
        for processor in processors:
            compile_kernel(compiler, folder / library_name(processor), *WHEEL_FLAGS[processor])
    except (OSError, subprocess.SubprocessError) as error:
        for partial in folder.glob("kernel-*.so"):
            partial.unlink()
        return str(error)
    return ""
