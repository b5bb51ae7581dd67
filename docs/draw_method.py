"""Draw the method as docs/method.svg.

Run `python docs/draw_method.py`; `make docs` does it too. The rows of numbers are made up, but
the matrices are computed from them: every cell shows M(ρ) of the two rows that it belongs to.
"""

import colorsys
import math
import random
from collections.abc import Sequence
from pathlib import Path

OUT = Path(__file__).parent / "method.svg"
WIDTH, HEIGHT = 940, 530
NUM_SAMPLES, NUM_COORDINATES = 4, 12
EPS = 1e-6
NOISE = 0.5
TILE = 34  # side of a drawn image
STEP = 40  # from one drawn image to the next
MIDDLE = (162, 398)  # y of the middle of each view's drawings
CENTRE = sum(MIDDLE) / 2
HEADINGS = 36  # y of the names of the stages

TITLE = "Semantic Mutual Information"
DESCRIPTION = (
    "Each of N images gives two random views. One encoder and one projector map every view to "
    "a row of K numbers. The dependencies M of all pairs of rows fill three N by N matrices: "
    "between the views, within view 1 and within view 2. The alignment term raises the diagonal "
    "of the matrix between the views, where the two views of one image meet, towards 1. The "
    "redundancy term lowers all off-diagonal entries, where different images meet, towards 0."
)

# Light and dark by the reader's setting. The card has its own background, so that the text stays
# readable on a page that is dark while the reader's setting is light, or the other way round.
STYLE = """
    svg { --card: #ffffff; --edge: #d0d7de; --ink: #1f2328; --soft: #59636e; --line: #8c959f;
          --box: #eef1f4; --same: #0b7a75; --other: #c2410c; --positive: #3b6fb6;
          --negative: #a8548f; --on: #ffffff; }
    @media (prefers-color-scheme: dark) {
      svg { --card: #0d1117; --edge: #3d444d; --ink: #f0f6fc; --soft: #9ba5b0; --line: #7d8590;
            --box: #1c232c; --same: #2dd4bf; --other: #fb923c; --positive: #79a8e8;
            --negative: #dc8fc4; --on: #0d1117; }
    }
    text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
           font-size: 14px; fill: var(--ink); }
    .card { fill: var(--card); stroke: var(--edge); }
    .head { font-weight: 600; font-size: 15px; }
    .soft { fill: var(--soft); }
    .number { font-size: 13px; }
    .same { fill: var(--same); } .other { fill: var(--other); } .on { fill: var(--on); }
    .positive { fill: var(--positive); } .negative { fill: var(--negative); }
    .box { fill: var(--box); stroke: var(--line); }
    .line { fill: none; stroke: var(--line); stroke-width: 1.5; }
    .grid { fill: none; stroke: var(--edge); }
    .tip { fill: var(--line); }
"""


def main() -> None:
    OUT.write_text(draw(), encoding="utf-8")


