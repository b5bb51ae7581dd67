"""Apply the parameters of views to pixels: batched PyTorch operations for any device.

Images are float [N, 3, S, S] between 0 and 1, parameters are [N]. Each operation equals its
function in torchvision.transforms.v2.functional on a float image. Values are not rounded to grey
levels between operations, as torchvision does with uint8 images, so they differ from those by about
one level (at most 1.2 for contrast and saturation).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from smi.data.pictures import Pictures
from smi.device import upload
from smi.views.draws import CONTRAST, HUE, SATURATION, Parameters
from smi.views.policies import Triple

LUMA_WEIGHTS = (0.2989, 0.587, 0.114)  # as in torchvision
SOLARIZE_THRESHOLD = 0.5  # grey level 128 of 255 is the first to be inverted


@dataclass(frozen=True)
class Plan:
    """Hold the parameters of a view as its operations need them, on the device of the images.

    The images of an operation are selected on the CPU, so that the host never waits for the device.
    """

    size: int
    pad: int
    blur_kernel: int
    bicubic: bool
    box: Tensor  # float32 [N, 4]
    flip: Tensor  # bool [N]
    jitter_rows: Tensor  # int64 [J], sorted by the turn at which their hue changes
    hue_ends: list[int]  # of the rows whose hue changes at each of the four turns
    kind: Tensor  # int64 [J, 4]
    factors: Tensor  # float32 [J, 4]
    gray_rows: Tensor  # int64
    blur_rows: Tensor  # int64 [B]
    sigma: Tensor  # float32 [B]
    solarize_rows: Tensor  # int64
    mean: Tensor  # float32 [3, 1, 1]
    std: Tensor  # float32 [3, 1, 1]


def make_view(
    images: Tensor | Pictures, parameters: Parameters, mean: Triple, std: Triple
) -> Tensor:
    """Turn images into one normalised view, float32 [N, 3, S, S]."""
    (view,) = make_views(images, [parameters], mean, std)
    return view


def make_views(
    images: Tensor | Pictures, parameters: Sequence[Parameters], mean: Triple, std: Triple
) -> list[Tensor]:
    """Turn images into normalised float32 [N, 3, S, S], one tensor per view, channels last.

    All parameters reach the device in one copy.
    """
    plans = make_plans(parameters, mean, std, images.device)
    if isinstance(images, Pictures):
        images = images.padded()
    return [follow_plan(images, plan) for plan in plans]


def follow_plan(images: Tensor, plan: Plan) -> Tensor:
    """Make one view of uint8 [N, 3, H, W]: crop, flip, jitter, gray, blur, solarize, normalise."""
    x = resized_crop(images, plan)
    jitter(x, plan)
    x[plan.gray_rows] = gray(x[plan.gray_rows]).expand(-1, 3, -1, -1)
    if len(plan.blur_rows) > 0 and plan.blur_kernel > 1:
        x[plan.blur_rows] = gaussian_blur(x[plan.blur_rows], plan.sigma, plan.blur_kernel)
    x[plan.solarize_rows] = solarize(x[plan.solarize_rows])
    return x.sub_(plan.mean).div_(plan.std).contiguous(memory_format=torch.channels_last)


def make_plans(
    parameters: Sequence[Parameters], mean: Triple, std: Triple, device: torch.device
) -> list[Plan]:
    """Copy the parameters of all views to a device, as one tensor of floats.

    Indices are exact as floats: a batch has far fewer than 2^24 images.
    """
    fields = [_float_fields(p, mean, std) for p in parameters]
    sizes = [tensor.numel() for tensors in fields for tensor in tensors.values()]
    packed = torch.cat([tensor.flatten() for tensors in fields for tensor in tensors.values()])
    parts = iter(torch.split_with_sizes(upload(packed, device), sizes))
    plans = []
    for p, tensors in zip(parameters, fields, strict=True):
        x = {name: next(parts).view(tensor.shape) for name, tensor in tensors.items()}
        turns = _turn_of_hue(p)[p.jitter]
        plans.append(
            Plan(
                size=p.size,
                pad=p.pad,
                blur_kernel=p.blur_kernel,
                bicubic=p.bicubic,
                box=x["box"],
                flip=x["flip"].bool(),
                jitter_rows=x["jitter_rows"].long(),
                hue_ends=torch.bincount(turns, minlength=4).cumsum(0).tolist(),
                kind=x["kind"].long(),
                factors=x["factors"],
                gray_rows=x["gray_rows"].long(),
                blur_rows=x["blur_rows"].long(),
                sigma=x["sigma"],
                solarize_rows=x["solarize_rows"].long(),
                mean=x["mean"],
                std=x["std"],
            )
        )
    return plans


def _float_fields(p: Parameters, mean: Triple, std: Triple) -> dict[str, Tensor]:
    """Return the tensors of a plan as float32 on the CPU."""
    jitter_rows = p.jitter.nonzero()[:, 0]
    jitter_rows = jitter_rows[_turn_of_hue(p)[jitter_rows].argsort(stable=True)]
    blur_rows = p.blur.nonzero()[:, 0]
    tensors = {
        "box": p.box,
        "flip": p.flip,
        "jitter_rows": jitter_rows,
        "kind": p.order[jitter_rows],
        "factors": p.factors[jitter_rows],
        "gray_rows": p.gray.nonzero()[:, 0],
        "blur_rows": blur_rows,
        "sigma": p.sigma[blur_rows],
        "solarize_rows": p.solarize.nonzero()[:, 0],
        "mean": torch.tensor(mean)[:, None, None],
        "std": torch.tensor(std)[:, None, None],
    }
    return {name: tensor.float() for name, tensor in tensors.items()}


def _turn_of_hue(p: Parameters) -> Tensor:
    return (p.order == HUE).int().argmax(1)  # [N]


def resized_crop(images: Tensor, plan: Plan) -> Tensor:
    """Crop and resize uint8 [N, 3, H, W] to float [N, 3, S, S].

    Resizing is antialiased where it shrinks. It is linear along rows and along columns, so each is
    a product with a matrix.
    """
    top, left, height, width = plan.box.unbind(1)
    rows = resize_matrix(top, height, images.shape[-2], plan)  # [N, S, H]
    columns = resize_matrix(left, width, images.shape[-1], plan)  # [N, S, W]
    columns = torch.where(plan.flip[:, None, None], columns.flip(1), columns)
    x = images.to(plan.box.dtype).div_(255) @ columns.mT[:, None]  # [N, 3, H, S]
    return (rows[:, None] @ x).clamp_(0, 1)


def resize_matrix(start: Tensor, length: Tensor, pixels: int, plan: Plan) -> Tensor:
    """Return the weights [N, S, pixels] that resize a segment of a line to S pixels.

    Only pixels that overlap the segment count. `pad` pixels before and after the line are black.
    """
    start, length = start[:, None, None], length[:, None, None]  # [N, 1, 1]
    scale = length / plan.size
    center = start + scale * (
        torch.arange(plan.size, device=start.device, dtype=start.dtype)[:, None] + 0.5
    )  # [N, S, 1]
    pad = plan.pad
    pixel = torch.arange(-pad, pixels + pad, device=start.device, dtype=start.dtype)
    inside = (pixel >= start.floor()) & (pixel < (start + length).ceil())
    distance = (pixel + 0.5 - center).abs() / scale.clamp(min=1)
    weights = (cubic(distance) if plan.bicubic else (1 - distance).clamp_(min=0)) * inside
    return (weights / weights.sum(-1, keepdim=True))[..., pad : pad + pixels]


def cubic(distance: Tensor) -> Tensor:
    """Return the weights of pixels at these distances in a bicubic resize, as in PIL (a = -0.5)."""
    x = distance.clamp(max=2)  # weights end there
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x < 1, near, far)


def jitter(x: Tensor, plan: Plan) -> None:
    """Jitter the colours in place, in the order of each image.

    Brightness, contrast and saturation share one formula; hue has its own. Images are sorted by the
    turn at which their hue changes. The images with a hue change are then contiguous at every turn.
    """
    if len(plan.jitter_rows) == 0:
        return
    y = x[plan.jitter_rows]
    for turn in range(4):
        begin = plan.hue_ends[turn - 1] if turn > 0 else 0
        end = plan.hue_ends[turn]
        shift_hue(y[begin:end], plan.factors[begin:end, HUE])
        for part in (slice(0, begin), slice(end, len(y))):
            which = plan.kind[part, turn]
            blend(y[part], which, plan.factors[part].gather(1, which[:, None])[:, 0])
    x[plan.jitter_rows] = y


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
