"""Draw the cost of a pair with correlation ρ, and its slope, under SMI and Barlow Twins.

Real pairs of views can be shown below. N pairs.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from smi.data import Batch
from smi.errors import UserError
from smi.evaluation.features import evaluation_mode
from smi.figures.image_panel import add_picture
from smi.figures.style import AXIS, DASHES, FONT, TOP_LEGEND, finish, frame, looks_by_method
from smi.losses.smi import correlation, dependency, logcosh, smi_loss
from smi.methods import Method
from smi.pages.palette import INK, WHITE
from smi.runs.names import display_row_name
from smi.views import Views
from smi.views.normalisation import unnormalise

# The quantiles of the pairs that are shown, by level: one of the first row, one of the second.
QUANTILES = {"low": (0.01, 0.04), "middle": (0.49, 0.52), "high": (0.96, 0.99)}
MAX_COST = 4.2  # the end of the left axis
MAX_SLOPE = 5.0  # the end of the right axis: only eps bounds the slopes of SMI
CURVES_HEIGHT = 380  # pixels of a panel
PAIR_HEIGHT = 132
PAIR_GAP = 34  # pixels between rows of pairs
MIN_PAIRS = 16
SMI = "SMI"
BARLOW_TWINS = "BarlowTwins"
CURVE_DASHES = (DASHES[0], DASHES[1], DASHES[3], DASHES[2])

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]


def _default(name: str) -> float:
    """Return the default of one of smi_loss's arguments."""
    return float(inspect.signature(smi_loss).parameters[name].default)


@dataclass(frozen=True)
class Shape:
    """Hold the settings of SMI that shape the cost of a pair."""

    target: float = _default("target")
    shift: float = _default("shift")
    eps: float = _default("eps")

    @classmethod
    def of_method(cls, method: Mapping[str, Any]) -> "Shape":
        """Read the settings of SMI from a configuration; other methods get SMI's defaults."""
        names = [field.name for field in fields(cls)]
        return cls(
            **{name: method[name] for name in names if method["name"] == SMI and name in method}
        )

    def alignment(self, rho: Tensor) -> Tensor:
        """Return the cost of two views of one sample."""
        return logcosh(dependency(rho, self.eps) - self.target)

    def redundancy(self, rho: Tensor) -> Tensor:
        """Return the cost of views of two samples, before its weight."""
        return logcosh(dependency(rho, self.eps) + self.shift)


@dataclass(frozen=True)
class Pairs:
    """Hold two views of each image as pixels, and the correlation of their embeddings."""

    first: Pixels  # [N, S, S, 3]
    second: Pixels
    rho: Floats  # [N]
    m: Floats  # [N], the dependency in nats


@dataclass(frozen=True)
class Curve:
    """Hold the cost and the slope |dL/dρ| of one term at each correlation."""

    method: str
    term: str
    rho: Floats
    value: Floats
    slope: Floats

    @property
    def name(self) -> str:
        """Return the display name of the method, and the term."""
        return f"{display_row_name(self.method)}, {self.term}"


def curves(shape: Shape, points: int = 999) -> Iterator[Curve]:
    """Yield both terms of both methods for one pair, before the redundancy's weight."""
    terms: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
        (SMI, "alignment", shape.alignment),
        (SMI, "redundancy", shape.redundancy),
        (BARLOW_TWINS, "alignment", lambda rho: (1 - rho).square()),
        (BARLOW_TWINS, "redundancy", torch.square),
    ]
    for method, term, cost in terms:
        rho = torch.linspace(-1, 1, points + 2, dtype=torch.float64)[1:-1].clone().requires_grad_()
        value = cost(rho)
        (slope,) = torch.autograd.grad(value.sum(), rho)
        yield Curve(method, term, rho.detach().numpy(), value.detach().numpy(), slope.abs().numpy())


# ------------------------------------------------------------------------------------ figure


