"""Test the choice and description of devices, and the handling of memory."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from smi import device
from smi.device import (
    ASSUMED_MEMORY_BYTES,
    Runtime,
    autocast,
    choose_device,
    choose_precision,
    describe_device,
    free_memory_bytes,
    keep_memory,
    package_commit,
    peak_memory_mb,
    prepare_training,
    release_memory,
    total_memory_bytes,
    upload,
    versions,
)
from smi.errors import UserError

CPU = torch.device("cpu")


def test_an_unavailable_device_is_a_user_error():
    assert choose_device("cpu") == CPU
    for name in ("tpu", "cuda:99", "mps:7" if not torch.backends.mps.is_available() else "tpu"):
        with pytest.raises(UserError, match="device"):
            choose_device(name)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_each_process_of_torchrun_has_its_gpu(two_gpus, monkeypatch):
    assert choose_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose_device("cuda", local_rank=1) == torch.device("cuda:1")
    assert two_gpus == [torch.device("cuda:1")] * 2
    with pytest.raises(UserError, match=r"torchrun started 2 here: use --device cuda$"):
        choose_device("cuda:1", local_rank=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UserError, match="3 processes, and this machine has 2 GPUs"):
        choose_device(None, local_rank=2)


def test_training_lets_cudnn_try_its_algorithms(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    prepare_training(CPU)
    assert not torch.backends.cudnn.benchmark
    prepare_training(torch.device("cuda"))
    assert torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("avx", "amx", "expected"),
    [
        (False, False, "float32"),
        (True, False, "bfloat16"),
        (False, True, "bfloat16"),
    ],
)
def test_a_cpu_trains_in_bfloat16_if_it_has_instructions_for_it(monkeypatch, avx, amx, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    whole = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.Linear(4, 4))
    depthwise = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=4))
    assert choose_precision("auto", CPU, whole) == expected
    grouped = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=2))
    assert choose_precision("auto", CPU, depthwise) == "float32"
    assert choose_precision("auto", CPU, grouped) == "float32"
    assert choose_precision("float32", CPU, whole) == "float32"


def test_a_cpu_trains_in_float32_if_torch_does_not_tell_its_instructions(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert choose_precision("auto", CPU, torch.nn.Conv2d(4, 4, 3)) == "float32"


def test_without_a_network_to_train_bfloat16_on_a_cpu_needs_a_request():
    assert choose_precision("auto", CPU) == "float32"
    assert choose_precision("bfloat16", CPU) == "bfloat16"
    a = torch.ones(2, 2)
    with autocast(CPU, "float32"):
        assert (a @ a).dtype == torch.float32
    with autocast(CPU, "bfloat16"):
        assert (a @ a).dtype == torch.bfloat16


def test_facts():
    assert "thread" in describe_device(CPU)
    assert peak_memory_mb(CPU) > 10
    assert torch.__version__.startswith(versions()["torch"])


def test_memory_is_released_by_the_device_that_holds_it(monkeypatch):
    released = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: released.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: released.append("mps"))
    for name in ("cuda:0", "mps", "cpu"):
        release_memory(torch.device(name))
    assert released == ["cuda", "mps"]


class FakeLibrary:
    """Record the calls of mallopt."""

    def __init__(self):
        self.calls = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return 1


def test_keep_memory_raises_the_thresholds_of_glibc(monkeypatch):
    library = FakeLibrary()
    monkeypatch.setattr("smi.device.ctypes.CDLL", lambda name: library)
    monkeypatch.setattr("smi.device.sys.platform", "darwin")
    keep_memory()
    assert library.calls == []
    monkeypatch.setattr("smi.device.sys.platform", "linux")
    keep_memory()
    # malloc.h: M_TRIM_THRESHOLD is -1, M_MMAP_THRESHOLD is -3
    assert library.calls == [(-1, 2**31 - 1), (-3, 2**30)]


def test_keep_memory_works_without_glibc(monkeypatch):
    monkeypatch.setattr("smi.device.ctypes.CDLL", lambda name: object())  # as with musl
    keep_memory()

    def missing(name):
        raise OSError("no C library")

    monkeypatch.setattr("smi.device.ctypes.CDLL", missing)
    keep_memory()


def test_only_a_cpu_keeps_memory(monkeypatch):
    calls = []
    monkeypatch.setattr("smi.device.keep_memory", lambda: calls.append("kept"))
    monkeypatch.setattr("smi.device.choose_device", torch.device)
    Runtime("meta").choose_device()
    assert calls == []
    Runtime("cpu").choose_device()
    assert calls == ["kept"]


COUNT_PAGE_FAULTS = """
import ctypes, resource, sys
from smi.device import keep_memory

