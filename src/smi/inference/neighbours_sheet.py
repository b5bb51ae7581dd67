"""Draw the contact sheet of `smi neighbours`: each query, and the images most similar to it."""

import math
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from smi.data.decoder import FORMATS, ValueRange
from smi.runs.encoder import square
from smi.terminal import printable
from smi.views.png import INK_COLOUR, PAPER_COLOUR, draw_tile

TILE_SIDE = 128  # pixels: larger images are shrunk to it, smaller ones enlarged by a whole number
MAX_COLUMNS = 10  # neighbours in one line; more of them begin another line
SHEET_MARGIN = 16  # pixels around the sheet
TILE_GAP = 10  # pixels between tiles
QUERY_GAP = 34  # pixels between a query and its neighbours
ROW_GAP = 18  # pixels between queries
HEADER_HEIGHT = 26  # pixels of the title
LINE_HEIGHT = 15  # pixels of a line of text
CAPTION_HEIGHT = 38  # pixels of the text below a tile
CAPTION_GAP = 5  # pixels between a tile and its text
FRAME_GAP = 3  # pixels between a query and its frame
FAINT, RULE = (130, 130, 130), (215, 215, 215)
FONT_SIZE = 12

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Tile:
    """Hold a picture, at most TILE_SIDE pixels wide, and the text below it."""

    picture: Image.Image
    file: str
    words: str


def thumbnail_of_file(path: Path, value_range: ValueRange | None = None) -> Image.Image:
    """Return a thumbnail of the central square of a file, the part that an encoder sees."""
    pixels = square(path, TILE_SIDE, value_range)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which is not used
        with Image.open(path, formats=FORMATS) as image:
            side = min(image.size)
    return thumbnail(pixels if side >= TILE_SIDE else square(path, side, value_range))


def thumbnail(image: Tensor) -> Image.Image:
    """Return a thumbnail of uint8 [3, H, H]."""
    side = image.shape[-1]
    return draw_tile(image, TILE_SIDE if side > TILE_SIDE else TILE_SIDE // side * side)


def draw_sheet(rows: Sequence[tuple[Tile, Sequence[Tile]]], *, title: str) -> Image.Image:
    """Draw a row for each query: the query in a frame, then its neighbours."""
    num_columns = max(1, min(MAX_COLUMNS, max(len(near) for _, near in rows)))
    num_lines = [max(1, math.ceil(len(near) / MAX_COLUMNS)) for _, near in rows]
    left = SHEET_MARGIN + TILE_SIDE + QUERY_GAP  # of the first neighbour
    width = left + num_columns * (TILE_SIDE + TILE_GAP) - TILE_GAP + SHEET_MARGIN
    heights = [_row_height(num) for num in num_lines]
    height = 2 * SHEET_MARGIN + HEADER_HEIGHT + sum(heights) + ROW_GAP * (len(rows) - 1)
    canvas = _Canvas(width, height)
    canvas.write(SHEET_MARGIN, SHEET_MARGIN, "query")
    canvas.write(left, SHEET_MARGIN, canvas.shorten(title, width - SHEET_MARGIN - left))
    y = SHEET_MARGIN + HEADER_HEIGHT
    for (query, near), row_height in zip(rows, heights, strict=True):
        canvas.place(query, SHEET_MARGIN, y)
        canvas.frame(SHEET_MARGIN, y)
        for i, tile in enumerate(near):
            line, column = divmod(i, MAX_COLUMNS)
            x = left + column * (TILE_SIDE + TILE_GAP)
            canvas.place(tile, x, y + line * (TILE_SIDE + CAPTION_HEIGHT + TILE_GAP))
        canvas.rule(SHEET_MARGIN + TILE_SIDE + QUERY_GAP // 2, y, y + row_height)
        y += row_height + ROW_GAP
    return canvas.image


def _row_height(num_lines: int) -> int:
    return num_lines * (TILE_SIDE + CAPTION_HEIGHT + TILE_GAP) - TILE_GAP


class _Canvas:
    """Draw tiles and text on an image."""

    def __init__(self, width: int, height: int):
        self.image = Image.new("RGB", (width, height), PAPER_COLOUR)
        self._pen = ImageDraw.Draw(self.image)
        self._font = ImageFont.load_default(FONT_SIZE)

    def write(self, x: int, y: int, words: str, ink: tuple[int, int, int] = FAINT) -> None:
        """Write one line of text."""
        self._pen.text((x, y), words, fill=ink, font=self._font)

    def place(self, tile: Tile, x: int, y: int) -> None:
        """Draw a tile with its text; a smaller picture lies in the middle of its place."""
        left = x + (TILE_SIDE - tile.picture.width) // 2
        top = y + (TILE_SIDE - tile.picture.height) // 2
        self.image.paste(tile.picture, (left, top))
        fits = self._font.getlength(_drawable(tile.file)) <= TILE_SIDE
        file = tile.file if fits else tile.file.rsplit("/", 1)[-1]  # drop the folders first
        lines = [(tile.words, INK_COLOUR), (file, FAINT)] if tile.words else [(file, FAINT)]
        for i, (words, ink) in enumerate(lines):
            line_y = y + TILE_SIDE + CAPTION_GAP + i * LINE_HEIGHT
            self.write(x, line_y, self.shorten(words, TILE_SIDE), ink)

    def frame(self, x: int, y: int) -> None:
        """Draw a frame around a tile."""
        far = TILE_SIDE + FRAME_GAP - 1
        self._pen.rectangle((x - FRAME_GAP, y - FRAME_GAP, x + far, y + far), outline=INK_COLOUR)

    def rule(self, x: int, top: int, bottom: int) -> None:
        """Draw a vertical line."""
        self._pen.line((x, top, x, bottom), fill=RULE)

    def shorten(self, words: str, width: int) -> str:
        """Cut text in the middle until it fits: the end of a file name identifies it."""
        return _shorten(words, width, self._font)


def _shorten(words: str, width: int, font: Font) -> str:
    words = _drawable(words)
    short = words
    num_letters = len(words)
    while font.getlength(short) > width and num_letters > 1:
        num_letters -= 1
        begin = num_letters // 2
        short = f"{words[:begin]}…{words[len(words) - (num_letters - begin) :]}"
    return short


def _drawable(words: str) -> str:
    """Replace letters that Pillow's font lacks: accents are removed, others become "?"."""
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", printable(words)) if not unicodedata.combining(c)
    )
    return plain.encode("ascii", "replace").decode()
