"""Features in three dimensions by t-SNE: a rotatable cloud for each run, classes told apart by colour and symbol. n images."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from smi.errors import UserError
from smi.figures.sample import Features
from smi.figures.style import FONT, SMALL, finish, plain

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#000000",
    "#8b4513",
    "#7f7f7f",
    "#6a3d9a",
)
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "cross",
    "circle-open",
    "square-open",
    "diamond-open",
)  # not x: few fonts have its glyph
COMPONENTS = 50  # what features are reduced to before, as is usual
PERPLEXITY = 30.0
LISTED = 20  # classes in a legend


def tsne(
    places: Mapping[str, NDArray[np.float32]], features: Mapping[str, Features], *, of: str
) -> go.Figure:
    """places: [n, 3] of each run. features: what they are places of. of: which images, in words."""
    names = list(places)
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=[[{"type": "scene"}] * columns] * rows,
        subplot_titles=[plain(name) for name in names],
        horizontal_spacing=0.01,
        vertical_spacing=0.05,
    )
    labels = labels_of(features[names[0]], of)
    present = sorted(set(labels.tolist()))
    for number, name in enumerate(names):
        found = features[name]
        for i, label in enumerate(present):
            which = labels_of(found, of) == label
            title = plain(found.classes[label] if found.classes else str(label))
            figure.add_scatter3d(
                x=places[name][which, 0],
                y=places[name][which, 1],
                z=places[name][which, 2],
                text=[f"{plain(found.names[j])}<br>{title}" for j in np.flatnonzero(which)],
                hoverinfo="text",
                name=title,
                legendgroup=title,
                showlegend=number == 0 and len(present) <= LISTED,
                mode="markers",
                marker={
                    "color": COLOURS[i % len(COLOURS)],
                    "symbol": SYMBOLS[i % len(SYMBOLS)],
                    "size": 3.6,
                    "line": {"width": 0},
                },
                row=number // columns + 1,
                col=number % columns + 1,
            )
    bare = {
        "showticklabels": False,
        "title": "",
        "showbackground": False,
        "gridcolor": "#dddddd",
        "zeroline": False,
        "showspikes": False,
    }
    figure.update_scenes(
        xaxis=bare,
        yaxis=bare,
        zaxis=bare,
        aspectmode="cube",
        camera={"eye": {"x": 1.0, "y": 1.0, "z": 0.7}},
    )
    figure.update_annotations(font_size=FONT + 1)
    count = len(labels)
    finish(
        figure,
        f"3-D t-SNE (perplexity {perplexity(count):g}) of the frozen features of {count:,} {of}, reduced by principal "
        f"components to {COMPONENTS} coordinates before. Axes have no unit; distances between clusters mean little.",
        width=190 + 470 * columns,
        height=40 + 460 * rows,
        axes=False,
        top=34,
    )
    figure.update_layout(
        legend={
            "itemsizing": "constant",
            "font": {"size": SMALL + 1},
            "x": 1.0,
            "y": 0.5,
            "yanchor": "middle",
        }
    )
    return figure


def embed(h: NDArray[np.float32], *, seed: int = 0) -> NDArray[np.float32]:
    """[n, F] to [n, 3]."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(h) < 5:
        raise UserError(f"t-SNE takes five images or more, not {len(h)}")
    if h.shape[1] < 3:
        raise UserError(f"t-SNE in three dimensions takes three features or more, not {h.shape[1]}")
    if not np.isfinite(h).all() or not h.std(axis=0).any():
        raise UserError(
            "features of all images are the same (or not finite), so t-SNE has nothing to arrange: `smi doctor` says more"
        )
    reduced = PCA(min(COMPONENTS, *h.shape), random_state=seed).fit_transform(h)
    found: NDArray[np.float32] = TSNE(
        3, perplexity=perplexity(len(h)), init="pca", random_state=seed
    ).fit_transform(reduced)
    return found.astype(np.float32)


def perplexity(count: int) -> float:
    """t-SNE's must be below the number of images."""
    return min(PERPLEXITY, float((count - 1) // 3))


def labels_of(features: Features, of: str) -> NDArray[np.int64]:
    if features.labels is None:
        raise UserError(
            f"the {of} have no labels to colour t-SNE by: name a set whose images lie in a folder for each class (--data)"
        )
    found: NDArray[np.int64] = features.labels.numpy()
    return found
