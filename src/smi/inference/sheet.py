"""A contact sheet of queries and what is near each, as `smi neighbours` draws it."""

import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from smi.data.decoder import FORMATS
from smi.runs.encoder import square
from smi.terminal import printable
from smi.views.png import INK_COLOUR, PAPER_COLOUR, draw_tile

SIDE = (
    128  # pixels of a tile: larger images are shrunk to it, smaller ones enlarged by a whole number
)
COLUMNS = 10  # neighbours beside each other; more begin another line
MARGIN, GAP, GROUP_GAP, ROW_GAP = (
    16,
    10,
    34,
    18,
)  # pixels around the sheet, between tiles, before neighbours, between queries
HEADER, LINE, CAPTION = (
    26,
    15,
    38,
)  # of the words above, of a line of words, of the words below a tile
FRAME = 3  # pixels from a query to its frame
FAINT, RULE = (130, 130, 130), (215, 215, 215)
FONT = 12


@dataclass(frozen=True)
class Tile:
    """A picture no larger than SIDE, and the words below it."""

    picture: Image.Image
    file: str
    words: str


def thumbnail_of_file(path: Path) -> Image.Image:
    """Of the middle square, which is what an encoder sees."""
    pixels = square(path, SIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata that are not looked at
        with Image.open(path, formats=FORMATS) as image:
            side = min(image.size)
    return thumbnail(pixels if side >= SIDE else square(path, side))


def thumbnail(image: Tensor) -> Image.Image:
    """Of uint8 [3, H, H]."""
    side = image.shape[-1]
    return draw_tile(image, SIDE if side > SIDE else SIDE // side * side)


def draw_sheet(rows: Sequence[tuple[Tile, Sequence[Tile]]], *, title: str) -> Image.Image:
    """A query with a frame around it, then its neighbours, for each row."""
    columns = max(1, min(COLUMNS, max(len(near) for _, near in rows)))
    lines = [max(1, -(-len(near) // COLUMNS)) for _, near in rows]
    first = MARGIN + SIDE + GROUP_GAP  # where neighbours begin
    width = first + columns * (SIDE + GAP) - GAP + MARGIN
    height = (
        MARGIN
        + HEADER
        + sum(num * (SIDE + CAPTION) + (num - 1) * GAP + ROW_GAP for num in lines)
        - ROW_GAP
        + MARGIN
    )
    sheet = Image.new("RGB", (width, height), PAPER_COLOUR)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT)
    pen.text((MARGIN, MARGIN), "query", fill=FAINT, font=font)
    pen.text((first, MARGIN), _short(title, width - MARGIN - first, font), fill=FAINT, font=font)
    y = MARGIN + HEADER
    for (query, near), num in zip(rows, lines, strict=True):
        _place(sheet, pen, font, query, MARGIN, y)
        pen.rectangle(
            (MARGIN - FRAME, y - FRAME, MARGIN + SIDE + FRAME - 1, y + SIDE + FRAME - 1),
            outline=INK_COLOUR,
        )
        for i, tile in enumerate(near):
            line, column = divmod(i, COLUMNS)
            _place(
                sheet,
                pen,
                font,
                tile,
                first + column * (SIDE + GAP),
                y + line * (SIDE + CAPTION + GAP),
            )
        bottom = y + num * (SIDE + CAPTION + GAP) - GAP
        x = MARGIN + SIDE + GROUP_GAP // 2
        pen.line((x, y, x, bottom), fill=RULE)
        y = bottom + ROW_GAP
    return sheet


def _place(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, font: "_Font", tile: Tile, x: int, y: int
) -> None:
    """A smaller picture lies in the middle of its place."""
    sheet.paste(
        tile.picture, (x + (SIDE - tile.picture.width) // 2, y + (SIDE - tile.picture.height) // 2)
    )
    fits = font.getlength(_drawable(tile.file)) <= SIDE
    file = (
        tile.file if fits else tile.file.rsplit("/", 1)[-1]
    )  # a path that is too long loses its folders first
    lines = [(tile.words, INK_COLOUR), (file, FAINT)] if tile.words else [(file, FAINT)]
    for i, (words, ink) in enumerate(lines):
        pen.text((x, y + SIDE + 5 + i * LINE), _short(words, SIDE, font), fill=ink, font=font)


_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _short(words: str, width: int, font: _Font) -> str:
    """Cut in the middle, for the end of a file's name tells it from its like."""
    cut = words = _drawable(words)
    kept = len(words)
    while font.getlength(cut) > width and kept > 1:
        kept -= 1
        cut = f"{words[: kept // 2]}…{words[len(words) - (kept - kept // 2) :]}"
    return cut


def _drawable(words: str) -> str:
    """In letters that Pillow's own font has: without their accents, or a question mark."""
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", printable(words)) if not unicodedata.combining(c)
    )
    return plain.encode("ascii", "replace").decode()
