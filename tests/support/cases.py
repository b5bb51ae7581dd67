"""Provide images and parameters for the tests of views."""

from dataclasses import replace

import torch
from torch import Tensor

from smi.views.draws import Parameters

NO_MEAN, UNIT_STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def pictures(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Draw images like photographs: smooth, with edges, noise and colours.

    The images after the first four are black, white, grey and red.
    """
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 4, 5, generator=generator) * 1.4 - 0.2
    x = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    images = (x.clamp(0, 1) * 255).round().byte()
    for i, colour in enumerate([(0, 0, 0), (255, 255, 255), (127, 127, 127), (200, 10, 10)]):
        if i + 4 < n:
            images[i + 4] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
    return images


def nothing(
    n: int, height: int, width: int, size: int | None = None, **changes: object
) -> Parameters:
    """Return parameters that leave the images unchanged, except for `changes`."""
    off = torch.zeros(n, dtype=torch.bool)
    parameters = Parameters(
        size=size or height,
        pad=0,
        blur_kernel=1,
        box=torch.tensor([[0.0, 0.0, height, width]]).repeat(n, 1),
        flip=off,
        jitter=off,
        order=torch.arange(4).repeat(n, 1),
        factors=torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(n, 1),
        gray=off,
        blur=off,
        sigma=torch.ones(n),
        solarize=off,
    )
    return replace(parameters, **changes)


def select(parameters: Parameters, rows: Tensor) -> Parameters:
    """Return the parameters of some images."""
    return replace(
        parameters,
        **{
            name: value[rows]
            for name, value in vars(parameters).items()
            if isinstance(value, Tensor)
        },
    )
