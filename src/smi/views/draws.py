"""What is random about a view, drawn apart from pixels: small tensors on the CPU, the same for whatever device. N images of H x W pixels.

The distributions are torchvision's. Everything is drawn for every image whether it is then used or not, so what one image gets depends on
neither the probabilities nor what became of others.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from smi.views.policies import View

TRIES = 10  # of torchvision, until a crop fits into the image
PATCH_SHARE = (
    64 / 85
)  # of the side of its cell of the jigsaw: neighbours do not touch, so no patch gives away where it was

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


@dataclass(frozen=True)
class Parameters:
    """All that a view needs beside the images."""

    size: int
    pad: int
    blur_kernel: int
    box: Tensor  # float32 [N, 4]: top, left, height, width, in pixels of the image
    flip: Tensor  # bool [N]
    jitter: Tensor  # bool [N]
    order: (
        Tensor  # int64 [N, 4]: which of the four operations of the jitter comes first, second, ...
    )
    factors: Tensor  # float32 [N, 4], by operation: brightness, contrast, saturation, hue
    gray: Tensor  # bool [N]
    blur: Tensor  # bool [N]
    sigma: Tensor  # float32 [N]
    solarize: Tensor  # bool [N]

    def __len__(self) -> int:
        return len(self.box)


def draw(view: View, n: int, height: int, width: int, generator: Generator) -> list[Parameters]:
    """One for the view; of a jigsaw, one for each patch, in an order of their own for each image."""
    box = draw_box(view, n, height, width, generator)  # [N, 4]
    flip = happens(view.flip_p, n, generator)
    boxes = [box] if view.grid == 1 else patches(box, view.grid, generator)
    return [
        Parameters(
            size=view.size,
            pad=view.pad,
            blur_kernel=view.blur_kernel,
            box=one.float(),
            flip=flip,
            jitter=happens(view.jitter_p, n, generator),
            order=torch.rand(n, 4, generator=generator).argsort(1),
            factors=draw_factors(view, n, generator),
            gray=happens(view.gray_p, n, generator),
            blur=happens(view.blur_p, n, generator),
            sigma=uniform(*view.sigma, (n,), generator).float(),
            solarize=happens(view.solarize_p, n, generator),
        )
        for one in boxes
    ]


def draw_box(view: View, n: int, height: int, width: int, generator: Generator) -> Tensor:
    """torchvision's RandomResizedCrop: of ten tries the first that fits; else the whole image, cut to the nearest ratio allowed."""
    height, width = height + 2 * view.pad, width + 2 * view.pad
    area = height * width * uniform(*view.scale, (n, TRIES), generator)
    low, high = (torch.tensor(ratio, dtype=torch.float64).log().item() for ratio in view.ratio)
    ratio = uniform(low, high, (n, TRIES), generator).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()  # [N, TRIES]
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)  # of several equal ones, the first
    found = fits.any(1)
    whole_ratio = min(max(width / height, view.ratio[0]), view.ratio[1])
    h = torch.where(found, h.gather(1, first)[:, 0], min(height, round(width / whole_ratio)))  # [N]
    w = torch.where(found, w.gather(1, first)[:, 0], min(width, round(height * whole_ratio)))
    top = torch.where(
        found,
        (uniform(0, 1, (n,), generator) * (height - h + 1)).floor(),
        ((height - h) / 2).floor(),
    )
    left = torch.where(
        found, (uniform(0, 1, (n,), generator) * (width - w + 1)).floor(), ((width - w) / 2).floor()
    )
    return torch.stack([top - view.pad, left - view.pad, h, w], 1)


def patches(box: Tensor, grid: int, generator: Generator) -> list[Tensor]:
    """A box in each cell of the box cut into grid x grid, somewhere within its cell; shuffled for each image on its own."""
    n = len(box)
    top, left, height, width = (side[:, None] for side in box.unbind(1))  # [N, 1]
    cell = torch.rand(n, grid**2, generator=generator).argsort(1)  # [N, grid²]
    shift = uniform(0, 1 - PATCH_SHARE, (2, n, grid**2), generator)
    h, w = (height / grid).expand(cell.shape), (width / grid).expand(cell.shape)
    top = top + (cell // grid + shift[0]) * h
    left = left + (cell % grid + shift[1]) * w
    return list(torch.stack([top, left, h * PATCH_SHARE, w * PATCH_SHARE], 2).unbind(1))


def draw_factors(view: View, n: int, generator: Generator) -> Tensor:
    strengths = torch.tensor(
        [view.brightness, view.contrast, view.saturation, view.hue], dtype=torch.float64
    )
    low, high = (1 - strengths).clamp(min=0), 1 + strengths
    low[HUE], high[HUE] = -view.hue, view.hue
    return (low + (high - low) * torch.rand(n, 4, generator=generator, dtype=torch.float64)).float()


def happens(probability: float, n: int, generator: Generator) -> Tensor:
    return torch.rand(n, generator=generator) < probability


def uniform(low: float, high: float, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """In float64: a box is rounded to whole pixels, and should be the same on every machine."""
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
