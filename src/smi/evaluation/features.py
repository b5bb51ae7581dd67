"""Compute the features of a whole store, in the order of its images: h [n, F].

h = extract(encoder, store, mean=policy.mean, std=policy.std)
h, labels = extract_labelled(encoder, store, mean=policy.mean, std=policy.std)
baseline = pixels(store)     # the images themselves, without any encoder

Images that are kept with a margin are cropped at their centre (`smi.views.normalisation`). Features
that would fill the memory are mapped from a file without a name, which ends with the process.

n images of S x S pixels, F coordinates, C classes.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from smi.data.store import Store
from smi.data.subset import Subset
from smi.device import Precision, autocast, device_of, total_memory_bytes, upload
from smi.distributed import rank, send_rows, world_size
from smi.errors import UserError
from smi.files import WINDOWS, cache_home, disk_errors
from smi.views.normalisation import normalise
from smi.views.policies import Triple

Device = torch.device | str | None
Batch = tuple[Tensor, Tensor]  # features [N, F] and the index of their images [N]

PIXELS_SIDE = 32  # 3,072 coordinates: fitting a classifier on them still takes seconds
FEATURE_BATCH_SIZE = 256
ROWS_PER_MESSAGE = 8192  # rows that one process sends to the others at a time
MAX_SHARE_OF_MEMORY = 0.25  # features that would fill more of it are mapped from a file


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
    batch_size: int = FEATURE_BATCH_SIZE,
    device: Device = None,
    precision: Precision = "float32",
) -> Tensor:
    """Return the features of all images: float32 [n, F] on the CPU, row i for image i.

    size: larger images are cropped at their centre, then all are resized to it; None keeps images
    whole and as they are. device: only for encoders without weights; others are used where they
    are. The encoder is used in evaluation mode, and the mode of each of its modules is restored.
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
    return _collect(batches, len(store))[0]


def extract_labelled(
    encoder: nn.Module,
    store: Store,
    *,
    mean: Triple,
    std: Triple,
    size: int | None = None,
    crop: int | None = None,
    precision: Precision = "float32",
    together: bool = False,
    advance: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return features as `extract` does, and the labels int64 [n] of the images that were read.

    The next readable image replaces an unreadable file and brings its own label.
    crop: the side of the centre that is kept; None is decided by the size.
    together: each process computes a part, and all of them get all features; all must call this.
    advance: called after every batch with its number of images.
    """
    labels = labels_of(store)
    starts = _starts_of_parts(len(store)) if together else [0, len(store)]
    is_split = len(starts) > 2
    own = torch.arange(starts[rank()], starts[rank() + 1]) if is_split else None
    batches = batches_of_features(
        encoder,
        store if own is None else Subset(store, own),
        mean=mean,
        std=std,
        size=size,
        crop=crop,
        batch_size=FEATURE_BATCH_SIZE,
        precision=precision,
    )
    h, index = _collect(batches, len(store) if own is None else len(own), advance)
    if own is not None:
        h, index = (_join_parts(rows, starts) for rows in (h, own[index]))
    return h, labels[index]


def pixels(store: Store, *, size: int = PIXELS_SIDE) -> Tensor:
    """Return the pixels as features, between 0 and 1: float32 [n, 3 * S * S].

    Every encoder should beat this baseline. Images larger than `size` are resized to it, whole.
    """
    batches = batches_of_features(
        nn.Flatten(),
        store,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        size=min(size, store.resolution),
        crop=store.resolution,
    )
    return _collect(batches, len(store))[0]


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
    crop: int | None = None,
    batch_size: int = FEATURE_BATCH_SIZE,
    device: Device = None,
    precision: Precision = "float32",
) -> Generator[Batch, None, None]:
    """Yield the features of `extract` batch by batch, on the encoder's device, with their index.

    The index differs from the order where another image replaces an unreadable file.
    crop: the side of the centre that is kept; None is decided by the size.
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
            h = encoder(normalise(upload(images, place), mean, std, size, crop))
        if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != len(images):
            shape = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise UserError(
                f"an encoder must return features [{len(images)}, F] for {len(images)} images; "
                f"this one returned {shape}"
            )
        yield h, index


def _collect(
    batches: Iterable[Batch], num_images: int, advance: Callable[[int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Copy batches into features float32 [n, F] and index int64 [n], both on the CPU."""
    features, index = torch.empty(0), torch.empty(num_images, dtype=torch.long)
    row = 0
    for h, batch_index in batches:
        if row == 0:  # made outside of inference mode, so that a classifier can train on it
            features = new_rows(num_images, h.shape[1:], torch.float32)
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
    reading = store.start_squares(first)
    try:
        for index in rest:
            ready, reading = reading, store.start_squares(index)
            yield ready()
        ready, reading = reading, lambda: (first, first)
        yield ready()
    finally:
        # A caller that stops early leaves a batch that is being read: collect it, to free memory.
        with contextlib.suppress(Exception):
            reading()


# ------------------------------------------------------------------------------ several processes


def _starts_of_parts(num_images: int) -> list[int]:
    """Return where the images of each process begin, and the end of the last ones.

    Parts are whole batches, so that features are those of one process to the bit. With fewer
    batches than processes there is one part, which each process computes.
    """
    num_batches = math.ceil(num_images / FEATURE_BATCH_SIZE)
    num_parts = world_size() if num_batches >= world_size() else 1
    starts = [part * num_batches // num_parts * FEATURE_BATCH_SIZE for part in range(num_parts)]
    return [*starts, num_images]


def _join_parts(own: Tensor, starts: list[int]) -> Tensor:
    """Return the rows of all processes, on the CPU of each of them."""
    joined = new_rows(starts[-1], own.shape[1:], own.dtype)
    joined[starts[rank()] : starts[rank() + 1]] = own
    for sender in range(world_size()):
        for start in range(starts[sender], starts[sender + 1], ROWS_PER_MESSAGE):
            send_rows(joined[start : min(start + ROWS_PER_MESSAGE, starts[sender + 1])], sender)
    return joined


# --------------------------------------------------------------------- features larger than memory


def new_rows(num_rows: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return an empty tensor [num_rows, *shape], mapped from a file if it is large.

    The limit is a share of the machine's memory, so it does not depend on what else runs. On
    Windows nothing is mapped, because a mapped file cannot lose its name there.
    """
    num_bytes = num_rows * shape.numel() * dtype.itemsize
    memory = total_memory_bytes()
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if WINDOWS or num_bytes <= MAX_SHARE_OF_MEMORY * memory / num_processes:
        return torch.empty(num_rows, *shape, dtype=dtype)
    folder = cache_home()  # /tmp may be in memory
    with disk_errors(f"making room for features in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="features-") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash later
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            size = num_bytes // dtype.itemsize
            # The mapping keeps the pages of the file after its name is gone.
            rows = torch.from_file(file.name, shared=True, size=size, dtype=dtype)
    return rows.view(num_rows, *shape)


def is_mapped(features: Tensor) -> bool:
    """Return whether a tensor is mapped from a file, so that it should be read block by block."""
    return features.device.type == "cpu" and features.untyped_storage().filename is not None
