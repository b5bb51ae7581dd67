"""Some images for a figure, and features of them. n images of S x S pixels, F coordinates.

The images depend on the seed, not on the encoder: runs side by side are shown the same ones.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from smi.data import Store, load
from smi.data.folders import FileSet, Split
from smi.data.sources import resolve
from smi.data.subset import Subset
from smi.errors import UserError
from smi.evaluation import batches_of_features
from smi.runs.encoder import Pretrained
from smi.runs.names import data_of
from smi.runs.run import Run
from smi.seeds import derive
from smi.terminal import Progress


@dataclass(frozen=True)
class Sample:
    """Which images, and how many of them."""

    source: str  # a set's name, or a folder
    root: str | Path | None = None
    images: int = 2000  # at most
    seed: int = 0
    num_workers: int | None = None
    split: Split = "val"

    @property
    def data(self) -> str:
        return Path(self.source).name or self.source

    @property
    def described(self) -> str:
        return (
            f"held-out images of {self.data}"
            if self.split == "val"
            else f"images of {self.data}, all of which may be trained on"
        )

    def found(self) -> "Sample":
        """The same of all images where none are held out, as in a folder without classes."""
        root = Path(self.root) if self.root else None
        try:
            resolve(self.source, self.split, root)
        except UserError:
            resolve(self.source, "pretrain", root)
            return replace(self, split="pretrain")
        return self

    @contextmanager
    def open(self, resolution: int) -> Iterator[tuple[Store, list[str]]]:
        """A store of the chosen images, in the order of the whole, and what each is called. Files are decoded as they are asked for."""
        images = resolve(self.source, self.split, Path(self.root) if self.root else None)
        files = isinstance(images, FileSet)
        store = load(
            self.source,
            self.split,
            resolution=resolution if files else None,  # pixels are as they are
            root=self.root,
            num_workers=self.num_workers,
            max_cache_bytes=0,
        )
        try:
            order = torch.randperm(
                len(store), generator=torch.Generator().manual_seed(derive(self.seed, "figure"))
            )
            chosen = order[: self.images].sort().values
            names = [
                images.entries[i].path if isinstance(images, FileSet) else f"{self.split}/{i}"
                for i in chosen.tolist()
            ]
            yield Subset(store, chosen), names
        finally:
            store.close()


@dataclass(frozen=True)
class Features:
    """Of the images of a sample that could be read."""

    h: Tensor  # float32 [n, F]
    names: list[str]
    labels: Tensor | None  # int64 [n]
    classes: tuple[str, ...] | None


def features(encoder: Pretrained, sample: Sample) -> Features:
    with sample.open(encoder.resolution) as (store, names):
        found: list[Tensor] = []
        places: list[Tensor] = []
        with Progress("features", len(store), "images") as progress:
            for h, which in batches_of_features(
                encoder, store, mean=encoder.mean, std=encoder.std, size=encoder.image_size
            ):
                good = which == torch.arange(len(which)) + sum(
                    len(some) for some in places
                )  # another image stands for a file that cannot be read
                found.append(h.float().cpu()[good])
                places.append(which)
                progress.advance(len(which))
        index = torch.cat(places)
        kept = index[index == torch.arange(len(index))]
        labels = None if store.labels is None else store.labels[kept]
        return Features(torch.cat(found), [names[i] for i in kept.tolist()], labels, store.classes)


def source_of(runs: Mapping[str, Run], data: str | Path | None) -> str:
    """What was asked for, or else what all of them were pretrained on."""
    if data is not None:
        return str(data)
    sources = {str(run.config["data"]["source"]) for run in runs.values()}
    if len(sources) > 1:
        raise UserError(
            f"these runs were pretrained on different images ({', '.join(sorted({data_of(run) for run in runs.values()}))}): name one set "
            "for all of them with --data"
        )
    return next(iter(sources))
