"""Draw features in three dimensions by t-SNE: a rotatable cloud of n images for each run.

Classes differ by colour and symbol.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from smi.errors import UserError
from smi.figures.sample import Features
from smi.figures.style import FONT, SMALL, finish, plain
from smi.pages.palette import BOX_EDGE, CLASSES
from smi.terminal import counted

SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "cross",
    "circle-open",
    "square-open",
    "diamond-open",
)  # without x, because few fonts have its glyph
COMPONENTS = 50  # principal components that features are reduced to first, as is usual
PERPLEXITY = 30.0
MAX_RADIUS = 1.25  # times the radius that 98 % of the points are within
MAX_LEGEND_CLASSES = 20
MAX_COLUMNS = 2
BARE_AXIS = {
    "showticklabels": False,
    "title": "",
    "showbackground": False,
    "gridcolor": BOX_EDGE,
    "zeroline": False,
    "showspikes": False,
}


def tsne(
    points: Mapping[str, NDArray[np.float32]], features: Mapping[str, Features], *, of: str
) -> go.Figure:
    """Draw the points [n, 3] of the features of each run; `of` describes the images."""
    names = list(points)
    columns = min(MAX_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=[[{"type": "scene"}] * columns] * rows,
        subplot_titles=[plain(name) for name in names],
        horizontal_spacing=0.01,
        vertical_spacing=0.05,
    )
    num_moved = 0
    for number, name in enumerate(names):
        shown, far = within_sphere(points[name])
        num_moved += far
        place = {"row": number // columns + 1, "col": number % columns + 1}
        labels = labels_of(features[name], of)
        _add_classes(figure, shown, features[name], labels, number == 0, place)
    figure.update_scenes(
        xaxis=BARE_AXIS,
        yaxis=BARE_AXIS,
        zaxis=BARE_AXIS,
        aspectmode="data",  # one unit is as long on all axes
        camera={"eye": {"x": 1.4, "y": 1.4, "z": 1.0}},
    )
    figure.update_annotations(font_size=FONT + 1)
    count = len(points[names[0]])
    finish(
        figure,
        f"3-D t-SNE (perplexity {perplexity(count):g}) of the frozen features of {count:,} {of}, "
        f"reduced to {COMPONENTS} principal components first. Axes have no unit; distances "
        f"between clusters mean little.{moved_sentence(num_moved)}",
        width=190 + 470 * columns,
        height=40 + 460 * rows,
        axes=False,
        top=34,
    )
    place_of_legend = {"x": 1.0, "y": 0.5, "yanchor": "middle"}
    figure.update_layout(
        legend={"itemsizing": "constant", "font": {"size": SMALL + 1}} | place_of_legend
    )
    return figure


def _add_classes(
    figure: go.Figure,
    points: NDArray[np.float64],
    features: Features,
    labels: NDArray[np.int64],
    in_legend: bool,
    place: Mapping[str, int],
) -> None:
    """Add one trace for each class to a panel."""
    present = sorted(set(labels.tolist()))
    for i, label in enumerate(present):
        members = labels == label
        title = plain(features.classes[label] if features.classes else str(label))
        figure.add_scatter3d(
            x=points[members, 0],
            y=points[members, 1],
            z=points[members, 2],
            text=[f"{plain(features.names[j])}<br>{title}" for j in np.flatnonzero(members)],
            hoverinfo="text",
            name=title,
            legendgroup=title,
            showlegend=in_legend and len(present) <= MAX_LEGEND_CLASSES,
            mode="markers",
            marker={
                "color": CLASSES[i % len(CLASSES)],
                "symbol": SYMBOLS[i % len(SYMBOLS)],
                "size": 3.6,
                "line": {"width": 0},
            },
            **place,
        )


def embed_in_3d(h: NDArray[np.float32], *, seed: int = 0) -> NDArray[np.float32]:
    """Reduce features [n, F] to points [n, 3]."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(h) < 5:
        raise UserError(f"t-SNE needs five images or more, not {len(h)}")
    if h.shape[1] < 3:
        raise UserError(f"t-SNE in three dimensions needs three features or more, not {h.shape[1]}")
    if not np.isfinite(h).all() or not h.std(axis=0).any():
        raise UserError(
            "the features of all images are the same (or not finite), so t-SNE has nothing to "
            "arrange: `smi doctor` says more"
        )
    reduced = PCA(min(COMPONENTS, *h.shape), random_state=seed).fit_transform(h)
    points: NDArray[np.float32] = TSNE(
        3, perplexity=perplexity(len(h)), init="pca", random_state=seed
    ).fit_transform(reduced)
    return points.astype(np.float32)


def within_sphere(places: Sequence[Any] | NDArray[np.float32]) -> tuple[NDArray[np.float64], int]:
    """Move outliers among places [n, 3] to the edge of a sphere; return how many were moved.

    One far image would leave little room for all others.
    """
    points: NDArray[np.float64] = np.asarray(places, dtype=np.float64)
    centre = np.median(points, axis=0)
    radii = np.linalg.norm(points - centre, axis=1)
    limit = MAX_RADIUS * np.quantile(radii, 0.98)
    shares = np.minimum(1, limit / np.maximum(radii, 1e-30))
    return (centre + shares[:, None] * (points - centre)).round(3), int((radii > limit).sum())


def moved_sentence(num_moved: int) -> str:
    """Return a sentence for a caption about moved outliers; empty if there are none."""
    verb = "is" if num_moved == 1 else "are"
    return f" {counted(num_moved, 'outlier')} {verb} drawn at the edge." if num_moved else ""


def perplexity(count: int) -> float:
    """Return t-SNE's perplexity, which must be smaller than the number of images."""
    return min(PERPLEXITY, float((count - 1) // 3))


def labels_of(features: Features, of: str) -> NDArray[np.int64]:
    """Return the labels of the images, which t-SNE is coloured by."""
    if features.labels is None:
        raise UserError(
            f"the {of} have no labels to colour t-SNE by: name a dataset with one folder for each "
            "class (--data)"
        )
    labels: NDArray[np.int64] = features.labels.numpy()
    return labels