if sys.argv[1] == "keep":
    keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size = 64 * 2**20
total = 0
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(10):
    block = libc.malloc(size)
    ctypes.memset(block, step, size)
    total += ctypes.c_ubyte.from_address(block + size - 1).value
    libc.free(block)
print(total, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="needs glibc"
)
def test_kept_memory_is_used_again_without_page_faults():
    """Compare two processes that allocate, fill and free a large block ten times."""
    outputs = []
    for mode in ("keep", "default"):
        command = [sys.executable, "-c", COUNT_PAGE_FAULTS, mode]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        outputs.append([int(word) for word in ran.stdout.split()])
    (kept_total, kept_faults), (default_total, default_faults) = outputs
    assert kept_total == default_total == sum(range(10))
    assert kept_faults < default_faults / 2


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not count the peak of the parent process"
)
def test_peak_memory_does_not_include_the_parent_process():
    large = b"x" * 800_000_000
    code = (
        "import torch; from smi.device import peak_memory_mb; "
        "print(peak_memory_mb(torch.device('cpu')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < len(large) / 1e6


class Recorded:
    """Stand for a tensor, and record how it is copied."""

    def __init__(self, device: str = "cpu"):
        self.device = torch.device(device)
        self.copies: list[tuple[object, ...]] = []

    def pin_memory(self) -> "Recorded":
        self.copies.append(("pinned",))
        return self

    def to(self, device: str, **options: bool) -> "Recorded":
        self.copies.append((device, options))
        return self


@pytest.mark.parametrize(
    ("source", "target", "copies"),
    [
        ("cpu", "cuda:1", [("pinned",), ("cuda:1", {"non_blocking": True})]),
        ("cpu", "mps", [("mps", {})]),  # the copy must not outlive a temporary tensor
        ("cpu", "cpu", [("cpu", {})]),
        ("cuda", "cuda", [("cuda", {})]),
    ],
)
def test_only_copies_to_cuda_do_not_wait(source, target, copies):
    tensor = Recorded(source)
    assert upload(tensor, target) is tensor
    assert tensor.copies == copies


def test_a_tensor_that_is_on_the_device_is_not_copied():
    tensor = torch.arange(3)
    assert upload(tensor, "cpu") is tensor


def test_memory_of_systems_that_do_not_tell(monkeypatch):
    import builtins
    import math

    plain_open = builtins.open

    def refuse(path, *arguments, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return plain_open(path, *arguments, **options)

    monkeypatch.setattr(builtins, "open", refuse)
    assert peak_memory_mb(CPU) > 0  # as on macOS
    monkeypatch.setitem(sys.modules, "resource", None)
    assert math.isnan(peak_memory_mb(CPU))
    assert total_memory_bytes() > 0
    monkeypatch.delattr(os, "sysconf")
    assert total_memory_bytes() == ASSUMED_MEMORY_BYTES
    assert free_memory_bytes() is None


def test_a_checkout_names_its_commit(tmp_path, monkeypatch):
    module = tmp_path / "src" / "smi" / "device.py"
    monkeypatch.setattr(device, "__file__", str(module))
    assert package_commit() is None  # an installed package

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        ran = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return ran.stdout.strip()

    git("init", "--quiet")
    assert package_commit() is None  # no commit yet
    module.parent.mkdir(parents=True)
    module.write_text("a")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "--short", "HEAD")
    assert package_commit() == commit
    module.write_text("b")
    assert package_commit() == f"{commit}-dirty"
