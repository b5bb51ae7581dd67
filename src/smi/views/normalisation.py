"""Turn uint8 images into normalised float inputs, and back."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from smi.views.policies import Triple


def normalise(images: Tensor, mean: Triple, std: Triple, size: int | None = None) -> Tensor:
    """Turn uint8 [N, 3, H, H] into float32 [N, 3, S, S], channels last.

    Resizing is bilinear, antialiased when it shrinks, and does not round to grey levels.
    """
    x = images.to(torch.float32, memory_format=torch.channels_last)
    if size is not None and tuple(x.shape[-2:]) != (size, size):
        x = interpolate(x, (size, size), mode="bilinear", antialias=True)
    m, s = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    return x.mul_((1 / (255 * s)).to(x)).sub_((m / s).to(x))


def unnormalise(images: Tensor, mean: Triple, std: Triple) -> Tensor:
    """Turn normalised float [..., 3, H, W] back into uint8 pixels on the CPU, clipped."""
    x = images.cpu()
    m, s = (torch.tensor(values, dtype=x.dtype)[:, None, None] for values in (mean, std))
    return ((x * s + m).clamp(0, 1) * 255).round().to(torch.uint8)