def landscape(
    shape: Shape | None = None,
    pairs: Pairs | None = None,
    *,
    of: str = "",
    marks: Sequence[tuple[str, float]] = (),
) -> go.Figure:
    """Draw both terms and their slopes, and pairs beneath if there are any.

    of: describes the pairs. marks: names and ρ of pairs that are shown elsewhere.
    """
    shape = shape or Shape()
    shown = choose_pairs(pairs) if pairs is not None else []
    figure = make_subplots(
        rows=1 + len(shown),
        cols=6,
        specs=[
            [{"colspan": 3}, None, None, {"colspan": 3}, None, None],
            *[[{"colspan": 2}, None] * 3] * len(shown),
        ],
        horizontal_spacing=0.07,
    )
    _add_curves(figure, shape)
    if pairs is not None:
        marks = _add_pairs(figure, pairs, shown)
    if marks:
        _add_marks(figure, marks, shape)
    frame(figure, x="correlation ρ of a pair", y="objective L(ρ)", row=1, col=1)
    frame(figure, x="correlation ρ of a pair", y="sensitivity |dL/dρ|", row=1, col=4)
    figure.update_yaxes(range=[0, MAX_COST], row=1, col=1)
    figure.update_yaxes(range=[0, MAX_SLOPE], row=1, col=4)
    figure.update_xaxes(range=[-1, 1], row=1)
    height = _stack(figure, len(shown))
    figure.update_annotations(font_size=FONT)
    figure.update_layout(legend=TOP_LEGEND | {"font": {"size": FONT}})
    return finish(
        figure,
        _caption(shape, of, with_pairs=pairs is not None, with_marks=bool(marks)),
        width=1000,
        height=height + 64 + AXIS + 18,
        top=64,
    )


def _caption(shape: Shape, of: str, *, with_pairs: bool, with_marks: bool) -> str:
    bt = display_row_name(BARLOW_TWINS)
    caption = (
        f"Cost of one pair, and its slope. SMI: logcosh(M(ρ) − {shape.target:g}) for two views of "
        f"one sample (alignment) and logcosh(M(ρ) + {shape.shift:g}) for different samples "
        f"(redundancy, before its weight λ), ε = {shape.eps:g}. {bt}: (1 − ρ)² and ρ² for entries "
        "of its matrix of coordinates. Towards |ρ| = 1, only ε bounds the slopes of SMI."
    )
    if with_pairs:
        caption += (
            f" Below: positive pairs of {of}, two views of one image, with low, middle and high "
            "dependency M = −½ log(1 − ρ² + ε) of their embeddings. Triangles mark them on the "
            "alignment of SMI."
        )
    elif with_marks:
        caption += f" Triangles mark positive pairs of {of} on the alignment of SMI."
    return caption


def _add_curves(figure: go.Figure, shape: Shape) -> None:
    """Add cost and slope of each term to the upper panels."""
    look = looks_by_method({method: method for method in (SMI, BARLOW_TWINS)})
    for curve, dash in zip(curves(shape), CURVE_DASHES, strict=True):
        line = {"color": look[curve.method].colour, "dash": dash, "width": 2.4, "simplify": False}
        for column, y, letter in ((1, curve.value, "L"), (4, curve.slope, "|dL/dρ|")):
            figure.add_scatter(
                x=curve.rho,
                y=y,
                name=curve.name,
                legendgroup=curve.name,
                showlegend=column == 1,
                mode="lines",
                line=line,
                hovertemplate=f"ρ = %{{x:.3f}}: {letter} = %{{y:.4g}}",
                row=1,
                col=column,
            )


def _add_pairs(
    figure: go.Figure, pairs: Pairs, rows: Sequence[dict[str, int]]
) -> list[tuple[str, float]]:
    """Show pairs beneath the curves; return the title and ρ of each."""
    marks = []
    for row, levels in enumerate(rows, 2):
        for column, (level, i) in enumerate(levels.items()):
            place = {"row": row, "col": 1 + 2 * column}
            title = pair_title(pairs, level, i)
            add_picture(figure, side_by_side(pairs.first[i], pairs.second[i]), **place)
            _add_panel_title(figure, title, **place)
            marks.append((title, float(pairs.rho[i])))
    return marks


def _add_panel_title(figure: go.Figure, text: str, row: int, col: int) -> None:
    """Write a title above a panel."""
    x, y = (
        next(select(row=row, col=col)).plotly_name.replace("axis", "")
        for select in (figure.select_xaxes, figure.select_yaxes)
    )
    figure.add_annotation(
        text=text,
        xref=f"{x} domain",
        yref=f"{y} domain",
        x=0.5,
        y=1,
        xanchor="center",
        yanchor="bottom",
        yshift=3,
        showarrow=False,
    )


