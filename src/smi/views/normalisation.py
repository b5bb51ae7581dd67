"""Turn uint8 images into normalised float inputs, and back."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from smi.device import upload
from smi.views.policies import Triple

KEPT_SHARE = 7 / 8  # of the side of an image with a margin: 224 of 256 pixels


def kept_side(resolution: int, size: int) -> int:
    """Return the side of the centre that evaluation keeps of an image of `resolution` pixels.

    size: the side of the encoder's input. Larger images are kept with a margin for random crops,
    which evaluation cuts off. Others stay whole.
    """
    return round(resolution * KEPT_SHARE) if resolution > size else resolution


def centre_crop(images: Tensor, side: int) -> Tensor:
    """Return the centre of images, [..., side, side], without a copy."""
    # torchvision rounds in the same way where the margin is odd.
    top, left = (round((length - side) / 2) for length in images.shape[-2:])
    return images[..., top : top + side, left : left + side]


def normalise(
    images: Tensor, mean: Triple, std: Triple, size: int | None = None, crop: int | None = None
) -> Tensor:
    """Turn uint8 [N, 3, H, H] into float32 [N, 3, S, S], channels last: the input in evaluation.

    size: S; None keeps the images as they are. crop: the side of the centre that is kept; None is
    that of `kept_side`. Resizing is bilinear, antialiased when it shrinks, and does not round to
    grey levels.
    """
    if size is not None:
        images = centre_crop(images, crop or kept_side(images.shape[-1], size))
    x = images.to(torch.float32, memory_format=torch.channels_last)
    if size is not None and tuple(x.shape[-2:]) != (size, size):
        x = interpolate(x, (size, size), mode="bilinear", antialias=True)
    m, s = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    scale, shift = upload(torch.stack([1 / (255 * s), m / s]).float(), x.device)
    return x.mul_(scale).sub_(shift)


def unnormalise(images: Tensor, mean: Triple, std: Triple) -> Tensor:
    """Turn normalised float [..., 3, H, W] back into uint8 pixels on the CPU, clipped."""
    x = images.cpu()
    m, s = (torch.tensor(values, dtype=x.dtype)[:, None, None] for values in (mean, std))
    return ((x * s + m).clamp(0, 1) * 255).round().to(torch.uint8)