def draw() -> str:
    """Return the whole drawing as SVG."""
    z1, z2 = embeddings()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{TITLE}</title>',
        f'<desc id="desc">{DESCRIPTION}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        *images_and_views(),
        *networks(),
        *rows_of_numbers(z1, z2),
        *matrices(z1, z2),
        *losses(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


# ------ the numbers


def embeddings() -> tuple[list[list[float]], list[list[float]]]:
    """Return made-up rows of two views: one pattern per sample, and noise per view."""
    rng = random.Random(5)
    patterns = [
        [math.cos(math.pi * (k + 0.5) * (i + 1) / NUM_COORDINATES) for k in range(NUM_COORDINATES)]
        for i in (1, 0, 3, 2)
    ]

    def view() -> list[list[float]]:
        return [[value + rng.uniform(-NOISE, NOISE) for value in pattern] for pattern in patterns]

    return view(), view()


def dependency(row: Sequence[float], other: Sequence[float]) -> float:
    """Return M(ρ) of two rows, ρ their Pearson correlation over coordinates."""
    u, v = ([value - sum(values) / len(values) for value in values] for values in (row, other))
    rho = sum(a * b for a, b in zip(u, v, strict=True)) / (math.hypot(*u) * math.hypot(*v))
    return -0.5 * math.log(1 - rho**2 + EPS)


# ------ images and views

PALETTE = {
    "sky": "#bfe0f5",
    "sun": "#f6b73c",
    "hill": "#5b9a55",
    "sea": "#3f7fb5",
    "sail": "#fbfaf5",
    "hull": "#a1502f",
    "crown": "#3d8b4f",
    "trunk": "#7a5230",
    "wall": "#e8c9a0",
    "roof": "#b5443c",
}

# Shapes on a square of 40 x 40, each with the name of its colour.
SCENES = (
    (  # a sun over hills
        ("sky", "M0 0h40v40h-40z"),
        ("sun", "M26 13a7 7 0 1 0 .01 0z"),
        ("hill", "M0 30q10 -12 20 -2t20 -4v16h-40z"),
    ),
    (  # a boat
        ("sky", "M0 0h40v40h-40z"),
        ("sea", "M0 28q5 -3 10 0t10 0t10 0t10 0v12h-40z"),
        ("sail", "M19 5v19h-13z"),
        ("roof", "M21 8v16h10z"),
        ("hull", "M6 26h28l-5 7h-18z"),
    ),
    (  # a tree
        ("sky", "M0 0h40v40h-40z"),
        ("hill", "M0 33q20 -5 40 0v7h-40z"),
        ("trunk", "M18 22h4v14h-4z"),
        ("crown", "M20 4a11 11 0 1 0 .01 0z"),
    ),
    (  # a house
        ("sky", "M0 0h40v40h-40z"),
        ("hill", "M0 33h40v7h-40z"),
        ("wall", "M9 19h22v16h-22z"),
        ("roof", "M5 20l15 -13l15 13z"),
        ("trunk", "M17 25h6v10h-6z"),
    ),
)

# Per sample and view: the crop (x, y, side), mirrored or not, turn of the hue, saturation.
CROPS = (
    ((10, 4, 28, False, 0.00, 1.0), (8, 0, 32, True, 0.06, 0.0)),
    ((2, 2, 34, True, 0.45, 0.9), (3, 6, 29, False, 0.00, 1.0)),
    ((6, 2, 28, False, 0.00, 0.0), (2, 0, 38, True, 0.12, 1.0)),
    ((0, 3, 37, True, 0.04, 1.0), (4, 4, 30, False, 0.55, 0.8)),
)


def recolour(colour: str, turn: float, saturation: float) -> str:
    """Return a colour with its hue turned and its saturation multiplied."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, lightness, colourful = colorsys.rgb_to_hls(red, green, blue)
    rgb = colorsys.hls_to_rgb((hue + turn) % 1, lightness, colourful * saturation)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)


def tile(sample: int, view: int | None, x: float, y: float, side: float = TILE) -> str:
    """Return a drawn image, whole or as one of its views."""
    left, top, size, mirrored, turn, saturation = (
        (0, 0, 40, False, 0.0, 1.0) if view is None else CROPS[sample][view]
    )
    shapes = "".join(
        f'<path d="{path}" fill="{recolour(PALETTE[name], turn, saturation)}"/>'
        for name, path in SCENES[sample]
    )
    mirror = f' transform="translate({2 * left + size} 0) scale(-1 1)"' if mirrored else ""
    return (
        f'<svg x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}" '
        f'viewBox="{left} {top} {size} {size}"><g{mirror}>{shapes}</g></svg>'
        + frame(x, y, side, side)
    )


def images_and_views() -> list[str]:
    """Draw the images, and both views of each."""
    images, views = 24, 104
    parts = [heading(images + TILE / 2, "images"), heading(views + TILE / 2, "views")]
    for sample in range(NUM_SAMPLES):
        offset = (sample - (NUM_SAMPLES - 1) / 2) * STEP - TILE / 2
        parts.append(tile(sample, None, images, CENTRE + offset))
        parts += [tile(sample, view, views, MIDDLE[view] + offset) for view in (0, 1)]
    for view, y in enumerate(MIDDLE):
        parts.append(text(views + TILE / 2, below_or_above(view), f"view {view + 1}", "soft"))
        parts.append(curve(images + TILE + 6, CENTRE, views - 6, y))
    parts.append(text(images + TILE / 2, CENTRE - 92, "N", "soft"))
    return parts


def below_or_above(view: int) -> float:
    """Return the y of a label: above the drawings of view 1, below those of view 2."""
    return MIDDLE[view] + (-90 if view == 0 else 102)


# ------ networks


def networks() -> list[str]:
    """Draw the encoder and the projector, once for each view."""
    encoder, projector = (164, 228), (252, 316)
    parts = []
    for name, (left, right), reaches in (
        ("encoder", encoder, (62, 26)),
        ("projector", projector, (26, 52)),
    ):
        middle = (left + right) / 2
        parts.append(heading(middle, name))
        for y in MIDDLE:
            parts.append(
                f'<path class="box" d="M{left} {y - reaches[0]}L{right} {y - reaches[1]}'
                f'V{y + reaches[1]}L{left} {y + reaches[0]}z"/>'
            )
            parts.append(text(middle, y + 5, "f" if name == "encoder" else "g"))
        reach = sum(reaches) / 2 + 6
        for start, end in (
            (MIDDLE[0] + reach, CENTRE - 14),
            (CENTRE + 14, MIDDLE[1] - reach),
        ):
            parts.append(
                f'<path class="line" stroke-dasharray="2 5" d="M{middle:g} {start:g}V{end:g}"/>'
            )
    for view, y in enumerate(MIDDLE):
        parts += [curve(left, y, right, y) for left, right in ((142, 158), (228, 246), (316, 334))]
        parts.append(text(240, y - 40, "h" + "¹²"[view], "soft"))
    parts.append(text((encoder[0] + projector[1]) / 2, CENTRE + 5, "same weights", "soft"))
    return parts


# ------ embeddings


def rows_of_numbers(*views: list[list[float]]) -> list[str]:
    """Draw every embedding as a row of K cells."""
    left, width, height = 342, 9, 26
    middle = left + NUM_COORDINATES * width / 2
    parts = [heading(middle, "embeddings")]
    largest = max(abs(value) for rows in views for row in rows for value in row)
    for view, rows in enumerate(views):
        for i, row in enumerate(rows):
            y = MIDDLE[view] + (i - (NUM_SAMPLES - 1) / 2) * STEP - height / 2
            for k, value in enumerate(row):
                sign = "positive" if value > 0 else "negative"
                parts.append(
                    f'<rect class="{sign}" x="{left + k * width}" y="{y:g}" width="{width}" '
                    f'height="{height}" fill-opacity="{abs(value) / largest:.2f}"/>'
                )
            parts.append(frame(left, y, NUM_COORDINATES * width, height))
        label = f"z{'¹²'[view]}, N × K"
        parts.append(text(middle, below_or_above(view), label, "soft"))
    return parts


# ------ matrices


def matrices(z1: list[list[float]], z2: list[list[float]]) -> list[str]:
    """Draw the dependencies between the views, within view 1 and within view 2."""
    x, side, small = 536, 36, 21
    middle = x + NUM_SAMPLES * side / 2
    y = CENTRE - NUM_SAMPLES * side / 2 + 15
    within = middle - NUM_SAMPLES * small / 2
    top, bottom = 80, HEIGHT - 42 - NUM_SAMPLES * small
    parts = [heading(middle, "N × N dependencies")]
    parts += matrix(z1, z1, within, top, small)
    parts += matrix(z1, z2, x, y, side)
    parts += matrix(z2, z2, within, bottom, small)
    for i in range(NUM_SAMPLES):
        parts.append(tile(i, 0, x - 33, y + i * side + 4, 28))
        parts.append(tile(i, 1, x + i * side + 4, y - 33, 28))
    parts += [
        text(middle, top - 8, "within view 1", "soft"),
        text(middle, bottom + NUM_SAMPLES * small + 20, "within view 2", "soft"),
    ]
    formula = "M = −½ log(1 − ρ² + ε)"
    parts.append(text(middle, y + NUM_SAMPLES * side + 22, formula))
    left = 456
    parts += [
        curve(left, MIDDLE[0], within - 8, top + 2 * small),
        curve(left, MIDDLE[0], x - 38, y + 2 * side - 9),
        curve(left, MIDDLE[1], x - 38, y + 2 * side + 9),
        curve(left, MIDDLE[1], within - 8, bottom + 2 * small),
    ]
    return parts


def matrix(
    rows: list[list[float]], columns: list[list[float]], x: float, y: float, side: float
) -> list[str]:
    """Draw M of every row with every column; a matrix within a view has no diagonal."""
    parts = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            left, top = x + j * side, y + i * side
            if rows is columns and i == j:
                parts.append(f'<path class="grid" d="M{left:g} {top + side:g}l{side} -{side}"/>')
                continue
            value = dependency(row, column)
            kind = "same" if i == j else "other"
            opacity = 1 if i == j else min(1, 0.08 + 1.5 * value)
            parts.append(
                f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{side}" height="{side}" '
                f'fill-opacity="{opacity:.2f}"/>'
            )
            if rows is not columns:
                words = f"{abs(value):.1f}"
                ink = "number on" if i == j else "number"
                parts.append(text(left + side / 2, top + side / 2 + 5, words, ink))
    length = NUM_SAMPLES * side
    lines = "".join(
        f"M{x + k * side:g} {y:g}v{length}M{x:g} {y + k * side:g}h{length}"
        for k in range(NUM_SAMPLES + 1)
    )
    return [*parts, f'<path class="grid" d="{lines}"/>']


# ------ loss


def losses() -> list[str]:
    """Draw both terms of the loss, and a brace from the matrices to them."""
    left, width, brace = 722, 200, 690
    top, bottom = 80, HEIGHT - 42
    return [
        heading(left + width / 2, "loss"),
        f'<path class="line" d="M{brace} {top}q8 0 8 8V{CENTRE - 8:g}q0 8 8 8q-8 0 -8 8'
        f'V{bottom - 8}q0 8 -8 8"/>',
        *term(
            left,
            CENTRE - 136,
            width,
            "same",
            "alignment",
            "two views of one image",
            "Σ logcosh(M − 1)",
        ),
        text(left + width / 2, CENTRE + 5, "+ λ ×", "head"),
        *term(
            left,
            CENTRE + 28,
            width,
            "other",
            "redundancy",
            "two different images",
            "Σ logcosh(M + 0.06)",
        ),
    ]


def term(
    x: float, y: float, width: float, kind: str, name: str, pair: str, formula: str
) -> list[str]:
    """Draw one term of the loss beside a small matrix that marks its entries."""
    cell = 9
    marks = [
        f'<rect class="{kind}" x="{x + width - 14 - (3 - j) * cell:g}" y="{y + 14 + i * cell:g}" '
        f'width="{cell - 1}" height="{cell - 1}" '
        f'fill-opacity="{1 if (i == j) == (kind == "same") else 0.15}"/>'
        for i in range(3)
        for j in range(3)
    ]
    entries = "diagonal:" if kind == "same" else "off-diagonal:"
    left = x + 14
    return [
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{width}" height="108" rx="6"/>',
        *marks,
        text(left, y + 24, name, f"head {kind}", "start"),
        text(left, y + 46, entries, "", "start"),
        text(left, y + 64, pair, "", "start"),
        text(left, y + 92, formula, "", "start"),
    ]


# ------ marks


def heading(x: float, words: str) -> str:
    """Write the name of a stage."""
    return text(x, HEADINGS, words, "head")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Write words; `kind` is their class in STYLE."""
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def frame(x: float, y: float, width: float, height: float) -> str:
    """Draw the outline of a rectangle."""
    return f'<rect class="grid" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Draw an arrow from one point to another that leaves and arrives horizontally."""
    middle = (x + to_x) / 2
    bend = f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x - 6:g} {to_y:g}"
    return (
        f'<path class="line" d="M{x:g} {y:g}{bend}"/>'
        f'<path class="tip" d="M{to_x:g} {to_y:g}l-8 -5v10z"/>'
    )


if __name__ == "__main__":
    main()