def _add_marks(figure: go.Figure, marks: Sequence[tuple[str, float]], shape: Shape) -> None:
    """Mark pairs by triangles on the alignment of SMI."""
    rho = torch.tensor([rho for _, rho in marks], dtype=torch.float64)
    figure.add_scatter(
        x=rho.numpy(),
        y=shape.alignment(rho).numpy(),
        name="pairs of views",
        mode="markers",
        marker={
            "symbol": "triangle-down",
            "size": 11,
            "color": WHITE,
            "line": {"color": INK, "width": 1.6},
        },
        text=[name for name, _ in marks],
        hovertemplate="%{text}<extra></extra>",
        row=1,
        col=1,
    )


def _stack(figure: go.Figure, num_pair_rows: int) -> int:
    """Stack the rows of panels, each with its own height; return the total height."""
    heights = [CURVES_HEIGHT, *[PAIR_HEIGHT] * num_pair_rows]
    gaps = [0, AXIS + 30, *[PAIR_GAP] * (num_pair_rows - 1)][: num_pair_rows + 1]
    total = sum(heights) + sum(gaps)
    top = total
    for row, (height, gap) in enumerate(zip(heights, gaps, strict=True), 1):
        top -= gap
        figure.update_yaxes(domain=[(top - height) / total, top / total], row=row)
        top -= height
    return total


# ------------------------------------------------------------------------------------- pairs


def choose_pairs(pairs: Pairs) -> list[dict[str, int]]:
    """Choose two rows of pairs to show: for each level, the pair at its quantile of M."""
    if len(pairs.m) < MIN_PAIRS:
        raise UserError(
            f"{len(pairs.m)} pairs are too few to choose low, middle and high ones from: give "
            f"{MIN_PAIRS} images or more"
        )
    order = np.argsort(pairs.m, kind="stable")
    last = len(order) - 1
    return [
        {level: int(order[round(shares[row] * last)]) for level, shares in QUANTILES.items()}
        for row in range(2)
    ]


def pair_title(pairs: Pairs, level: str, i: int) -> str:
    """Return the level, the dependency and the correlation of pair i."""
    return f"{level}: M = {pairs.m[i]:.2f} (ρ = {pairs.rho[i]:.2f})".replace("-", "−")


def side_by_side(first: Pixels, second: Pixels) -> Pixels:
    """Join two images of the same size with a white gap between them."""
    gap = np.full((first.shape[0], max(1, first.shape[1] // 16), 3), 255, dtype=np.uint8)
    return np.concatenate([first, gap, second], axis=1)


@torch.inference_mode()
def positive_pairs(
    method: Method,
    views: Views,
    images: Tensor,
    *,
    seed: int = 0,
    batch_size: int = 128,
    eps: float = Shape.eps,
) -> Pairs:
    """Draw two views of each image as training does, and embed them.

    images: uint8 [N, 3, H, W]. The embeddings use the running batch norm statistics.
    """
    plan = views.policy.views
    if len(plan) < 2 or any(view.grid > 1 for view in plan[:2]) or plan[0].size != plan[1].size:
        raise UserError(
            f"{type(method).__name__} has no pairs of views of the same size to show: give a run "
            "of another method"
        )
    device = next(method.parameters()).device
    pixels: tuple[list[Tensor], list[Tensor]] = ([], [])
    correlations: list[Tensor] = []
    with evaluation_mode(method):
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size]
            batch = Batch(part, torch.arange(start, start + len(part)), seed + start)
            x = views(part, batch.generator())
            out = method([view.to(device) for view in x], batch.to(device))
            z1, z2 = (z.float().cpu().double() for z in (out.z1, out.z2))
            correlations.append(correlation(z1, z2))
            for side, view in zip(pixels, x, strict=False):
                side.append(unnormalise(view, views.policy.mean, views.policy.std))
    rho = torch.cat(correlations)
    if not rho.isfinite().all():
        raise UserError(
            f"the embeddings of {type(method).__name__} are not finite, so there are no pairs to "
            "show: training diverged"
        )
    first, second = (torch.cat(side).permute(0, 2, 3, 1).contiguous().numpy() for side in pixels)
    return Pairs(first, second, rho.numpy(), dependency(rho, eps).numpy())
