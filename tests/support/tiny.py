"""Every method in a size for tests: a tiny encoder, narrow heads, random views."""

from typing import Any

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.methods import METHOD_NAMES, Method, create_method
from smi.nn import Encoder

NUM_IMAGES, LARGE, SMALL = 40, 8, 5
SETTINGS: dict[str, dict[str, Any]] = {
    "SMI": {"widths": (12, 6)},
    "BarlowTwins": {"widths": (12, 6)},
    "VICReg": {"widths": (12, 6)},
    "SimCLR": {"widths": (12, 6)},
    "BYOL": {"widths": (12, 6)},
    "MoCo": {"widths": (6,), "queue_size": 16},
    "MoCoV2": {"widths": (12, 6), "queue_size": 16},
    "SimSiam": {"widths": (12, 6), "bottleneck": 4},
    "SwAV": {
        "widths": (12, 6),
        "num_prototypes": 10,
        "crops": 3,
        "queue_size": 16,
        "queue_from_epoch": 1,
    },
    "DINO": {"widths": (12, 12, 6), "num_outputs": 20, "crops": 3},
    "PIRL": {"dim": 6, "num_negatives": 30},
}
NAMES = list(METHOD_NAMES)


def encoder() -> Encoder:
    layers = [
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    return Encoder(nn.Sequential(*layers, nn.Linear(32, 10)), 10)


def make(name: str, **settings: Any) -> Method:
    torch.manual_seed(0)
    return create_method(name, encoder(), num_images=NUM_IMAGES, **SETTINGS[name] | settings)


def batch(n: int, seed: int = 1) -> Batch:
    index = torch.randperm(NUM_IMAGES, generator=torch.Generator().manual_seed(seed))[:n]
    return Batch(torch.zeros(n, 3, 1, 1, dtype=torch.uint8), index, seed)


def views(method: Method, n: int, seed: int = 1) -> list[Tensor]:
    """What the method's policy would give, in shape: noisy copies of n images."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(n, 3, LARGE, LARGE, generator=generator)
    crops = getattr(method, "crops", 0)
    sizes = (
        [LARGE] + [SMALL] * 9
        if type(method).__name__ == "PIRL"
        else [LARGE, LARGE] + [SMALL] * crops
    )
    return [
        image[..., :size, :size] + 0.3 * torch.randn(n, 3, size, size, generator=generator)
        for size in sizes
    ]


def without_batch_norm(method: Method) -> Method:
    """The same with layer norms: a batch norm's statistics are those of one process."""
    for module in list(method.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm1d):
                setattr(module, name, nn.LayerNorm(child.num_features, elementwise_affine=False))
            elif isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(2, child.num_features, affine=False))
    return method


def train(
    method: Method, optimizer: torch.optim.Optimizer, steps: range, *, n: int = 6
) -> list[float]:
    """The loop, in small: ten steps in all, two to an epoch."""
    losses = []
    for step in steps:
        method.progress, method.epoch = step / 10, step // 2
        out = method(views(method, n, 1 + step), batch(n, 1 + step))
        out.loss.backward()
        method.before_step()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
        losses.append(out.loss.item())
    return losses
