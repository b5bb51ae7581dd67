"""Draw a contact sheet for `smi data --views`: images, and several draws of the views of each.

write_sheet("cifar10", out=Path("views.png"))
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from smi.config.choose import choose_recipe
from smi.config.resolve import resolve
from smi.config.schema import RECIPES
from smi.data import Pictures, load
from smi.device import Runtime
from smi.runs.restore import policy_of
from smi.seeds import derive, permutation
from smi.terminal import counted, quietly, say
from smi.training.configure import CPU_VIEW_SIZE
from smi.views.normalisation import unnormalise
from smi.views.png import INK_COLOUR, PAPER_COLOUR, check_png_path, draw_tile, write_png
from smi.views.policies import RECIPES as POLICIES
from smi.views.policies import View, policy
from smi.views.views import Views

MIN_TILE_SIDE = 96  # pixels: smaller views are enlarged by a whole number
TILE_GAP = 4  # pixels between tiles
DRAW_GAP = 20  # pixels between draws
HEADER_HEIGHT = 22  # pixels above the tiles
MAX_VIEW_COLUMNS = 9  # views beside an image; exceeded only if a single draw has more


@dataclass(frozen=True)
class _Column:
    """Place the tiles of all rows below each other."""

    left: int
    tiles: list[Image.Image]
    label: str = ""


def write_sheet(
    target: str,
    *,
    recipe: str | None = None,
    out: Path = Path("views.png"),
    rows: int = 6,
    seed: int = 0,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Write a PNG with random images of a dataset or folder and several draws of their views.

    write_sheet("photos", out=Path("views.png"), rows=4)

    recipe: a recipe, or a policy such as "imagenette-multicrop"; None: the recipe that pretraining
    would choose.
    """
    check_png_path(out)
    with quietly(quiet):
        views, resolution = _views_of(target, recipe, runtime)
        images = _random_images(target, rows, seed, runtime, resolution)
        num_draws = max(1, MAX_VIEW_COLUMNS // sum(map(_num_columns, views.policy.views)))
        write_png(draw_sheet(images, views, num_draws, seed), out)
        sizes = ", ".join(map(str, dict.fromkeys(view.size for view in views.policy.views)))
        draws = counted(num_draws, "draw")
        say(
            f"{out}: {len(images)} images of {target}, {draws} of the views of "
            f"{views.policy.name} ({sizes} px)"
        )
    return out


def _views_of(target: str, recipe: str | None, runtime: Runtime) -> tuple[Views, int | None]:
    """Return the views of a policy or a recipe, and the resolution that images are stored at."""
    if recipe is None and target in POLICIES:
        recipe = target
    if recipe is not None and recipe not in RECIPES:
        return Views(policy(recipe)), None
    settings: dict[str, Any] = {}
    if recipe is None:
        device = runtime.choose_device()
        choice = choose_recipe(target, runtime.root, device, min_images=1)
        recipe, settings = choice.recipe, choice.settings
    config = resolve(recipe, {**settings, "data": target}, {"views.size": CPU_VIEW_SIZE})
    return Views(policy_of(config.views)), config.data.resolution


def _random_images(
    target: str, count: int, seed: int, runtime: Runtime, resolution: int | None
) -> Tensor | Pictures:
    # Without a cache: only these few files are decoded, to the pixels that a cache would hold.
    store = load(
        target,
        "train",
        root=runtime.root,
        resolution=resolution,
        num_workers=runtime.num_workers,
        max_cache_bytes=0,
    )
    try:
        return store.start(permutation(len(store), seed, 0)[:count])()[0]
    finally:
        store.close()


def _num_columns(view: View) -> int:
    return 2 if view.grid > 1 else 1  # a mosaic of patches is about twice as wide


def draw_sheet(images: Tensor | Pictures, views: Views, num_draws: int, seed: int) -> Image.Image:
    """Draw a row for each image: the image, then its draws."""
    largest = max(view.size for view in views.policy.views)
    zoom = math.ceil(MIN_TILE_SIDE / largest)
    side = zoom * largest
    columns = [_Column(0, [draw_tile(images[i], side) for i in range(len(images))], "image")]
    left = side + DRAW_GAP
    for number in range(num_draws):
        generator = torch.Generator().manual_seed(derive(seed, "sheet", number))
        for column in _draw_columns(images, views, generator, left, zoom):
            columns.append(column)
            left = column.left + _width(column) + TILE_GAP
        left += DRAW_GAP - TILE_GAP
    height = max([side, *(tile.height for column in columns for tile in column.tiles)])
    return _assemble(columns, left - DRAW_GAP, height, len(images))


def _draw_columns(
    images: Tensor | Pictures, views: Views, generator: torch.Generator, left: int, zoom: int
) -> list[_Column]:
    """Draw all views of all images once, as columns from `left` on."""
    tensors = iter(views(images, generator))
    all_views = views.policy.views
    columns = []
    for i, view in enumerate(all_views):
        patches = [
            unnormalise(next(tensors), views.policy.mean, views.policy.std)
            for _ in range(view.grid**2)
        ]
        tiles = [
            _mosaic([patch[row] for patch in patches], view.grid, zoom)
            for row in range(len(images))
        ]
        if len(all_views) > 2:
            label = f"{len(all_views)} views" if i == 0 else ""
        else:
            label = "patches" if view.grid > 1 else f"view {i + 1}"
        columns.append(_Column(left, tiles, label))
        left += _width(columns[-1]) + TILE_GAP
    return columns


def _width(column: _Column) -> int:
    return column.tiles[0].width if column.tiles else 0


def _assemble(
    columns: Sequence[_Column], width: int, tile_height: int, num_rows: int
) -> Image.Image:
    """Put the labels and tiles of all columns on one sheet."""
    height = HEADER_HEIGHT + num_rows * (tile_height + TILE_GAP) - TILE_GAP
    sheet = Image.new("RGB", (width, height), PAPER_COLOUR)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default()
    for column in columns:
        if column.label:
            pen.text((column.left + 1, 5), column.label, fill=INK_COLOUR, font=font)
        for row, tile in enumerate(column.tiles):
            sheet.paste(tile, (column.left, HEADER_HEIGHT + row * (tile_height + TILE_GAP)))
    return sheet


def _mosaic(patches: list[Tensor], grid: int, zoom: int) -> Image.Image:
    side = patches[0].shape[-1] * zoom
    mosaic = Image.new("RGB", (grid * (side + 1) - 1,) * 2, PAPER_COLOUR)
    for i, patch in enumerate(patches):
        mosaic.paste(draw_tile(patch, side), (i % grid * (side + 1), i // grid * (side + 1)))
    return mosaic
