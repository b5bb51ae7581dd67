"""Draw the distribution of the variances of coordinates of features, as a violin for each run."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.style import SMALL, finish, frame, looks, plain
from smi.pages.palette import INK, VIOLIN_FILL, WHITE
from smi.runs.names import first_runs, named_seed_groups, seed_caption
from smi.runs.run import Run

Variances = NDArray[np.float64]


def draw_variances(
    runs: Mapping[str, Run], variances: Mapping[str, Variances], count: int, *, of: str
) -> go.Figure:
    """Draw the figure from the `relative_variance` of each run over `count` images.

    variances: also of encoders without a run, by their names.
    """
    figure = go.Figure()
    groups = named_seed_groups(runs)
    by_folder = {run.folder: variances[name] for name, run in runs.items()}
    encoders = {name: values for name, values in variances.items() if name not in runs}
    highest = 1.0
    for name, look in looks(first_runs(groups), encoders).items():
        seeds = [by_folder[run.folder] for run in groups.get(name, ())]
        values = np.concatenate(seeds or [encoders[name]])
        highest = max(highest, float(np.max(values)))
        _add_violin(figure, name, values, look.colour)
    frame(figure, x="", y="variance of a coordinate × F")
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(showgrid=False, ticks="")
    figure.update_yaxes(range=[0, 1.05 * highest])
    figure.update_layout(violingap=0.2)
    figure.update_xaxes(tickfont={"size": SMALL + 2})
    dims = sorted({len(values) for values in variances.values()})
    return finish(
        figure,
        f"Variance of each of F = {' or '.join(map(str, dims))} coordinates of features of length "
        f"1, times F, over {count:,} {of}. Box: quartiles and median; dashed: mean, which is at "
        "most 1 (dotted). Coordinates near 0 hold no information."
        f"{seed_caption(groups, 'Coordinates of all seeds are together')}",
        width=max(560, 180 + 170 * (len(groups) + len(encoders))),
    )


def _add_violin(figure: go.Figure, name: str, values: Variances, colour: str) -> None:
    """Add one violin with a box in it."""
    figure.add_violin(
        y=values,
        x=[plain(name).replace(", ", "<br>")] * len(values),
        name=plain(name),
        line={"color": colour, "width": 1.8},
        fillcolor=VIOLIN_FILL,
        box={
            "visible": True,
            "width": 0.12,
            "fillcolor": WHITE,
            "line": {"color": INK, "width": 1.2},
        },
        meanline={"visible": True, "color": INK, "width": 1.2},
        points=False,
        spanmode="hard",
        width=0.8,
        showlegend=False,
        hoveron="violins+kde",
    )


def relative_variance(blocks: Iterable[NDArray[np.float32]]) -> tuple[Variances, int]:
    """Return the variance of each coordinate times F, [F], and the number of rows.

    blocks: features [n, F], block by block. Their rows are scaled to length 1. The mean of the
    result is 1 - |mean row|^2, up to a factor n / (n - 1).
    """
    count, mean, squares = 0, np.zeros(1), np.zeros(1)
    for block in blocks:
        h = np.asarray(block, dtype=np.float64)
        if not len(h):
            continue
        if not np.isfinite(h).all():
            raise UserError(
                "the features of some images are not finite, so they have no variance: "
                "`smi doctor` says more"
            )
        rows = h / np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1e-30)
        # Moments of two parts are merged around their own means, as in Chan et al. (1979).
        change = rows.mean(axis=0) - mean
        total = count + len(rows)
        squares = squares + len(rows) * rows.var(axis=0)
        squares += change**2 * (count * len(rows) / total)
        mean, count = mean + change * (len(rows) / total), total
    if count < 2:
        raise UserError("a variance needs two images or more")
    variances: Variances = squares / (count - 1) * len(squares)
    return variances, count
