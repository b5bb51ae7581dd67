"""Encode pictures as data: URLs, small enough for a page."""

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from smi.figures.energy_maps import scale_to_unit

THUMBNAIL_SIDE = 72  # pixels, at most
PICTURE_SIDE = 96  # pixels, at most
MAX_LOSSLESS_SIDE = 16  # pixels: browsers enlarge a tiny picture, so it is stored exactly
IMAGE_QUALITY = 78
GREY_SHARE = 0.38  # of the image under an energy map


def picture_url(image: Tensor, max_side: int) -> str:
    """Encode uint8 [3, H, W] as a data: URL, reduced to `max_side` pixels if it is larger."""
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if max(picture.size) > max_side:
        picture.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    return encode_picture(picture)


def encode_picture(picture: Image.Image) -> str:
    """Encode a picture as a data: URL: PNG if it is tiny, else WebP, or JPEG as a fallback."""
    buffer = io.BytesIO()
    if max(picture.size) <= MAX_LOSSLESS_SIDE:
        kind = "png"
        picture.save(buffer, kind, optimize=True)
        return _as_url(buffer, kind)
    kind = "webp"
    try:
        picture.save(buffer, kind, quality=IMAGE_QUALITY, method=4)
    except (KeyError, OSError):  # Pillow may lack WebP
        kind = "jpeg"
        buffer = io.BytesIO()
        picture.save(buffer, kind, quality=IMAGE_QUALITY)
    return _as_url(buffer, kind)


def energy_url(image: Tensor, energy: Tensor) -> str:
    """Encode uint8 [3, S, S] in grey under the energy [S, S] in colours of plotly's Inferno."""
    from plotly.colors import sample_colorscale, unlabel_rgb

    scale = sample_colorscale("Inferno", np.linspace(0, 1, 256))
    colours = np.array([unlabel_rgb(colour) for colour in scale], dtype=np.float32)
    size = (PICTURE_SIDE, PICTURE_SIDE)
    mode = "nearest" if image.shape[-1] < PICTURE_SIDE else "area"
    grey = interpolate(image.float().mean(dim=0)[None, None], size, mode=mode)[0, 0].numpy()
    smooth = interpolate(scale_to_unit(energy)[None, None], size, mode="bilinear")[0, 0]
    coloured = colours[(255 * smooth).round().to(torch.long).numpy()]
    mixed = GREY_SHARE * grey[..., None] + (1 - GREY_SHARE) * coloured
    return encode_picture(Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8)))


def _as_url(buffer: io.BytesIO, kind: str) -> str:
    """Return the bytes of a picture as a data: URL."""
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
