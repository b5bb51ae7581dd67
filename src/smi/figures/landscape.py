"""What a pair of correlation ρ costs and how hard it is pulled, under SMI and Barlow Twins; beneath, real pairs of views. N pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from smi.figures.pictures import add_picture
from smi.figures.style import AXIS, DASHES, FONT, INK, finish, frame
from smi.losses.smi import correlation, dependency, logcosh
from smi.methods import Method
from smi.views import Views

SHARES = {
    "low": (0.01, 0.04),
    "middle": (0.49, 0.52),
    "high": (0.96, 0.99),
}  # quantiles of the pairs that are shown
STEEPEST = 5.0  # where the axis of slopes ends: SMI's have no bound but eps
CURVES, PAIR = 380, 132  # pixels: heights of panels
LEAST = 16  # pairs to choose from


@dataclass(frozen=True)
class Shape:
    """SMI's settings."""

    target: float = 1.0
    shift: float = 0.06
    eps: float = 1e-6


@dataclass(frozen=True)
class Pairs:
    """Views of the same images as pixels, and the correlation of their embeddings."""

    first: NDArray[np.uint8]  # [N, S, S, 3]
    second: NDArray[np.uint8]
    rho: NDArray[np.float64]  # [N]
    m: NDArray[np.float64]  # [N], nats


