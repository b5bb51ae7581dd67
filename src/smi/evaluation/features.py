"""Compute the features of a whole store, in the order of its images: h [n, F].

h = extract(encoder, store, mean=policy.mean, std=policy.std)
h, labels = extract_labelled(encoder, store, mean=policy.mean, std=policy.std)
baseline = pixels(store)     # the images themselves, without any encoder

n images of S x S pixels, F coordinates, C classes.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from smi.data.store import Store
from smi.device import Precision, autocast, device_of
from smi.errors import UserError
from smi.views.normalisation import normalise
from smi.views.policies import Triple

Device = torch.device | str | None
Batch = tuple[Tensor, Tensor]  # features [N, F] and the index of their images [N]

PIXELS_SIDE = 32  # 3,072 coordinates: fitting a classifier on them still takes seconds


class FeatureSplits(NamedTuple):
    """Hold the features and labels of training and test images."""

    features: Tensor  # [n, F]
    labels: Tensor  # int64 [n]
    test_features: Tensor
    test_labels: Tensor


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
    """Return the features of all images: float32 [n, F] on the CPU, row i for image i.

    size: the whole square is resized to it; None keeps the size of the store. device: only for
    encoders without weights; others are used where they are. The encoder is used in evaluation
    mode, and the mode of each of its modules is restored.
    """
    batches = batches_of_features(
        encoder,
        store,
        mean=mean,
        std=std,
        size=size,
        batch_size=batch_size,
        device=device,
        precision=precision,
    )
    return _gather(batches, len(store))[0]


def extract_labelled(
    encoder: nn.Module,
    store: Store,
    *,
    mean: Triple,
    std: Triple,
    size: int | None = None,
    batch_size: int = 256,
    advance: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return features as `extract` does, and the labels int64 [n] of the images that were read.

    The next readable image replaces an unreadable file and brings its own label.
    advance: called after every batch with its number of images.
    """
    labels = labels_of(store)
    batches = batches_of_features(
        encoder, store, mean=mean, std=std, size=size, batch_size=batch_size
    )
    h, index = _gather(batches, len(store), advance)
    return h, labels[index]


def pixels(store: Store, *, size: int = PIXELS_SIDE) -> Tensor:
    """Return the pixels as features, between 0 and 1: float32 [n, 3 * S * S].

    Every encoder should beat this baseline. Images larger than `size` are resized to it.
    """
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return extract(nn.Flatten(), store, mean=zero, std=one, size=min(size, store.resolution))


def labels_of(store: Store) -> Tensor:
    """Return the labels of a store, or raise a UserError if it has none."""
    if store.labels is None:
        raise UserError(
            f"the split {store.split!r} of {store.name} has no labels, and evaluation needs them: "
            "use the splits 'train' and 'val' of a dataset with one folder per class"
        )
    return store.labels


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode, then restore the mode of each of its modules."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


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
) -> Generator[Batch, None, None]:
    """Yield the features of `extract` batch by batch, on the encoder's device, with their index.

    The index differs from the order where another image replaces an unreadable file.
    """
    if batch_size < 1:
        raise UserError(f"a batch must hold 1 image or more, not {batch_size}")
    if size is not None and size < 1:
        raise UserError(f"images must be 1 pixel wide or more, not {size}")
    if len(store) == 0:
        raise UserError(f"{store.name} has no images in its split {store.split!r}")
    place = device_of(encoder, device)
    for images, index in _images_in_order(store, batch_size):
        with evaluation_mode(encoder), autocast(place, precision), torch.inference_mode():
            h = encoder(normalise(images.to(place, non_blocking=True), mean, std, size))
        if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != len(images):
            shape = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise UserError(
                f"an encoder must return features [{len(images)}, F] for {len(images)} images; "
                f"this one returned {shape}"
            )
        yield h, index


def _gather(
    batches: Iterable[Batch], num_images: int, advance: Callable[[int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Copy batches into features float32 [n, F] and index int64 [n], both on the CPU."""
    features, index = torch.empty(0), torch.empty(num_images, dtype=torch.long)
    row = 0
    for h, batch_index in batches:
        if row == 0:  # made outside of inference mode, so that a classifier can train on it
            features = torch.empty(num_images, h.shape[1])
        features[row : row + len(h)] = h
        index[row : row + len(h)] = batch_index
        row += len(h)
        if advance:
            advance(len(h))
    return features, index


def _images_in_order(store: Store, batch_size: int) -> Iterator[Batch]:
    """Yield images and their index; the next batch is read while the last one is used."""
    first, *rest = (
        torch.arange(i, min(i + batch_size, len(store))) for i in range(0, len(store), batch_size)
    )
    reading = store.start(first)
    try:
        for index in rest:
            ready, reading = reading, store.start(index)
            yield ready()
        ready, reading = reading, lambda: (first, first)
        yield ready()
    finally:
        # A caller that stops early leaves a batch that is being read: collect it, to free memory.
        with contextlib.suppress(Exception):
            reading()
