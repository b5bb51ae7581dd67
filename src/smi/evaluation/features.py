"""Features of a whole store: images in its order to h [n, F]. n images of S x S pixels, F coordinates, C classes.

h = extract(encoder, store, mean=policy.mean, std=policy.std)
h, labels = extract_labelled(encoder, store, mean=policy.mean, std=policy.std)
floor = pixels(store)     # what the images say without any encoder
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from smi.data.store import Store
from smi.device import device_of
from smi.errors import UserError
from smi.views.normalisation import normalise
from smi.views.policies import Triple

Precision = Literal["float32", "bfloat16", "float16"]
Device = torch.device | str | None

PIXELS_SIDE = 32  # 3,072 coordinates: a classifier of them is still fitted in seconds


def extract(
    encoder: nn.Module,
    store: Store,
    *,
    mean: Triple,
    std: Triple,
    size: int | None = None,
    batch_size: int = 256,
    device: Device = None,
    precision: Precision = "float32",
) -> Tensor:
    """float32 [n, F] on the CPU, row i of image i; a batch of images is in memory at a time.

    The whole square is resized to `size`; None leaves it as it is. The encoder is used in evaluation mode where it is, and left in the
    mode of training or evaluation that each of its parts was in. `device` is for encoders without weights; others say it themselves.
    """
    return _extract(encoder, store, mean, std, size, batch_size, device, precision)[0]


def extract_labelled(
    encoder: nn.Module,
    store: Store,
    *,
    mean: Triple,
    std: Triple,
    size: int | None = None,
    batch_size: int = 256,
    device: Device = None,
    precision: Precision = "float32",
    advance: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """As `extract`, with the labels int64 [n] of what was read: in place of an unreadable file stands another image.

    advance: told of every batch how many images it had.
    """
    labels = labels_of(store)
    h, index = _extract(encoder, store, mean, std, size, batch_size, device, precision, advance)
    return h, labels[index]


def pixels(store: Store, *, size: int = PIXELS_SIDE) -> Tensor:
    """The floor that any encoder must beat: the pixels themselves, between 0 and 1, float32 [n, 3 * S * S].

    Images above `size` pixels are made smaller.
    """
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return extract(nn.Flatten(), store, mean=zero, std=one, size=min(size, store.resolution))


def labels_of(store: Store) -> Tensor:
    if store.labels is None:
        raise UserError(
            f"the split {store.split!r} of {store.name} has no labels, and an evaluation needs them: use the splits 'train' and 'val' "
            "of a set whose images lie in a folder for each of two classes or more"
        )
    return store.labels


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Each part has its own mode back afterwards: some may have been frozen in a network that trains."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def autocast(
    device: torch.device, precision: Precision
) -> contextlib.AbstractContextManager[object]:
    if precision not in ("float32", "bfloat16", "float16"):
        raise UserError(f"the precision is float32, bfloat16 or float16, not {precision!r}")
    return torch.autocast(device.type, getattr(torch, precision), enabled=precision != "float32")


def _extract(
    encoder: nn.Module,
    store: Store,
    mean: Triple,
    std: Triple,
    size: int | None,
    batch_size: int,
    device: Device,
    precision: Precision,
    advance: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    features, index = torch.empty(0), torch.empty(len(store), dtype=torch.long)
    row = 0
    for h, which in batches_of_features(
        encoder,
        store,
        mean=mean,
        std=std,
        size=size,
        batch_size=batch_size,
        device=device,
        precision=precision,
    ):
        if row == 0:  # made outside of inference mode, so that a classifier may be trained on it
            features = torch.empty(len(store), h.shape[1])
        features[row : row + len(h)] = h
        index[row : row + len(h)] = which
        row += len(h)
        if advance:
            advance(len(h))
    return features, index


def batches_of_features(
    encoder: nn.Module,
    store: Store,
    *,
    mean: Triple,
    std: Triple,
    size: int | None = None,
    batch_size: int = 256,
    device: Device = None,
    precision: Precision = "float32",
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """What `extract` gives, a batch at a time: h [N, F] on the encoder's device, and the index of the images it is of.

    The index differs from the order where a file could not be read, and another image stands for it.
    """
    if batch_size < 1:
        raise UserError(f"a batch must hold 1 image or more, not {batch_size}")
    if size is not None and size < 1:
        raise UserError(f"images must have 1 pixel or more to a side, not {size}")
    if len(store) == 0:
        raise UserError(f"{store.name} has no images in its split {store.split!r}")
    place = device_of(encoder, device)
    for images, which in _in_order(store, batch_size):
        with evaluation_mode(encoder), autocast(place, precision), torch.inference_mode():
            h = encoder(normalise(images.to(place, non_blocking=True), mean, std, size))
        if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != len(images):
            got = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise UserError(
                f"an encoder must turn {len(images)} images into features [{len(images)}, F]; this one gave {got}"
            )
        yield h, which


def _in_order(store: Store, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and the index they are of, the next being read while the last are used."""
    first, *others = (
        torch.arange(i, min(i + batch_size, len(store))) for i in range(0, len(store), batch_size)
    )
    reading = store.start(first)
    try:
        for index in others:
            ready, reading = reading, store.start(index)
            yield ready()
        ready, reading = reading, lambda: (first, first)
        yield ready()
    finally:
        with contextlib.suppress(
            Exception
        ):  # whoever stops early leaves a batch that was begun: its memory is given back
            reading()
