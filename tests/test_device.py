"""What this machine has to compute with."""

import subprocess
import sys

import pytest
import torch

from smi.device import (
    autocast,
    choose_device,
    choose_precision,
    describe_device,
    give_back,
    keep_memory,
    peak_memory_mb,
    versions,
)
from smi.errors import UserError

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_a_sentence():
    assert choose_device("cpu") == CPU
    for name in ("tpu", "cuda:99", "mps:7" if not torch.backends.mps.is_available() else "tpu"):
        with pytest.raises(UserError, match="device"):
            choose_device(name)


def test_bfloat16_only_where_it_is_asked_for_or_a_gpu_has_it():
    assert choose_precision("auto", CPU) == "float32"
    assert choose_precision("bfloat16", CPU) == "bfloat16"
    a = torch.ones(2, 2)
    with autocast(CPU, "float32"):
        assert (a @ a).dtype == torch.float32
    with autocast(CPU, "bfloat16"):
        assert (a @ a).dtype == torch.bfloat16


def test_facts():
    assert "threads" in describe_device(CPU)
    assert peak_memory_mb(CPU) > 10
    assert torch.__version__.startswith(versions()["torch"])


def test_memory_is_given_back_by_the_device_that_has_it(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: given.append("mps"))
    for name in ("cuda:0", "mps", "cpu"):
        give_back(torch.device(name))
    assert given == ["cuda", "mps"]


def test_keeping_memory_changes_no_result():
    before = torch.arange(10_000_000).sum()
    keep_memory()
    assert torch.arange(10_000_000).sum() == before


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the system does not count what came before"
)
def test_peak_memory_is_not_that_of_the_process_that_started_this_one():
    large = b"x" * 800_000_000
    code = "import torch; from smi.device import peak_memory_mb; print(peak_memory_mb(torch.device('cpu')))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < len(large) / 1e6
