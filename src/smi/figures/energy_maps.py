"""Where encoders look: the length of the features at each place of a feature map, laid over the image. C channels, H x W places.

The map is the network's last; of small images, where that has few places or one, the last that has PLACES a side.
"""

from collections.abc import Mapping, Sequence

import torch
from plotly import graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor
from torch.nn.functional import interpolate

from smi.errors import UserError
from smi.evaluation.features import evaluation_mode
from smi.figures.pictures import add_picture
from smi.figures.sample import Sample
from smi.figures.style import FONT, SMALL, finish, plain
from smi.runs.encoder import Pretrained
from smi.views.normalisation import normalise

ROWS = 4
SIDE = 170  # pixels of a panel
PLACES = 4
WHICH = f"last feature map of {PLACES} × {PLACES} places or more, or else its last"


def energy_maps(
    images: Tensor,
    maps: Mapping[str, Tensor],
    captions: Sequence[str],
    *,
    of: str,
    places: Sequence[tuple[int, int]] = (),
) -> go.Figure:
    """images: uint8 [n, 3, S, S]. maps: of each run float [n, S, S]. A row for each image, a column for each.

    of: which images, in words. places: H, W of each map.
    """
    names = list(maps)
    rows, columns = len(images), 1 + len(names)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        horizontal_spacing=0.012,
        vertical_spacing=0.02,
        column_titles=["image", *map(plain, names)],
        row_titles=None,
    )
    for row in range(rows):
        pixels = images[row].permute(1, 2, 0).numpy()
        grey = (
            images[row]
            .float()
            .mean(dim=0)
            .round()
            .to(torch.uint8)[..., None]
            .expand(-1, -1, 3)
            .numpy()
        )
        add_picture(figure, pixels, row=row + 1, col=1)
        for column, name in enumerate(names, 2):
            add_picture(figure, grey, row=row + 1, col=column)
            percent = (100 * between_0_and_1(maps[name][row])).round().to(torch.uint8).numpy()
            figure.add_trace(
                go.Heatmap(
                    z=percent,
                    x0=0.5,
                    y0=0.5,
                    dx=1,
                    dy=1,
                    zmin=0,
                    zmax=100,
                    colorscale="Inferno",
                    opacity=0.62,
                    zsmooth="best",
                    showscale=row == 0 and column == columns,
                    colorbar={
                        "title": {"text": "energy", "side": "right"},
                        "tickvals": [0, 100],
                        "ticktext": ["least", "most"],
                        "len": 0.5,
                        "thickness": 14,
                        "outlinewidth": 0,
                        "tickfont": {"size": SMALL + 1},
                    },
                    hovertemplate=f"{plain(name)}: %{{z}} %<extra>{plain(captions[row])}</extra>",
                ),
                row=row + 1,
                col=column,
            )
        axis = next(figure.select_yaxes(row=row + 1, col=1))
        figure.add_annotation(
            text=plain(captions[row]),
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
    figure.update_annotations(selector=lambda note: note.textangle is None, font_size=FONT)
    sizes = [f"{high} × {wide}" for high, wide in dict.fromkeys(places)]
    size = f", from {' or '.join(sizes)} places" if sizes else ""
    finish(
        figure,
        f"{of[0].upper()}{of[1:]} and, over them, the ℓ2 norm over channels of each encoder's {WHICH}, enlarged "
        f"to the image (bilinear{size}) and scaled from its least to its most: maps show where, not how much.",
        width=130 + columns * SIDE,
        height=70 + rows * SIDE,
        axes=False,
        top=36,
    )
    figure.update_layout(margin={"l": 36, "r": 90})
    return figure


def between_0_and_1(energy: Tensor) -> Tensor:
    low, high = energy.amin(), energy.amax()
    return (energy - low) / (high - low).clamp_min(1e-30)


@torch.inference_mode()
def energies(encoder: Pretrained, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """uint8 [n, 3, S, S] to float [n, S, S]: the norm over channels of the feature map, at the image's size; and H, W of the map."""
    device = next(encoder.parameters()).device
    with evaluation_mode(encoder):
        features = _last_map(
            encoder, normalise(images.to(device), encoder.mean, encoder.std, encoder.image_size)
        )
    energy = torch.linalg.vector_norm(features.float(), dim=1, keepdim=True)
    if not energy.isfinite().all():
        raise UserError(
            f"the features of {encoder.source} are not finite, so they have no energy: training diverged"
        )
    return interpolate(energy, images.shape[-2:], mode="bilinear")[:, 0].cpu(), (
        features.shape[2],
        features.shape[3],
    )


def _last_map(encoder: Pretrained, x: Tensor) -> Tensor:
    """[n, C, H, W], H x W more than one."""
    last = encoder.map(x)
    if min(last.shape[2:]) >= PLACES:
        return last
    for features in reversed(_earlier(encoder, x)):
        if min(features.shape[2:]) >= PLACES:
            return features
    if last.shape[2:].numel() > 1:
        return last
    raise UserError(
        f"the last feature map of {encoder.source} has one place for images of {encoder.image_size} pixels, and none before it has "
        f"{PLACES} × {PLACES}, so it cannot show where it looks: give runs with larger images"
    )


def _earlier(encoder: Pretrained, x: Tensor) -> list[Tensor]:
    """Maps [n, C, H, W] of a network of timm, from the first to the last; of others none."""
    intermediates = getattr(encoder.network, "forward_intermediates", None)
    if intermediates is None or not any(
        kind.__module__.startswith("timm.") for kind in type(encoder.network).__mro__
    ):
        return []
    maps: list[Tensor] = intermediates(x, intermediates_only=True)
    return maps


def some_images(sample: Sample, resolution: int, count: int = ROWS) -> tuple[Tensor, list[str]]:
    """Of different classes, where there are any: uint8 [n, 3, S, S], and the class of each, or its name."""
    with sample.open(resolution) as (store, names):
        if len(store) == 0:
            raise UserError(f"{sample.data} has no held-out images")
        order = torch.randperm(
            len(store), generator=torch.Generator().manual_seed(sample.seed)
        ).tolist()
        chosen: list[int] = order[:count]
        if store.labels is not None:
            labels = store.labels.tolist()
            firsts = list({labels[i]: i for i in reversed(order)}.values())[::-1]
            chosen = [*firsts, *(i for i in order if i not in firsts)][:count]
        captions = [names[i].rsplit("/", 1)[-1] for i in chosen]
        if store.labels is not None:
            numbers = [int(store.labels[i]) for i in chosen]
            captions = [
                store.classes[number] if store.classes else str(number) for number in numbers
            ]
        return store[chosen], captions
