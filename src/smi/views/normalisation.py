"""Turn uint8 images into normalised float inputs."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from smi.views.policies import Triple


def normalise(images: Tensor, mean: Triple, std: Triple, size: int | None = None) -> Tensor:
    """Turn uint8 [N, 3, H, H] into normalised float32 [N, 3, S, S], channels last.

    Resizing is bilinear, antialiased where it shrinks, and not rounded to grey levels.
    """
    x = images.to(torch.float32, memory_format=torch.channels_last)
    if size is not None and tuple(x.shape[-2:]) != (size, size):
        x = interpolate(x, (size, size), mode="bilinear", antialias=True)
    m, s = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    return x.mul_((1 / (255 * s)).to(x)).sub_((m / s).to(x))
