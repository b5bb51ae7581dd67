"""Draw a method as an SVG: what each of two views passes on its way to the loss."""

from html import escape

from smi.methods import Method

WIDTH, HEIGHT, GAP = 108, 40, 26  # of a box, and between boxes
TOP, ROW = 12, 84  # of the first row, and from row to row
STEPS = {"encoder": "encoder", "projector": "projector", "predictor": "predictor"}
LAST = {"prototypes": "prototypes", "last": "output layer"}  # after the projector


def draw_method(method: Method) -> str:
    """Return the drawing; its lines and words have the colour of the text around it."""
    parts = {name for name, _ in method.named_children()}
    student = [label for name, label in STEPS.items() if name in parts]
    heads = [label for name, label in LAST.items() if name in parts]
    student += heads
    other = [*student]
    if method.momentum_encoder:
        other = [f"{step} (teacher)" for step in student if step != "predictor"]
    elif "predictor" in parts:
        other = [step for step in student if step != "predictor"]
    columns = max(len(student), len(other))
    loss_x = (columns + 1) * (WIDTH + GAP)
    second = "view 2"
    if "jigsaw_projector" in parts:
        second, other = "nine patches", ["encoder", "projector (jigsaw)"]
    items = [*row("view 1", student, columns, 0), *row(second, other, columns, 1)]
    if "predictor" in parts or method.momentum_encoder:
        items.append(label(loss_x - GAP - 2, TOP + ROW + HEIGHT + 18, "no gradient", "end"))
    middle = TOP + ROW // 2
    items.append(box(loss_x, middle, "loss", bold=True))
    start = columns * (WIDTH + GAP) + WIDTH + 2
    for y, side in ((TOP, -8), (TOP + ROW, 8)):
        items.append(arrow(start, y + HEIGHT / 2, loss_x - 3, middle + HEIGHT / 2 + side))
    height = TOP + ROW + HEIGHT + 28
    if method.stored:
        below = TOP + 2 * ROW
        items.append(box(loss_x, below, method.stored))
        x = loss_x + WIDTH / 2
        items.append(arrow(x, below - 3, x, middle + HEIGHT + 4))
        height = below + HEIGHT + 12
    if not method.momentum_encoder and method.shared_network:
        x = WIDTH + GAP + WIDTH / 2
        items.append(label(x, TOP + HEIGHT + (ROW - HEIGHT) / 2 + 5, "same weights", "middle"))
    if method.momentum_encoder:
        x = WIDTH + GAP + WIDTH / 2
        items.append(arrow(x, TOP + HEIGHT + 3, x, TOP + ROW - 4, dashed=True))
        items.append(label(x + 8, TOP + HEIGHT + (ROW - HEIGHT) / 2 + 5, "slow average", "start"))
    width = loss_x + WIDTH + 4
    title = escape(f"{method.display_name}: {', '.join(student)}, loss")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title}" font-size="14" font-family="sans-serif" fill="currentColor">'
        + "".join(items)
        + "</svg>"
    )


def row(first: str, steps: list[str], columns: int, number: int) -> list[str]:
    """Return a view and the networks that it passes; the last arrow is drawn by the caller."""
    y = TOP + number * ROW
    items = [box(2, y, first, bold=True)]
    x = 2
    for i, step in enumerate(steps):
        left = (i + 1) * (WIDTH + GAP)
        items.append(arrow(x + WIDTH + 2, y + HEIGHT / 2, left - 3, y + HEIGHT / 2))
        items.append(box(left, y, step))
        x = left
    end = columns * (WIDTH + GAP)
    if x < end:  # this row has fewer networks
        middle = y + HEIGHT / 2
        items.append(line(x + WIDTH + 2, middle, end + WIDTH + 2, middle))
    return items


def box(x: float, y: float, text: str, *, bold: bool = False) -> str:
    words = text.split(" (")
    lines = [words[0], *(f"({word}" for word in words[1:])]
    weight = ' font-weight="600"' if bold else ""
    texts = "".join(
        f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 5 + (i - (len(lines) - 1) / 2) * 15:g}" '
        f'text-anchor="middle"{weight}>{escape(part)}</text>'
        for i, part in enumerate(lines)
    )
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="none" '
        f'stroke="currentColor" stroke-width="{2 if bold else 1.2}"/>{texts}'
    )


def label(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="13" '
        f'opacity="0.8">{escape(text)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="currentColor" '
        f'stroke-width="1.2"{dashes}/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    """Return a line with a head."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    left = f"{x2 - 8 * dx - 4 * dy:g},{y2 - 8 * dy + 4 * dx:g}"
    right = f"{x2 - 8 * dx + 4 * dy:g},{y2 - 8 * dy - 4 * dx:g}"
    head = f'<polygon points="{x2:g},{y2:g} {left} {right}"/>'
    return line(x1, y1, x2, y2, dashed=dashed) + head
