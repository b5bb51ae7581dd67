"""How evenly coordinates of features vary: the distribution of their variances, a violin for each run."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go
from torch import Tensor

from smi.errors import UserError
from smi.figures.style import INK, SMALL, finish, frame, looks, plain
from smi.runs.names import about_seeds, by_seed, firsts
from smi.runs.run import Run


def variance_violin(
    runs: Mapping[str, Run], features: Mapping[str, Tensor], *, of: str
) -> go.Figure:
    """features: h [n, F] of each run, of the same images. of: which images, in words."""
    count = len(next(iter(features.values())))
    return of_variances(
        runs, {name: relative_variance(h.numpy()) for name, h in features.items()}, count, of=of
    )


def of_variances(
    runs: Mapping[str, Run], found: Mapping[str, NDArray[np.float64]], count: int, *, of: str
) -> go.Figure:
    """found: what `relative_variance` gave for each run, of so many images."""
    figure, groups = go.Figure(), by_seed(runs)
    by_folder = {run.folder: found[name] for name, run in runs.items()}
    most = 0.0
    for name, look in looks(firsts(groups)).items():
        variances = np.concatenate([by_folder[run.folder] for run in groups[name]])
        most = max(most, float(np.max(variances)))
        figure.add_violin(
            y=variances,
            x=[plain(name).replace(", ", "<br>")] * len(variances),
            name=plain(name),
            line={"color": look.colour, "width": 1.8},
            fillcolor="rgba(0,0,0,0.06)",
            box={
                "visible": True,
                "width": 0.12,
                "fillcolor": "white",
                "line": {"color": INK, "width": 1.2},
            },
            meanline={"visible": True, "color": INK, "width": 1.2},
            points=False,
            spanmode="hard",
            width=0.8,
            showlegend=False,
            hoveron="violins+kde",
        )
    frame(figure, x="", y="variance of a coordinate × F")
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(showgrid=False, ticks="")
    figure.update_yaxes(range=[0, 1.05 * max(most, 1)])
    dims = sorted({len(variances) for variances in found.values()})
    figure.update_layout(violingap=0.2)
    figure.update_xaxes(tickfont={"size": SMALL + 2})
    return finish(
        figure,
        f"Variance of each of F = {' or '.join(map(str, dims))} coordinates of features of length 1, times F, over {count:,} {of}. "
        "Box: quartiles and median; dashed: mean, which is 1 (dotted) at most. Coordinates near 0 say nothing."
        f"{about_seeds(groups, 'Coordinates of all seeds are together')}",
        width=max(560, 180 + 170 * len(groups)),
    )


def relative_variance(h: NDArray[np.float32]) -> NDArray[np.float64]:
    """[F]: of rows made of length 1, the variance of each coordinate times F. Its mean is 1 - |mean row|^2, up to n / (n - 1)."""
    if len(h) < 2:
        raise UserError("a variance takes two images or more")
    rows = np.asarray(h, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise UserError(
            "features of some images are not finite, so they have no variance: `smi doctor` says more"
        )
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    found: NDArray[np.float64] = rows.var(axis=0, ddof=1) * rows.shape[1]
    return found
