"""Make every method in a size for tests: a tiny encoder, narrow heads, random views."""

from typing import Any

import torch
from torch import Tensor, nn

from smi.data import Batch
from smi.methods import METHOD_NAMES, Method, create_method
from smi.nn import Encoder
from smi.views import policy

NUM_IMAGES = 40
LARGE_SIDE, SMALL_SIDE = 8, 5  # pixels of views
# A line for each method.
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
    # The small weights at DINO's start suit wide heads, or heads with batch norms.
    "DINO": {"widths": (12, 12, 6), "norm": True, "num_outputs": 20, "crops": 3},
    "PIRL": {"dim": 6, "num_negatives": 30},
}
NAMES = list(METHOD_NAMES)


def encoder() -> Encoder:
    """Return an untrained encoder with ten features."""
    layers = [
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    return Encoder(nn.Sequential(*layers, nn.Linear(32, 10)), 10)


def make(name: str, **settings: Any) -> Method:
    """Return a small method with fixed weights."""
    torch.manual_seed(0)
    return create_method(name, encoder(), num_images=NUM_IMAGES, **SETTINGS[name] | settings)


def batch(n: int, seed: int = 1) -> Batch:
    """Return a batch of n images; only their indices matter."""
    index = torch.randperm(NUM_IMAGES, generator=torch.Generator().manual_seed(seed))[:n]
    return Batch(torch.zeros(n, 3, 1, 1, dtype=torch.uint8), index, seed)


def views(method: Method, n: int, seed: int = 1) -> list[Tensor]:
    """Return noisy copies of n images, in the shapes of the method's policy."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(n, 3, LARGE_SIDE, LARGE_SIDE, generator=generator)
    wanted = method.policy(policy("digits")).views
    sides = [view.size for view in wanted for _ in range(view.grid**2)]  # a grid gives patches
    sizes = [LARGE_SIDE if side == max(sides) else SMALL_SIDE for side in sides]
    return [
        image[..., :size, :size] + 0.3 * torch.randn(n, 3, size, size, generator=generator)
        for size in sizes
    ]


def without_batch_norm(method: Method) -> Method:
    """Replace batch norms, which have the statistics of one process, by layer norms."""
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
    """Train as the loop does, with ten steps in all and two in an epoch; return the losses."""
    losses = []
    for step in steps:
        method.progress = step / 10
        method.epoch = step // 2
        out = method(views(method, n, 1 + step), batch(n, 1 + step))
        out.loss.backward()
        method.before_step()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
        losses.append(out.loss.item())
    return losses
