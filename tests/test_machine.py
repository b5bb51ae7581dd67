"""What this machine has to compute with."""

import pytest
import torch

from smi.errors import UserError
from smi.machine import autocast, choose_device, choose_precision, describe_device, keep_memory, peak_memory_mb, versions

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


def test_keeping_memory_changes_no_result():
    before = torch.arange(10_000_000).sum()
    keep_memory()
    assert torch.arange(10_000_000).sum() == before
