"""List encoders with their size and their speed on this machine, for `smi list encoders`.

print(list_encoders(image_size=32).text())
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from smi.device import default_device, describe_device, synchronize
from smi.nn.encoders import SMALL_RESNET, Encoder, create_encoder
from smi.tables import Table

ENCODER_NAMES = (
    SMALL_RESNET,
    "resnet18",
    "resnet34",
    "resnet50",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "convnext_nano",
    "efficientnet_b0",
    "mobilenetv3_small_100",
)
TIMED_BATCH_SIZE = 16


@dataclass(frozen=True)
class EncoderRow:
    """Hold the size of an encoder and its speed on this machine."""

    encoder: str
    arguments: dict[str, Any]  # beside the size of the images
    million_parameters: float
    dim: int
    gmacs: float  # 10^9 multiply-accumulates of one view's forward pass
    views_per_second: float  # forward and backward


@dataclass(frozen=True)
class EncoderList:
    """Hold encoders with their sizes and speeds."""

    image_size: int
    batch: int
    machine: str
    encoders: list[EncoderRow]

    def text(self) -> str:
        """Return a table for a terminal."""
        cells = [
            [
                " ".join([row.encoder, *(f"{name}={v}" for name, v in row.arguments.items())]),
                f"{row.million_parameters:.1f}",
                str(row.dim),
                f"{row.gmacs:.3f}",
                f"{row.views_per_second:.0f}",
            ]
            for row in self.encoders
        ]
        return Table.of(
            ["Encoder", "M parameters", "Features", "GMACs", "Views/s"],
            cells,
            title=f"Some encoders, for images of {self.image_size} x {self.image_size} pixels",
            notes=[
                "GMACs: of one view's forward pass. Views/s: forward and backward in float32, "
                f"batches of {self.batch}, better of two: {self.machine}.",
                "Any other timm model works by its name, and a network of your own by its import "
                "path.",
            ],
        ).text()

    def plain(self) -> dict[str, Any]:
        """Return the size of the images, the machine and one dictionary per encoder."""
        return asdict(self)


def list_encoders(*, image_size: int = 32) -> EncoderList:
    """Measure the listed encoders on this machine."""
    rows = [measure(name, image_size) for name in ENCODER_NAMES]
    return EncoderList(image_size, TIMED_BATCH_SIZE, describe_device(), rows)


def measure(name: str, image_size: int) -> EncoderRow:
    """Count the parameters and operations of an encoder, and time its training."""
    arguments = arguments_for(name, image_size)
    encoder = create_encoder(name, image_size=image_size, **arguments)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder.eval()(torch.zeros(1, 3, image_size, image_size))
    device = default_device()
    encoder = encoder.train().to(device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TIMED_BATCH_SIZE, 3, image_size, image_size, generator=generator).to(device)
    time_step(encoder, x)  # warms up
    seconds = min(time_step(encoder, x) for _ in range(2))
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return EncoderRow(
        name,
        arguments,
        parameters / 1e6,
        encoder.dim,
        counter.get_total_flops() / 2e9,
        TIMED_BATCH_SIZE / seconds,
    )


def arguments_for(name: str, image_size: int) -> dict[str, Any]:
    """Return smaller patches for a transformer on small images: 16 pixels would be too large."""
    return {"patch_size": 4} if name.startswith("vit") and image_size <= 64 else {}


def time_step(encoder: Encoder, x: Tensor) -> float:
    """Return the seconds of a forward and a backward pass."""
    synchronize(x.device)
    start = time.perf_counter()
    encoder(x).square().mean().backward()
    synchronize(x.device)
    return time.perf_counter() - start
