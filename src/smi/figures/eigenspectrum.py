"""Draw the cumulative explained variance of features against the number of eigenvectors."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.sample import IMAGES_PER_COORDINATE
from smi.figures.series import thin_line
from smi.figures.style import SMALL, Look, finish, frame, legend, looks, plain
from smi.pages.palette import INK
from smi.runs.names import first_runs, named_seed_groups, seed_caption
from smi.runs.run import Run

MARKED_SHARE = 0.9  # of the variance; the legend counts the eigenvectors that reach it
MARKER_SIZE = 8
NUM_MARKERS = 9
NO_SPECTRUM = (
    "the features of all images are the same (or not finite), so they have no eigenspectrum: "
    "`smi doctor` says more"
)

Shares = NDArray[np.float64]


def draw_shares(
    runs: Mapping[str, Run], shares: Mapping[str, Shares], count: int, *, of: str
) -> go.Figure:
    """Draw the figure from the `cumulative_variance` of each run over `count` images.

    shares: also of encoders without a run, by their names.
    """
    figure = go.Figure()
    groups = named_seed_groups(runs)
    by_folder = {run.folder: shares[name] for name, run in runs.items()}
    encoders = {name: values for name, values in shares.items() if name not in runs}
    for name, look in looks(first_runs(groups), encoders).items():
        family = groups.get(name, ())
        seeds = {int(run.config["seed"]): by_folder[run.folder] for run in family}
        _add_shares(figure, name, seeds or {0: encoders[name]}, look)
    figure.add_hline(y=100 * MARKED_SHARE, line={"color": INK, "width": 1, "dash": "dot"})
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
    dims = sorted({len(values) for values in shares.values()})
    few = ""
    if count <= max(dims):
        few = f" {count} images span at most {count - 1} directions."
    elif count < IMAGES_PER_COORDINATE * max(dims):
        few = f" Fewer than {IMAGES_PER_COORDINATE} images for each coordinate exaggerate the rise."
    return finish(
        figure,
        "Share of the variance of features in the first eigenvectors of their covariance: "
        f"{count:,} {of}, {' or '.join(map(str, dims))} coordinates. A curve that rises early uses "
        f"few directions; the dotted line is at {100 * MARKED_SHARE:.0f} %."
        f"{few}{seed_caption(groups)}",
    )


def _add_shares(figure: go.Figure, name: str, seeds: Mapping[int, Shares], look: Look) -> None:
    """Add a thin line for each of several seeds, and their mean."""
    hover = "first %{x} have %{y:.1f} %<extra></extra>"
    for seed, shares in seeds.items() if len(seeds) > 1 else ():
        figure.add_scatter(
            x=np.arange(1, len(shares) + 1),
            y=100 * shares,
            name=plain(f"{name}, seed {seed}"),
            legendgroup=name,
            hovertemplate=f"{plain(name)}, seed {seed}: {hover}",
            **thin_line(look),
        )
    mean = np.mean(list(seeds.values()), axis=0)
    needed = int(np.argmax(mean >= MARKED_SHARE)) + 1
    markers = {"size": _marker_sizes(len(mean)), "opacity": 1, "line": {"width": 0}}
    figure.add_scatter(
        x=np.arange(1, len(mean) + 1),
        y=100 * mean,
        name=plain(f"{name}: {needed} for {100 * MARKED_SHARE:.0f} %"),
        legendgroup=name,
        mode="lines+markers",
        line=look.line(),
        marker=look.marker(max_shown=0) | markers,
        hovertemplate=f"{plain(name)}: {hover}",
    )


def _marker_sizes(count: int) -> NDArray[np.int64]:
    """Return sizes that show a few markers, evenly along a logarithmic axis."""
    sizes = np.zeros(count, dtype=np.int64)
    sizes[np.unique(np.geomspace(1, count, NUM_MARKERS).round().astype(int)) - 1] = MARKER_SIZE
    return sizes


def cumulative_variance(blocks: Iterable[NDArray[np.float32]]) -> tuple[Shares, int]:
    """Return the share of the variance in the first k eigenvectors, [F], and the number of rows.

    blocks: features [n, F], block by block; only their covariance is kept. The shares are running
    sums of its eigenvalues, the largest first, over their sum.
    """
    count, mean, products = 0, np.zeros(1), np.zeros((1, 1))
    for block in blocks:
        h = np.asarray(block, dtype=np.float64)
        if not np.isfinite(h).all():
            raise UserError(NO_SPECTRUM)
        if not len(h):
            continue
        # Moments of two parts are merged around their own means, as in Chan et al. (1979).
        change = h.mean(axis=0) - mean
        total = count + len(h)
        centred = h - h.mean(axis=0)
        products = products + centred.T @ centred
        products += np.outer(change, change) * (count * len(h) / total)
        mean, count = mean + change * (len(h) / total), total
    if count < 2:
        raise UserError("an eigenspectrum needs two images or more")
    eigenvalues = np.linalg.eigvalsh(products / (count - 1))[::-1].clip(min=0)
    if not eigenvalues.sum() > 0:
        raise UserError(NO_SPECTRUM)
    shares: Shares = np.cumsum(eigenvalues) / eigenvalues.sum()
    return shares, count
