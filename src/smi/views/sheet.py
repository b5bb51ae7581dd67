"""A contact sheet: some images, and beside each several draws of its views, as `smi views` writes it."""

import os
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from smi.data import load
from smi.errors import UserError
from smi.files import disk_errors
from smi.seeds import derive, permutation
from smi.views.policies import RECIPES, Policy, policy
from smi.views.views import Views

SMALLEST = 96  # pixels of a tile: smaller views are enlarged by a whole number
GAP, GROUP_GAP, HEADER = 4, 20, 22  # pixels between tiles, between draws, above them
COLUMNS = 9  # at most about so many views beside an image
PAPER, INK = (255, 255, 255), (60, 60, 60)


def write_sheet(
    target: str, *, recipe: str | None, out: Path, root: Path | None, seed: int, rows: int
) -> None:
    check_out(out)
    if recipe is None and target not in RECIPES:
        raise UserError(
            f"{target} has no recipe of its own: choose one with --recipe ({', '.join(RECIPES)}; also with -multicrop or -jigsaw)"
        )
    views = Views(policy(recipe or target))
    # Few images are wanted: from a folder these alone are decoded, to the very pixels that a cache of all would hold.
    store = load(target, "train", root=root, largest_cache=0)
    try:
        images = store[permutation(len(store), seed, 0)[:rows]]
    finally:
        store.close()
    num_draws = max(1, COLUMNS // sum(2 if view.grid > 1 else 1 for view in views.policy.views))
    sheet = draw_sheet(images, views, num_draws, seed)
    save(sheet, out)
    sizes = ", ".join(str(size) for size in dict.fromkeys(view.size for view in views.policy.views))
    draws = "1 draw" if num_draws == 1 else f"{num_draws} draws"
    print(
        f"{out}: {len(images)} images of {target}, {draws} of the views of {views.policy.name} ({sizes} px)"
    )


def check_out(out: Path) -> None:
    """Before anything is computed."""
    if out.suffix.lower() != ".png":
        raise UserError(f"the sheet is a PNG, so --out must end in .png, not {out.name!r}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}: make it, or choose another --out")
    if out.is_dir():
        raise UserError(f"{out} is a folder: choose another --out")


def draw_sheet(images: Tensor, views: Views, num_draws: int, seed: int) -> Image.Image:
    """A row for each of uint8 [N, 3, H, W]: the image, then its draws."""
    chosen = views.policy
    zoom = -(-SMALLEST // max(view.size for view in chosen.views))
    tile = zoom * max(view.size for view in chosen.views)
    tiles = [
        (0, [picture(image, tile) for image in images])
    ]  # where a column begins, and its pictures
    labels = [(0, "image")]
    x = tile + GROUP_GAP
    for number in range(num_draws):
        made = iter(views(images, torch.Generator().manual_seed(derive(seed, "sheet", number))))
        for i, view in enumerate(chosen.views):
            column = [_uint8(next(made), chosen) for _ in range(view.grid**2)]
            pictures = [
                _mosaic([patch[row] for patch in column], view.grid, zoom)
                for row in range(len(images))
            ]
            tiles.append((x, pictures))
            if len(chosen.views) <= 2:
                labels.append((x, "patches" if view.grid > 1 else f"view {i + 1}"))
            x += (pictures[0].width if pictures else 0) + GAP
        if len(chosen.views) > 2:
            labels.append((tiles[-len(chosen.views)][0], f"{len(chosen.views)} views"))
        x += GROUP_GAP - GAP
    height = max([tile, *(drawn.height for _, pictures in tiles for drawn in pictures)])
    sheet = Image.new("RGB", (x - GROUP_GAP, HEADER + len(images) * (height + GAP) - GAP), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for left, label in labels:
        pen.text((left + 1, 5), label, fill=INK, font=font)
    for left, pictures in tiles:
        for row, drawn in enumerate(pictures):
            sheet.paste(drawn, (left, HEADER + row * (height + GAP)))
    return sheet


def save(sheet: Image.Image, out: Path) -> None:
    """All of it or nothing: a sheet that is there stays until the new one is complete."""
    with disk_errors(f"writing {out}"):
        fd, partial = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                sheet.save(file, format="PNG")
            os.chmod(partial, 0o644)
            os.replace(partial, out)
        except BaseException:
            os.unlink(partial)
            raise


def _uint8(x: Tensor, chosen: Policy) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (chosen.mean, chosen.std))
    return ((x * std + mean) * 255).round().clamp(0, 255).byte()


def _mosaic(patches: list[Tensor], grid: int, zoom: int) -> Image.Image:
    side = patches[0].shape[-1] * zoom
    mosaic = Image.new("RGB", (grid * (side + 1) - 1,) * 2, PAPER)
    for i, patch in enumerate(patches):
        mosaic.paste(picture(patch, side), (i % grid * (side + 1), i // grid * (side + 1)))
    return mosaic


def picture(image: Tensor, side: int) -> Image.Image:
    """Of uint8 [3, H, H]. Enlarged by a whole number pixels stay squares; else they are interpolated."""
    found = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    whole = side % found.width == 0
    return found.resize(
        (side, side), Image.Resampling.NEAREST if whole else Image.Resampling.BICUBIC
    )
