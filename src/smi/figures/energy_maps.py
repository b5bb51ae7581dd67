"""Draw where encoders look: the norm of the features at each position, laid over the image.

The map is the network's last one. For small images, where that has few positions, it is the last
map with MIN_POSITIONS positions on a side. C channels, H x W positions.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor
from torch.nn.functional import interpolate

from smi.data.decoder import ValueRange
from smi.errors import UserError
from smi.evaluation.features import evaluation_mode
from smi.figures.image_panel import add_picture
from smi.figures.sample import Sample
from smi.figures.style import FONT, SMALL, finish, plain
from smi.runs.encoder import Pretrained
from smi.views.normalisation import centre_crop, kept_side, normalise

NUM_ROWS = 4
PANEL_SIDE = 170  # pixels
MAX_TITLE = 24  # letters above a panel
TITLE_LINE = 18  # pixels
MIN_POSITIONS = 4
MAP_DESCRIPTION = (
    f"last feature map with at least {MIN_POSITIONS} × {MIN_POSITIONS} positions, or its last map"
)
COLOUR_BAR = {
    "title": {"text": "energy", "side": "right"},
    "tickvals": [0, 100],
    "ticktext": ["lowest", "highest"],
    "len": 0.5,
    "thickness": 14,
    "outlinewidth": 0,
    "tickfont": {"size": SMALL + 1},
}


def energy_maps(
    images: Tensor,
    maps: Mapping[str, Tensor],
    captions: Sequence[str],
    *,
    of: str,
    positions: Sequence[tuple[int, int]] = (),
) -> go.Figure:
    """Draw a row for each image: the image, then the map of each run over it.

    images: uint8 [n, 3, S, S]. maps: float [n, S, S] of each run. captions: one per image.
    of: describes the images. positions: H, W of each map before it was enlarged.
    """
    rows = len(images)
    columns = 1 + len(maps)
    titles = [_column_title(name) for name in maps]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        horizontal_spacing=0.012,
        vertical_spacing=0.02,
        column_titles=["image", *titles],
        row_titles=None,
    )
    for row in range(rows):
        add_picture(figure, images[row].permute(1, 2, 0).numpy(), row=row + 1, col=1)
        for column, (name, energy) in enumerate(maps.items(), 2):
            add_picture(figure, _grey(images[row]), row=row + 1, col=column)
            hover = f"{plain(name)}: %{{z}} %<extra>{plain(captions[row])}</extra>"
            last = row == 0 and column == columns
            heatmap = _heatmap(energy[row], hover, show_scale=last)
            figure.add_trace(heatmap, row=row + 1, col=column)
        _add_row_title(figure, captions[row], row + 1)
    figure.update_annotations(selector=lambda note: note.textangle is None, font_size=FONT)
    finish(
        figure,
        _caption(of, positions),
        width=130 + columns * PANEL_SIDE,
        height=70 + rows * PANEL_SIDE,
        axes=False,
        top=36 + TITLE_LINE * max(title.count("<br>") for title in titles),
    )
    figure.update_layout(margin={"l": 36, "r": 90})
    return figure


def _column_title(name: str) -> str:
    """Return a name in one line, or in several at its commas if it is wider than a panel."""
    return plain(name) if len(name) <= MAX_TITLE else plain(name).replace(", ", "<br>")


def _caption(of: str, positions: Sequence[tuple[int, int]]) -> str:
    sizes = [f"{height} × {width}" for height, width in dict.fromkeys(positions)]
    size = f", from {' or '.join(sizes)} positions" if sizes else ""
    return (
        f"{of[0].upper()}{of[1:]} and, over them, the ℓ2 norm over channels of each encoder's "
        f"{MAP_DESCRIPTION}, enlarged to the image (bilinear{size}) and scaled from its "
        "minimum to its maximum: maps show where the norm is high, not how high it is."
    )


def _grey(image: Tensor) -> NDArray[np.uint8]:
    """Return uint8 [3, S, S] as grey pixels [S, S, 3]."""
    grey = image.float().mean(dim=0).round().to(torch.uint8)
    pixels: NDArray[np.uint8] = grey[..., None].expand(-1, -1, 3).numpy()
    return pixels


def _heatmap(energy: Tensor, hover: str, *, show_scale: bool) -> go.Heatmap:
    """Return the map of one image in percent, half transparent."""
    return go.Heatmap(
        z=(100 * scale_to_unit(energy)).round().to(torch.uint8).numpy(),
        x0=0.5,
        y0=0.5,
        dx=1,
        dy=1,
        zmin=0,
        zmax=100,
        colorscale="Inferno",
        opacity=0.62,
        zsmooth="best",
        showscale=show_scale,
        colorbar=COLOUR_BAR,
        hovertemplate=hover,
    )


def _add_row_title(figure: go.Figure, title: str, row: int) -> None:
    """Write a title upright to the left of a row."""
    axis = next(figure.select_yaxes(row=row, col=1))
    figure.add_annotation(
        text=plain(title),
        textangle=-90,
        xref="paper",
        yref="paper",
        x=0,
        y=sum(axis.domain) / 2,
        xanchor="right",
        yanchor="middle",
        xshift=-6,
        showarrow=False,
        font={"size": SMALL + 1},
    )


def scale_to_unit(energy: Tensor) -> Tensor:
    """Scale a map so that its minimum is 0 and its maximum is 1."""
    low, high = energy.amin(), energy.amax()
    return (energy - low) / (high - low).clamp_min(1e-30)


@torch.inference_mode()
def energies(encoder: Pretrained, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Compute the norm over channels of the feature map, enlarged to the image.

    images: uint8 [n, 3, S, S]. Returns float [n, S, S], and H, W of the map. Pixels outside the
    crop of the encoder have the least energy of their image.
    """
    device = next(encoder.parameters()).device
    x = normalise(images.to(device), encoder.mean, encoder.std, encoder.image_size)
    with evaluation_mode(encoder):
        features = _last_map(encoder, x)
    energy = torch.linalg.vector_norm(features.float(), dim=1, keepdim=True)
    if not energy.isfinite().all():
        raise UserError(
            f"the features of {encoder.source} are not finite, so they have no energy: "
            "training diverged"
        )
    side = kept_side(images.shape[-1], encoder.image_size)
    enlarged = interpolate(energy, (side, side), mode="bilinear")[:, 0].cpu()
    whole = enlarged.amin((1, 2), keepdim=True).repeat(1, *images.shape[-2:])
    centre_crop(whole, side).copy_(enlarged)
    return whole, (features.shape[2], features.shape[3])


