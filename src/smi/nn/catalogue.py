"""What `smi encoders` prints: some encoders, how large they are, and how fast they learn here."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from smi.device import default_device, describe_device, synchronize
from smi.nn.encoders import SMALL, Encoder, create_encoder
from smi.tables import Table

NAMES = (
    SMALL,
    "resnet18",
    "resnet34",
    "resnet50",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "convnext_nano",
    "efficientnet_b0",
    "mobilenetv3_small_100",
)
BATCH = 16


@dataclass(frozen=True)
class Row:
    encoder: str
    arguments: dict[str, Any]  # beside the size of the images
    million_parameters: float
    dim: int
    gmacs: float  # 10^9 multiply-accumulates of one view's forward pass
    views_per_second: float  # forward and backward


def print_encoders(*, image_size: int, as_json: bool) -> None:
    rows = [measure(name, image_size) for name in NAMES]
    machine = describe_device()
    if as_json:
        print(
            json.dumps(
                {
                    "image_size": image_size,
                    "batch": BATCH,
                    "machine": machine,
                    "encoders": [asdict(row) for row in rows],
                },
                indent=2,
            )
        )
        return
    print(f"Some encoders, for images of {image_size} x {image_size} pixels\n")
    table = [
        [
            " ".join([row.encoder, *(f"{key}={value}" for key, value in row.arguments.items())]),
            f"{row.million_parameters:.1f}",
            str(row.dim),
            f"{row.gmacs:.3f}",
            f"{row.views_per_second:.0f}",
        ]
        for row in rows
    ]
    print(Table.of(["Encoder", "M parameters", "Features", "GMACs", "Views/s"], table).text())
    print(
        f"\nGMACs: of one view's forward pass. Views/s: forward and backward in float32, batches of {BATCH}, better of two: {machine}."
    )
    print("Any other network of timm goes by its name, and one of your own by its import path.")


def measure(name: str, image_size: int) -> Row:
    arguments = arguments_for(name, image_size)
    encoder = create_encoder(name, image_size=image_size, **arguments)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder.eval()(torch.zeros(1, 3, image_size, image_size))
    device = default_device()
    encoder = encoder.train().to(device)
    x = torch.randn(
        BATCH, 3, image_size, image_size, generator=torch.Generator().manual_seed(0)
    ).to(device)
    seconds(encoder, x)  # warms up
    best = min(seconds(encoder, x) for _ in range(2))
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return Row(
        name,
        arguments,
        parameters / 1e6,
        encoder.dim,
        counter.get_total_flops() / 2e9,
        BATCH / best,
    )


def arguments_for(name: str, image_size: int) -> dict[str, Any]:
    """A transformer sees too little of a small image in patches of 16 pixels."""
    return {"patch_size": 4} if name.startswith("vit") and image_size <= 64 else {}


def seconds(encoder: Encoder, x: Tensor) -> float:
    synchronize(x.device)
    start = time.perf_counter()
    encoder(x).square().mean().backward()
    synchronize(x.device)
    return time.perf_counter() - start