def curves(
    shape: Shape, points: int = 999
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """ρ, the value and |dL/dρ| of one pair, before the redundancy's weight."""
    found = {}
    terms: dict[str, Callable[[Tensor], Tensor]] = {
        "SMI, alignment": lambda rho: logcosh(dependency(rho, shape.eps) - shape.target),
        "SMI, redundancy": lambda rho: logcosh(dependency(rho, shape.eps) + shape.shift),
        "Barlow Twins, alignment": lambda rho: (1 - rho).square(),
        "Barlow Twins, redundancy": torch.square,
    }
    for name, term in terms.items():
        rho = torch.linspace(-1, 1, points + 2, dtype=torch.float64)[1:-1].clone().requires_grad_()
        value = term(rho)
        (slope,) = torch.autograd.grad(value.sum(), rho)
        found[name] = (rho.detach().numpy(), value.detach().numpy(), slope.abs().numpy())
    return found


def landscape(
    shape: Shape | None = None,
    pairs: Pairs | None = None,
    *,
    of: str = "",
    marks: Sequence[tuple[str, float]] = (),
) -> go.Figure:
    """of: whose pairs they are, in words. marks: names and ρ of pairs that are shown elsewhere."""
    shape = shape or Shape()
    shown = chosen(pairs) if pairs is not None else []
    rows = 1 + len(shown)
    figure = make_subplots(
        rows=rows,
        cols=6,
        specs=[
            [{"colspan": 3}, None, None, {"colspan": 3}, None, None],
            *[[{"colspan": 2}, None] * 3] * len(shown),
        ],
        horizontal_spacing=0.07,
    )
    for number, (name, (rho, value, slope)) in enumerate(curves(shape).items()):
        line = {
            "color": ("#0072b2", "#d55e00")[number // 2],
            "dash": DASHES[(0, 1, 3, 2)[number]],
            "width": 2.4,
            "simplify": False,
        }
        for column, (y, letter) in enumerate(((value, "L"), (slope, "|dL/dρ|"))):
            figure.add_scatter(
                x=rho,
                y=y,
                name=name,
                legendgroup=name,
                showlegend=column == 0,
                mode="lines",
                line=line,
                hovertemplate=f"ρ = %{{x:.3f}}: {letter} = %{{y:.4g}}",
                row=1,
                col=1 + 3 * column,
            )
    if pairs is not None:
        marks = [
            (title(pairs, level, i), float(pairs.rho[i]))
            for row in shown
            for level, i in row.items()
        ]
        for row, some in enumerate(shown, 2):
            for column, (level, i) in enumerate(some.items()):
                place = {"row": row, "col": 1 + 2 * column}
                add_picture(figure, side_by_side(pairs.first[i], pairs.second[i]), **place)
                _caption(figure, title(pairs, level, i), **place)
    if marks:
        _mark(figure, marks, shape)
    frame(figure, x="correlation ρ of a pair", y="objective L(ρ)", row=1, col=1)
    frame(figure, x="correlation ρ of a pair", y="sensitivity |dL/dρ|", row=1, col=4)
    figure.update_yaxes(range=[0, 4.2], row=1, col=1)
    figure.update_yaxes(range=[0, STEEPEST], row=1, col=4)
    figure.update_xaxes(range=[-1, 1], row=1)
    height = _stack(figure, len(shown))
    figure.update_annotations(font_size=FONT)
    figure.update_layout(
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": FONT},
        }
    )
    beneath = (
        f" Beneath, positive pairs of {of}: two views of one image, of low, middle and high dependency M = −½ log(1 − ρ² + ε) of their "
        "embeddings; triangles mark them on SMI's alignment."
        if pairs is not None
        else f" Triangles mark positive pairs of {of} on SMI's alignment."
        if marks
        else ""
    )
    return finish(
        figure,
        f"What one pair adds to the objective, and its slope. SMI: logcosh(M(ρ) − {shape.target:g}) for two views of a sample (alignment) "
        f"and logcosh(M(ρ) + {shape.shift:g}) for different samples (redundancy, before its weight λ), ε = {shape.eps:g}; Barlow Twins: "
        f"(1 − ρ)² and ρ² for entries of its matrix of coordinates. SMI's slopes grow without bound but ε towards |ρ| = 1.{beneath}",
        width=1000,
        height=height + 64 + AXIS + 18,
        top=64,
    )


def _stack(figure: go.Figure, rows: int) -> int:
    """Panels one beneath the other, as high as they need; their height together."""
    heights, gaps = [CURVES, *[PAIR] * rows], [0, AXIS + 30, *[34] * (rows - 1)][: rows + 1]
    total = sum(heights) + sum(gaps)
    top = total
    for row, (height, gap) in enumerate(zip(heights, gaps, strict=True), 1):
        top -= gap
        figure.update_yaxes(domain=[(top - height) / total, top / total], row=row)
        top -= height
    return total


def _caption(figure: go.Figure, text: str, row: int, col: int) -> None:
    """Above a panel."""
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


def chosen(pairs: Pairs) -> list[dict[str, int]]:
    """Rows of pairs to show: by level, the one at each of its quantiles of M."""
    if len(pairs.m) < LEAST:
        raise UserError(
            f"{len(pairs.m)} pairs are too few to choose low, middle and high ones from: give {LEAST} images or more"
        )
    order = np.argsort(pairs.m, kind="stable")
    return [
        {
            level: int(order[round(shares[row] * (len(order) - 1))])
            for level, shares in SHARES.items()
        }
        for row in range(2)
    ]


def title(pairs: Pairs, level: str, i: int) -> str:
    return f"{level}: M = {pairs.m[i]:.2f} (ρ = {pairs.rho[i]:.2f})".replace("-", "−")


def _mark(figure: go.Figure, marks: Sequence[tuple[str, float]], shape: Shape) -> None:
    rho = torch.tensor([rho for _, rho in marks], dtype=torch.float64)
    figure.add_scatter(
        x=rho.numpy(),
        y=logcosh(dependency(rho, shape.eps) - shape.target).numpy(),
        name="pairs of views",
        mode="markers",
        marker={
            "symbol": "triangle-down",
            "size": 11,
            "color": "white",
            "line": {"color": INK, "width": 1.6},
        },
        text=[name for name, _ in marks],
        hovertemplate="%{text}<extra></extra>",
        row=1,
        col=1,
    )


def side_by_side(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Of one size, with a white gap between them."""
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
    eps: float = 1e-6,
) -> Pairs:
    """images: uint8 [N, 3, H, W]. Views as training draws them; embeddings with the norms' running statistics."""
    plan = views.policy.views
    if len(plan) < 2 or any(view.grid > 1 for view in plan[:2]) or plan[0].size != plan[1].size:
        raise UserError(
            f"{type(method).__name__} has no pairs of views of one size to show: give a run of another method"
        )
    device = next(method.parameters()).device
    found: dict[str, list[Any]] = {"first": [], "second": [], "rho": []}
    with evaluation_mode(method):
        for start in range(0, len(images), batch_size):
            some = images[start : start + batch_size]
            batch = Batch(some, torch.arange(start, start + len(some)), seed + start)
            x = views(some, batch.generator())
            out = method([view.to(device) for view in x], batch.to(device))
            found["rho"].append(correlation(*(z.float().cpu().double() for z in (out.z1, out.z2))))
            for name, view in zip(("first", "second"), x, strict=False):
                found[name].append(_pixels(view, views))
    rho = torch.cat(found["rho"])
    if not rho.isfinite().all():
        raise UserError(
            f"embeddings of {type(method).__name__} are not finite: training diverged, so there are no pairs to show"
        )
    first, second = (torch.cat(found[name]).numpy() for name in ("first", "second"))
    return Pairs(first, second, rho.numpy(), dependency(rho, eps).numpy())


def _pixels(x: Tensor, views: Views) -> Tensor:
    """Normalised float [N, 3, S, S] back to uint8 [N, S, S, 3]."""
    mean, std = (
        torch.tensor(values)[:, None, None] for values in (views.policy.mean, views.policy.std)
    )
    return (
        ((x.cpu() * std + mean).clamp(0, 1) * 255)
        .round()
        .to(torch.uint8)
        .permute(0, 2, 3, 1)
        .contiguous()
    )
