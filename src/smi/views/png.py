"""Draw images as tiles of a contact sheet, and write the sheet as a PNG file."""

from pathlib import Path

from PIL import Image
from torch import Tensor

from smi.errors import UserError
from smi.files import disk_errors, write_whole

PAPER_COLOUR = (255, 255, 255)
INK_COLOUR = (60, 60, 60)


def check_png_path(path: Path) -> None:
    """Raise an error if a PNG cannot be written to `path`, before anything is computed."""
    if path.suffix.lower() != ".png":
        raise UserError(f"the sheet is a PNG, so --out must end in .png, not {path.name!r}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}: create it, or choose another --out")
    if path.is_dir():
        raise UserError(f"{path} is a folder: choose another --out")


def write_png(image: Image.Image, path: Path) -> None:
    """Write an image whole or not at all: an existing file stays until the new one is complete."""

    def write(partial: Path) -> None:
        image.save(partial, format="PNG")

    with disk_errors(f"writing {path}"):
        write_whole(path, write)


def draw_tile(image: Tensor, side: int) -> Image.Image:
    """Draw uint8 [3, H, W] in a square of `side` pixels; the longer side fills it.

    Enlarged by a whole number, pixels stay squares; otherwise they are interpolated.
    """
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    longer = max(picture.size)
    whole = side % longer == 0
    width, height = (max(1, round(pixels * side / longer)) for pixels in picture.size)
    picture = picture.resize(
        (width, height), Image.Resampling.NEAREST if whole else Image.Resampling.BICUBIC
    )
    tile = Image.new("RGB", (side, side), PAPER_COLOUR)
    tile.paste(picture, ((side - width) // 2, (side - height) // 2))
    return tile
