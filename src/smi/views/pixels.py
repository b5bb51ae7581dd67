"""Apply the parameters of views to pixels: batched PyTorch operations for any device.

Images are float [N, 3, S, S] between 0 and 1, parameters are [N]. Each operation equals its
function in torchvision.transforms.v2.functional on a float image. Values are not rounded to grey
levels between operations, as torchvision does with uint8 images, so they differ from those by about
one level (at most 1.2 for contrast and saturation).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from smi.views.draws import CONTRAST, HUE, SATURATION, Parameters
from smi.views.policies import Triple

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)  # as in torchvision
SOLARIZE_THRESHOLD = 0.5  # grey level 128 of 255 is the first to be inverted


def make_view(images: Tensor, parameters: Parameters, mean: Triple, std: Triple) -> Tensor:
    """Turn uint8 [N, 3, H, W] into normalised float32 [N, 3, S, S].

    The operations are crop, flip, jitter, gray, blur and solarize. The images of an operation are
    selected on the CPU, so that the host never waits for the device.
    """
    p, device = parameters, images.device
    x = resized_crop(
        images,
        p.box.to(device, non_blocking=True),
        p.size,
        p.flip.to(device, non_blocking=True),
        p.pad,
    )
    jitter(x, p)
    rows = p.gray.nonzero()[:, 0].to(device, non_blocking=True)
    x[rows] = gray(x[rows]).expand(-1, 3, -1, -1)
    rows = p.blur.nonzero()[:, 0]
    if len(rows) > 0 and p.blur_kernel > 1:
        sigma = p.sigma[rows].to(device, non_blocking=True)
        rows = rows.to(device, non_blocking=True)
        x[rows] = gaussian_blur(x[rows], sigma, p.blur_kernel)
    rows = p.solarize.nonzero()[:, 0].to(device, non_blocking=True)
    x[rows] = solarize(x[rows])
    return x.sub_(_channels(mean, x)).div_(_channels(std, x))


def resized_crop(images: Tensor, box: Tensor, size: int, flip: Tensor, pad: int = 0) -> Tensor:
    """Crop and resize uint8 [N, 3, H, W] to float [N, 3, S, S].

    Resizing is bilinear, and antialiased where it shrinks. It is linear along rows and along
    columns, so each is a product with a matrix.
    """
    top, left, height, width = box.unbind(1)
    rows = resize_matrix(top, height, images.shape[-2], size, pad)  # [N, S, H]
    columns = resize_matrix(left, width, images.shape[-1], size, pad)  # [N, S, W]
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    x = images.to(box.dtype).div_(255) @ columns.mT[:, None]  # [N, 3, H, S]
    return (rows[:, None] @ x).clamp_(0, 1)


def resize_matrix(start: Tensor, length: Tensor, pixels: int, size: int, pad: int) -> Tensor:
    """Return the weights [N, S, pixels] that resize a segment of a line to S pixels.

    Only pixels that overlap the segment count. `pad` pixels before and after the line are black.
    """
    start, length = start[:, None, None], length[:, None, None]  # [N, 1, 1]
    scale = length / size
    center = start + scale * (
        torch.arange(size, device=start.device, dtype=start.dtype)[:, None] + 0.5
    )  # [N, S, 1]
    pixel = torch.arange(-pad, pixels + pad, device=start.device, dtype=start.dtype)
    inside = (pixel >= start.floor()) & (pixel < (start + length).ceil())
    weights = (1 - (pixel + 0.5 - center).abs() / scale.clamp(min=1)).clamp_(min=0) * inside
    return (weights / weights.sum(-1, keepdim=True))[..., pad : pad + pixels]


def jitter(x: Tensor, parameters: Parameters) -> None:
    """Jitter the colours in place, in the order of each image.

    Brightness, contrast and saturation share one formula; hue has its own. Images are sorted by the
    turn at which their hue changes. The images with a hue change are then contiguous at every turn.
    """
    p, device = parameters, x.device
    turn_of_hue = (p.order == HUE).int().argmax(1)  # [N]
    rows = p.jitter.nonzero()[:, 0]
    rows = rows[turn_of_hue[rows].argsort(stable=True)]
    if len(rows) == 0:
        return
    ends = torch.bincount(turn_of_hue[rows], minlength=4).cumsum(0).tolist()
    kind = p.order[rows].to(device)
    factors = p.factors[rows].to(device)
    on_device = rows.to(device)
    y = x[on_device]
    for turn in range(4):
        begin = ends[turn - 1] if turn > 0 else 0
        end = ends[turn]
        shift_hue(y[begin:end], factors[begin:end, HUE])
        for part in (slice(0, begin), slice(end, len(y))):
            which = kind[part, turn]
            blend(y[part], which, factors[part].gather(1, which[:, None])[:, 0])
    x[on_device] = y


def blend(x: Tensor, kind: Tensor, factor: Tensor) -> None:
    """Scale the distance from a reference, in place.

    It is black (brightness), the mean grey of the image (contrast) or the grey of the pixel
    (saturation).
    """
    if len(x) == 0:
        return
    level = gray(x)  # [N, 1, S, S]
    mean = level.mean((1, 2, 3), keepdim=True)
    rest = (1 - factor)[:, None, None, None]
    kind = kind[:, None, None, None]
    level = level.mul_(rest * (kind == SATURATION)).add_(mean * rest * (kind == CONTRAST))
    x.mul_(factor[:, None, None, None]).add_(level).clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> None:
    """Rotate the hue by `shift` of a full turn, in place; value v and chroma c stay the same.

    With the hue h in sixths of a turn, red, green and blue are v - c clamp(min(k, 4 - k), 0, 1),
    where k = (n + h) mod 6 and n = 5, 3, 1.
    """
    if len(x) == 0:
        return
    r, g, b = x.unbind(1)  # [N, S, S]
    low, value = torch.aminmax(x, dim=1)
    chroma = value - low
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, (b - r) / safe + 2, (r - g) / safe + 4)
    )
    hue = hue + 6 * shift[:, None, None]
    for channel, n in enumerate((5, 3, 1)):
        k = (hue + n).remainder_(6)
        x[:, channel] = value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def gray(x: Tensor) -> Tensor:
    """Return the grey values [N, 1, S, S] of images."""
    r, g, b = x.unbind(1)
    return (
        (LUMA_WEIGHTS[0] * r).add_(g, alpha=LUMA_WEIGHTS[1]).add_(b, alpha=LUMA_WEIGHTS[2])[:, None]
    )


def gaussian_blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur images that are reflected at the edges, by one matrix for rows and columns."""
    size = x.shape[-1]
    weights = gaussian_kernel(sigma, kernel)  # [N, kernel]
    source = F.pad(
        torch.arange(size, device=x.device, dtype=x.dtype)[None],
        (kernel // 2, kernel // 2),
        mode="reflect",
    )[0].long()
    source = source.unfold(0, kernel, 1)  # [S, kernel]: the pixels that each output reads
    matrix = x.new_zeros(len(x), size, size)
    matrix.scatter_add_(2, source.expand(len(x), -1, -1), weights[:, None].expand(-1, size, -1))
    return matrix[:, None] @ x @ matrix.mT[:, None]


def gaussian_kernel(sigma: Tensor, kernel: int) -> Tensor:
    """Return the weights [N, kernel] of Gaussian blurs."""
    offsets = torch.arange(kernel, device=sigma.device, dtype=sigma.dtype) - kernel // 2
    return torch.softmax(-0.5 * (offsets / sigma[:, None]).square(), dim=1)


def solarize(x: Tensor) -> Tensor:
    """Invert bright values."""
    return torch.where(x >= SOLARIZE_THRESHOLD, 1 - x, x)


def _channels(values: Triple, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)[:, None, None]
