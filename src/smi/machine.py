"""The device here. torch is imported when it is asked for."""

from typing import Any


def default_device() -> Any:
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def wait(device: Any) -> None:
    """Until the device has done what it was given, so that a clock can be read."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def describe_device() -> str:
    import platform

    import torch

    device = default_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}"
