"""How many directions features use: the share of their variance in the first k eigenvectors of their covariance, against k."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]
from torch import Tensor

from smi.analysis.style import INK, SMALL, finish, frame, legend, looks
from smi.errors import UserError
from smi.run import Run

MOST = 0.9  # the share that is marked


def eigenspectrum(runs: Mapping[str, Run], features: Mapping[str, Tensor], *, of: str) -> go.Figure:
    """features: h [n, F] of each run, of the same images. of: which images, in words."""
    count = len(next(iter(features.values())))
    return of_shares(runs, {name: cumulative_variance(h.numpy()) for name, h in features.items()}, count, of=of)


def of_shares(runs: Mapping[str, Run], found: Mapping[str, NDArray[np.float64]], count: int, *, of: str) -> go.Figure:
    """found: what `cumulative_variance` gave for each run, of so many images."""
    figure = go.Figure()
    for name, look in looks(runs).items():
        shares = found[name]
        figure.add_scatter(
            x=np.arange(1, len(shares) + 1),
            y=100 * shares,
            name=f"{name}: {int(np.argmax(shares >= MOST)) + 1} for {MOST:.0%}".replace("%", " %"),
            mode="lines+markers",
            line=look.line(),
            marker=look.marker(most=0) | {"size": _sizes(len(shares)), "opacity": 1, "line": {"width": 0}},
            hovertemplate=f"{name}: first %{{x}} have %{{y:.1f}} %<extra></extra>",
        )
    figure.add_hline(y=100 * MOST, line={"color": INK, "width": 1, "dash": "dot"})
    frame(figure, x="eigenvectors", y="cumulative explained variance, %", log_x=True)
    figure.update_yaxes(range=[0, 103])
    longest = max(len(trace.x) for trace in figure.data)
    figure.update_xaxes(tickfont={"size": SMALL + 1}, exponentformat="none", range=[-0.02, float(np.log10(longest)) + 0.05])
    legend(figure, log_x=True)
    figure.update_layout(legend_itemsizing="constant")
    dims = sorted({len(shares) for shares in found.values()})
    few = f" So few images span {count - 1} directions at most." if count <= max(dims) else ""
    return finish(
        figure,
        f"Share of the variance of features in the first eigenvectors of their covariance: {count:,} {of}, "
        f"{' or '.join(map(str, dims))} coordinates. A curve that rises early uses few directions; the dotted line is at 90 %.{few}",
    )


def _sizes(count: int) -> NDArray[np.int64]:
    """Of markers: a few, evenly along a logarithmic axis."""
    sizes = np.zeros(count, dtype=np.int64)
    sizes[np.unique(np.geomspace(1, count, 9).round().astype(int)) - 1] = 8
    return sizes


def cumulative_variance(h: NDArray[np.float32]) -> NDArray[np.float64]:
    """[F], rising to 1: running sums of the covariance's eigenvalues, largest first, over their sum."""
    if len(h) < 2:
        raise UserError("an eigenspectrum takes two images or more")
    centred = np.asarray(h, dtype=np.float64) - np.mean(h, axis=0, dtype=np.float64)
    eigenvalues = np.linalg.eigvalsh(centred.T @ centred / (len(h) - 1))[::-1].clip(min=0)
    if not eigenvalues.sum() > 0:
        raise UserError("features of all images are the same (or not finite), so they have no eigenspectrum: `smi doctor` says more")
    found: NDArray[np.float64] = np.cumsum(eigenvalues) / eigenvalues.sum()
    return found
