"""How many directions features use: the share of their variance in the first k eigenvectors of their covariance, against k."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go
from torch import Tensor

from smi.errors import UserError
from smi.figures.style import INK, SMALL, finish, frame, legend, looks, plain
from smi.runs.names import about_seeds, by_seed, firsts
from smi.runs.run import Run

MOST = 0.9  # the share that is marked


def eigenspectrum(runs: Mapping[str, Run], features: Mapping[str, Tensor], *, of: str) -> go.Figure:
    """features: h [n, F] of each run, of the same images. of: which images, in words."""
    count = len(next(iter(features.values())))
    return of_shares(
        runs, {name: cumulative_variance(h.numpy()) for name, h in features.items()}, count, of=of
    )


def of_shares(
    runs: Mapping[str, Run], found: Mapping[str, NDArray[np.float64]], count: int, *, of: str
) -> go.Figure:
    """found: what `cumulative_variance` gave for each run, of so many images."""
    figure, groups = go.Figure(), by_seed(runs)
    by_folder = {run.folder: found[name] for name, run in runs.items()}
    for name, look in looks(firsts(groups)).items():
        every = {int(run.config["seed"]): by_folder[run.folder] for run in groups[name]}
        for seed, shares in every.items() if len(every) > 1 else ():
            figure.add_scatter(
                x=np.arange(1, len(shares) + 1),
                y=100 * shares,
                name=plain(f"{name}, seed {seed}"),
                legendgroup=name,
                showlegend=False,
                mode="lines",
                line={"color": look.colour, "width": 0.9},
                opacity=0.45,
                hovertemplate=f"{plain(name)}, seed {seed}: first %{{x}} have %{{y:.1f}} %<extra></extra>",
            )
        shares = np.mean(list(every.values()), axis=0)
        figure.add_scatter(
            x=np.arange(1, len(shares) + 1),
            y=100 * shares,
            name=plain(f"{name}: {int(np.argmax(shares >= MOST)) + 1} for {100 * MOST:.0f} %"),
            legendgroup=name,
            mode="lines+markers",
            line=look.line(),
            marker=look.marker(most=0)
            | {"size": _sizes(len(shares)), "opacity": 1, "line": {"width": 0}},
            hovertemplate=f"{plain(name)}: first %{{x}} have %{{y:.1f}} %<extra></extra>",
        )
    figure.add_hline(y=100 * MOST, line={"color": INK, "width": 1, "dash": "dot"})
    frame(figure, x="eigenvectors", y="cumulative explained variance, %", log_x=True)
    figure.update_yaxes(range=[0, 103])
    longest = max(len(trace.x) for trace in figure.data)
    figure.update_xaxes(
        tickfont={"size": SMALL + 1},
        exponentformat="none",
        range=[-0.02, float(np.log10(longest)) + 0.05],
    )
    legend(figure, log_x=True)
    figure.update_layout(legend_itemsizing="constant")
    dims = sorted({len(shares) for shares in found.values()})
    few = f" So few images span {count - 1} directions at most." if count <= max(dims) else ""
    return finish(
        figure,
        f"Share of the variance of features in the first eigenvectors of their covariance: {count:,} {of}, "
        f"{' or '.join(map(str, dims))} coordinates. A curve that rises early uses few directions; the dotted line is at 90 %."
        f"{few}{about_seeds(groups)}",
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
    eigenvalues = np.zeros(1)
    if np.isfinite(centred).all():
        eigenvalues = np.linalg.eigvalsh(centred.T @ centred / (len(h) - 1))[::-1].clip(min=0)
    if not eigenvalues.sum() > 0:
        raise UserError(
            "features of all images are the same (or not finite), so they have no eigenspectrum: `smi doctor` says more"
        )
    found: NDArray[np.float64] = np.cumsum(eigenvalues) / eigenvalues.sum()
    return found