def _last_map(encoder: Pretrained, x: Tensor) -> Tensor:
    """Return the last map [n, C, H, W] with enough positions, or the last one with several."""
    last = encoder.map(x)
    if min(last.shape[2:]) >= MIN_POSITIONS:
        return last
    for features in reversed(_timm_maps(encoder, x)):
        if min(features.shape[2:]) >= MIN_POSITIONS:
            return features
    if last.shape[2:].numel() > 1:
        return last
    raise UserError(
        f"the last feature map of {encoder.source} has one position for images of "
        f"{encoder.image_size} pixels, and no earlier map has {MIN_POSITIONS} × {MIN_POSITIONS}, "
        "so it cannot show where the encoder looks: give runs with larger images"
    )


def _timm_maps(encoder: Pretrained, x: Tensor) -> list[Tensor]:
    """Return all maps [n, C, H, W] of a timm network in order; other networks have none."""
    intermediates = getattr(encoder.network, "forward_intermediates", None)
    if intermediates is None or not any(
        kind.__module__.startswith("timm.") for kind in type(encoder.network).__mro__
    ):
        return []
    maps: list[Tensor] = intermediates(x, intermediates_only=True)
    return maps


def choose_images(
    sample: Sample,
    resolution: int,
    count: int = NUM_ROWS,
    value_range: ValueRange | None = None,
) -> tuple[Tensor, list[str]]:
    """Choose images of different classes, if there are classes.

    Returns uint8 [n, 3, S, S], and the class of each image, or its file name without classes.
    """
    with sample.open(resolution, value_range) as (store, names):
        if len(store) == 0:
            raise UserError(f"{sample.data} has no held-out images")
        generator = torch.Generator().manual_seed(sample.seed)
        order = torch.randperm(len(store), generator=generator).tolist()
        if store.labels is None:
            chosen: list[int] = order[:count]
            return store[chosen], [names[i].rsplit("/", 1)[-1] for i in chosen]
        labels = store.labels.tolist()
        firsts = list({labels[i]: i for i in reversed(order)}.values())[::-1]
        chosen = [*firsts, *(i for i in order if i not in firsts)][:count]
        classes = store.classes
        captions = [classes[labels[i]] if classes else str(labels[i]) for i in chosen]
        return store[chosen], captions
