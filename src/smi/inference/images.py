"""Read all images of a folder or dataset, and compute their features batch by batch.

n images, F coordinates.
"""

import contextlib
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from smi.data.folders import FileSet
from smi.data.given import Given, as_path
from smi.data.remote import is_url
from smi.data.sources import ArraySet, ImageSet, Source
from smi.data.store import open_store
from smi.device import Precision, Runtime
from smi.evaluation.features import batches_of_features
from smi.files import cache_home
from smi.inference.neighbours_sheet import Tile, thumbnail, thumbnail_of_file
from smi.runs.encoder import Pretrained
from smi.terminal import Progress, announce, printable

EMBED_BATCH_SIZE = 256
MAX_NAMED_FILES = 3  # files that a warning lists

FeatureBatches = Generator[tuple[Tensor, Tensor], None, None]  # h [N, F] and its images [N]


def find_images(data: Given, encoder: Pretrained, runtime: Runtime) -> tuple[ImageSet, ...]:
    """Find all images of a folder, dataset or other source."""
    root = runtime.root or encoder.root  # the folder of the run's own dataset
    return Source(as_path(data), Path(root) if root else None, encoder.value_range).all_images()


class AllImages:
    """Read all images of a folder or dataset in order, over all splits, with their names.

    labels [n] is None unless every image has a label. value_range: scales images of more than 8
    bits; it is that of the encoder or, if it has none, of these images. Files are decoded when they
    are needed, and not cached.
    """

    def __init__(self, sets: Sequence[ImageSet], encoder: Pretrained, runtime: Runtime):
        self._sets = sets
        self.value_range = self._sets[0].value_range
        self._stores = [
            open_store(
                images,
                # arrays of pixels keep their size
                resolution=None if isinstance(images, ArraySet) else encoder.resolution,
                cache=cache_home(),
                num_workers=runtime.num_workers,
                max_bad_share=1,
                max_cache_bytes=0,
            )
            for images in self._sets
        ]
        self._starts = [0]  # place of the first image of each split
        for images in self._sets:
            self._starts.append(self._starts[-1] + len(images))
        labels = [images.labels for images in self._sets if images.labels is not None]
        self.labels = np.concatenate(labels) if len(labels) == len(self._sets) else None
        self.classes = self._sets[0].classes if self.labels is not None else None
        self.unreadable: list[int] = []  # places of files that could not be read so far

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def num_readable(self) -> int:
        """Return the number of images, without the files that could not be read so far."""
        return len(self) - len(self.unreadable)

    def name(self, place: int) -> str:
        """Return the path of an image relative to the folder, or train/0 in an array dataset."""
        split, row = self._locate(place)
        return self._sets[split].image_name(row)

    def label(self, place: int) -> str | None:
        """Return the name of an image's class, or None if the images have no labels."""
        if self.labels is None:
            return None
        label = self.labels[place]
        return self.classes[label] if self.classes is not None else str(label)

    def features(
        self,
        encoder: Pretrained,
        batch_size: int,
        device: torch.device,
        doing: str,
        precision: Precision = "float32",
    ) -> FeatureBatches:
        """Yield features float32 on the CPU and the places of their images, batch by batch.

        Unreadable files are left out: a store replaces them by other images, and the index shows
        where. doing: words for the progress bar.
        """
        with Progress(doing, len(self), "images") as progress:
            for start, store in zip(self._starts, self._stores, strict=False):
                row = 0
                batches = batches_of_features(
                    encoder,
                    store,
                    mean=encoder.mean,
                    std=encoder.std,
                    size=encoder.image_size,
                    batch_size=batch_size,
                    device=device,
                    precision=precision,
                )
                with contextlib.closing(batches):
                    for h, index in batches:
                        readable = index == torch.arange(row, row + len(index))
                        place = torch.arange(start + row, start + row + len(index))
                        self.unreadable += place[~readable].tolist()
                        row += len(index)
                        progress.advance(len(index))
                        yield h.float().cpu()[readable], place[readable]

    def tile(self, place: int, similarity: float) -> Tile:
        """Return an image and its caption for a contact sheet; the file is read again."""
        split, row = self._locate(place)
        images = self._sets[split]
        picture = (
            thumbnail_of_file(Path(images.location(row)), self.value_range)
            if isinstance(images, FileSet) and not is_url(images.location(row))
            else thumbnail(self._stores[split][[row]][0])
        )
        label = self.label(place)
        caption = f"{similarity:.3f}" + (f"  {label}" if label is not None else "")
        return Tile(picture, self.name(place), caption)

    def places_of(self, file: Path) -> list[int]:
        """Return the places of a file in this order; links can give it several."""
        try:
            info = file.stat()
        except OSError:
            return []
        places = []
        for start, images in zip(self._starts, self._sets, strict=False):
            if isinstance(images, FileSet):
                for i, entry in enumerate(images.entries):
                    # Few files agree in size and time, so few are compared on the disk.
                    alike = entry.size == info.st_size and entry.mtime_ns == info.st_mtime_ns
                    if alike and is_same_file(Path(images.location(i)), file):
                        places.append(start + i)
        return places

    def warn_unreadable(self) -> None:
        """Print a warning that names files which could not be read."""
        if not self.unreadable:
            return
        reasons = {bad.path: bad.reason for store in self._stores for bad in store.bad}
        names = [self.name(place) for place in self.unreadable]
        shown = ", ".join(
            f"{printable(name)} ({printable(reasons.get(name, 'unreadable'))})"
            for name in names[:MAX_NAMED_FILES]
        )
        num_more = len(names) - MAX_NAMED_FILES
        more = f" and {num_more:,} more" if num_more > 0 else ""
        files = (
            "1 file cannot be read as an image and is"
            if len(names) == 1
            else f"{len(names):,} files cannot be read as images and are"
        )
        announce(f"warning: {files} left out: {shown}{more}")

    def _locate(self, place: int) -> tuple[int, int]:
        """Return the split of an image and its row in it."""
        split = next(split for split, end in enumerate(self._starts[1:]) if place < end)
        return split, place - self._starts[split]

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    def __enter__(self) -> "AllImages":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def is_same_file(first: Path, second: Path) -> bool:
    """Return whether two paths lead to the same file."""
    try:
        return os.path.samefile(first, second)
    except OSError:  # one of them does not exist
        return False


def describe_encoder(encoder: Pretrained, source: str | Path) -> str:
    """Return the path of an encoder, with its method and epoch if they are recorded.

    source: as the caller named it, which describes an encoder of timm; that has no path.
    """
    path = encoder.source if encoder.source.exists() else source
    method, epoch = encoder.about.get("method"), encoder.about.get("epoch")
    facts = [method] if method else []
    facts += [f"epoch {epoch:g}"] if epoch is not None else []
    facts += ["mean with its start"] if "share" in encoder.about else []
    return printable(str(path)) + (f" ({', '.join(facts)})" if facts else "")
