"""Draw the random parameters of views as small tensors on the CPU, the same for every device.

The distributions are those of torchvision. All parameters are drawn for every image, whether they
are used or not. The draws of an image therefore depend neither on the probabilities nor on the
other images. A batch has N images; `shapes` are their heights and widths, int64 [N, 2].
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from smi.data.pictures import Pictures
from smi.views.policies import View

NUM_CROP_TRIES = 10  # attempts to draw a crop that fits into the image, as in torchvision
# The side of a patch divided by the side of its cell in the jigsaw. Neighbouring patches do not
# touch, so their edges do not reveal their positions.
PATCH_SHARE = 64 / 85

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


@dataclass(frozen=True)
class Parameters:
    """Hold all parameters of one view of a batch."""

    size: int
    pad: int
    blur_kernel: int
    box: Tensor  # float32 [N, 4]: top, left, height, width, in pixels of the image
    flip: Tensor  # bool [N]
    jitter: Tensor  # bool [N]
    order: Tensor  # int64 [N, 4]: the operation of the jitter that comes first, second, ...
    factors: Tensor  # float32 [N, 4], by operation: brightness, contrast, saturation, hue
    gray: Tensor  # bool [N]
    blur: Tensor  # bool [N]
    sigma: Tensor  # float32 [N]
    solarize: Tensor  # bool [N]
    bicubic: bool = False  # interpolation of the crop; otherwise bilinear

    def __len__(self) -> int:
        return len(self.box)


def shapes_of(images: Tensor | Pictures) -> Tensor:
    """Return the height and width of every image: int64 [N, 2]."""
    if isinstance(images, Pictures):
        return images.shape
    return torch.tensor([images.shape[-2:]]).expand(len(images), 2)


def draw(view: View, shapes: Tensor, generator: Generator) -> list[Parameters]:
    """Draw the parameters of a view, or of each patch of a jigsaw, shuffled for each image."""
    n = len(shapes)
    box = draw_box(view, shapes, generator)  # [N, 4]
    flip = happens(view.flip_p, n, generator)
    boxes = [box] if view.grid == 1 else patches(box, view.grid, generator)
    return [
        Parameters(
            size=view.size,
            pad=view.pad,
            blur_kernel=view.blur_kernel,
            box=patch_box.float(),
            flip=flip,
            jitter=happens(view.jitter_p, n, generator),
            order=torch.rand(n, 4, generator=generator).argsort(1),
            factors=draw_factors(view, n, generator),
            gray=happens(view.gray_p, n, generator),
            blur=happens(view.blur_p, n, generator),
            sigma=uniform(*view.sigma, (n,), generator).float(),
            solarize=happens(view.solarize_p, n, generator),
            bicubic=view.interpolation == "bicubic",
        )
        for patch_box in boxes
    ]


def draw_box(view: View, shapes: Tensor, generator: Generator) -> Tensor:
    """Draw crops like torchvision's RandomResizedCrop: the first of ten tries that fits.

    If none fits, the crop is the centre of the image, cut to the nearest allowed ratio.
    """
    n = len(shapes)
    height, width = (shapes.double() + 2 * view.pad).unbind(1)  # [N]
    area = (height * width)[:, None] * uniform(*view.scale, (n, NUM_CROP_TRIES), generator)
    low, high = (torch.tensor(ratio, dtype=torch.float64).log().item() for ratio in view.ratio)
    ratio = uniform(low, high, (n, NUM_CROP_TRIES), generator).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()  # [N, NUM_CROP_TRIES]
    fits = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
    first = fits.int().argmax(1, keepdim=True)  # argmax returns the first of equal values
    any_fits = fits.any(1)
    whole_ratio = (width / height).clamp(*view.ratio)
    whole_height = (width / whole_ratio).round().minimum(height)
    whole_width = (height * whole_ratio).round().minimum(width)
    h = torch.where(any_fits, h.gather(1, first)[:, 0], whole_height)  # [N]
    w = torch.where(any_fits, w.gather(1, first)[:, 0], whole_width)
    top = torch.where(
        any_fits,
        (uniform(0, 1, (n,), generator) * (height - h + 1)).floor(),
        ((height - h) / 2).floor(),
    )
    left = torch.where(
        any_fits,
        (uniform(0, 1, (n,), generator) * (width - w + 1)).floor(),
        ((width - w) / 2).floor(),
    )
    return torch.stack([top - view.pad, left - view.pad, h, w], 1)


def patches(box: Tensor, grid: int, generator: Generator) -> list[Tensor]:
    """Cut a box into grid x grid cells and draw a patch within each, shuffled for each image."""
    n = len(box)
    top, left, height, width = (side[:, None] for side in box.unbind(1))  # [N, 1]
    cell = torch.rand(n, grid**2, generator=generator).argsort(1)  # [N, grid²]
    shift = uniform(0, 1 - PATCH_SHARE, (2, n, grid**2), generator)
    h, w = (height / grid).expand(cell.shape), (width / grid).expand(cell.shape)
    top = top + (cell // grid + shift[0]) * h
    left = left + (cell % grid + shift[1]) * w
    return list(torch.stack([top, left, h * PATCH_SHARE, w * PATCH_SHARE], 2).unbind(1))


def draw_factors(view: View, n: int, generator: Generator) -> Tensor:
    """Draw the factors of brightness, contrast and saturation, and the shift of the hue: [N, 4]."""
    strengths = torch.tensor(
        [view.brightness, view.contrast, view.saturation, view.hue], dtype=torch.float64
    )
    low, high = (1 - strengths).clamp(min=0), 1 + strengths
    low[HUE], high[HUE] = -view.hue, view.hue
    return (low + (high - low) * torch.rand(n, 4, generator=generator, dtype=torch.float64)).float()


def happens(probability: float, n: int, generator: Generator) -> Tensor:
    """Draw for each of n images whether an operation is applied."""
    return torch.rand(n, generator=generator) < probability


def uniform(low: float, high: float, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw in float64, so that a box rounded to whole pixels is the same on every machine."""
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
