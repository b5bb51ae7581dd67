"""Choose images for a figure, and compute features of them.

The images depend on the seed, not on the encoder, so runs side by side are shown the same ones.
n images of S x S pixels, F coordinates.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smi.data import Store, load
from smi.data.decoder import ValueRange
from smi.data.folders import Split
from smi.data.sources import ArraySet, Source, resolve_source
from smi.data.subset import Subset
from smi.errors import UserError
from smi.evaluation import batches_of_features
from smi.runs.encoder import Pretrained
from smi.runs.names import dataset_name
from smi.runs.run import Run
from smi.seeds import derive
from smi.terminal import Progress

MAX_IMAGES = 2000
IMAGES_PER_COORDINATE = 10  # for the spectrum and the variances of features


@dataclass(frozen=True)
class Sample:
    """Describe a random sample of the images of a dataset."""

    source: str  # a dataset's name, or a folder
    root: str | Path | None = None
    images: int = MAX_IMAGES  # at most
    seed: int = 0
    num_workers: int | None = None
    split: Split = "val"

    @property
    def data(self) -> str:
        """Return the name of the dataset, or of the folder."""
        return Path(self.source).name or self.source

    @property
    def described(self) -> str:
        """Return words for the images, such as "held-out images of digits"."""
        if self.split == "val":
            return f"held-out images of {self.data}"
        return f"images of {self.data}, all of which may be trained on"

    def with_existing_split(self) -> "Sample":
        """Return a sample of all images if none are held out, as in a folder without classes."""
        root = Path(self.root) if self.root else None
        try:
            resolve_source(self.source, self.split, root)
        except UserError:
            resolve_source(self.source, "pretrain", root)
            return replace(self, split="pretrain")
        return self

    @contextmanager
    def open(
        self, resolution: int, value_range: ValueRange | None = None
    ) -> Iterator[tuple[Store, list[str]]]:
        """Open a store of the chosen images, in the dataset's order, with a name for each.

        Files are decoded when they are read. value_range: of an encoder, for images of more than
        8 bits; None is that of the dataset.
        """
        source = Source(self.source, Path(self.root) if self.root else None, value_range)
        images = source.split(self.split)
        store = load(
            source,
            self.split,
            resolution=None if isinstance(images, ArraySet) else resolution,
            num_workers=self.num_workers,
            max_cache_bytes=0,
        )
        try:
            generator = torch.Generator().manual_seed(derive(self.seed, "figure"))
            order = torch.randperm(len(store), generator=generator)
            chosen = order[: self.images].sort().values
            names = [images.image_name(i) for i in chosen.tolist()]
            yield Subset(store, chosen), names
        finally:
            store.close()


@dataclass(frozen=True)
class Features:
    """Hold the features of the images of a sample that could be read."""

    h: Tensor  # float32 [n, F]
    names: list[str]
    labels: Tensor | None  # int64 [n]
    classes: tuple[str, ...] | None


def features(encoder: Pretrained, sample: Sample) -> Features:
    """Compute the features of a sample, and leave out images that cannot be read."""
    with sample.open(encoder.resolution, encoder.value_range) as (store, names):
        rows: list[Tensor] = []
        places: list[int] = []
        for h, readable in _readable_features(encoder, store):
            rows.append(h)
            places += readable.tolist()
        labels = None if store.labels is None else store.labels[places]
        return Features(torch.cat(rows), [names[i] for i in places], labels, store.classes)


def feature_blocks(encoder: Pretrained, sample: Sample) -> Iterator[NDArray[np.float32]]:
    """Yield the features of a sample block by block, so that many images fit into memory."""
    with sample.open(encoder.resolution, encoder.value_range) as (store, _):
        for h, _ in _readable_features(encoder, store):
            yield h.numpy()


def _readable_features(encoder: Pretrained, store: Store) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features on the CPU with their index, without images that cannot be read."""
    start = 0
    with Progress("features", len(store), "images") as progress:
        for h, index in batches_of_features(
            encoder, store, mean=encoder.mean, std=encoder.std, size=encoder.image_size
        ):
            # The index differs where another image replaces a file that cannot be read.
            readable = index == torch.arange(start, start + len(index))
            start += len(index)
            progress.advance(len(index))
            yield h.float().cpu()[readable], index[readable]


def source_of(runs: Mapping[str, Run], data: str | Path | None) -> str:
    """Return the requested dataset, or the one that all runs were pretrained on."""
    if data is not None:
        return str(data)
    if not runs:
        raise UserError("an encoder alone does not say which images to show: name them with --data")
    sources = {str(run.config["data"]["source"]) for run in runs.values()}
    if len(sources) > 1:
        datasets = ", ".join(sorted({dataset_name(run) for run in runs.values()}))
        raise UserError(
            f"these runs were pretrained on different datasets ({datasets}): name one dataset for "
            "all of them with --data"
        )
    return next(iter(sources))
