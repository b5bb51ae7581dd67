"""Present many shards as one dataset.

shards = find_shards(["shards/train-000000.tar", "shards/val-000000.tar"], "name", "shards")
shards.train, shards.val            # sets of images, with names and labels from the headers
"""

import contextlib
import functools
import hashlib
import itertools
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder import Target, ValueRange
from smi.data.folders import VAL_FOLDERS, JobGroup, Split, number_labels
from smi.data.remote import LostError
from smi.data.shard_files import (
    MAX_SAMPLE,
    OpenShard,
    Shard,
    contents,
    open_shard,
    range_file,
    read_names,
    scratch_name,
)
from smi.data.shard_index import NUM_THREADS, read_class_names, read_index
from smi.errors import UserError
from smi.files import cache_home, temporary_folder

SHARD_SUFFIXES = (".tar", ".parquet")
MAX_SAMPLED_SHARDS = 8  # until one can be read


@dataclass(frozen=True)
class ShardSet:
    """List the shards of one split of a dataset. Image i is row i - starts[s] of shard s."""

    name: str
    split: Split
    root: str
    shards: tuple[Shard, ...]
    family: tuple[tuple[Shard, ...], ...]  # those of all splits, which have the same classes
    class_names: tuple[str, ...] | None = None  # if the index or the schema tells them
    is_labelled: bool = True  # or labels are not looked for
    value_range: ValueRange | None = None  # the values that become 0 and 255, of more than 8 bits

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """Return the first image of every shard, and the number of all images: [S + 1]."""
        return np.cumsum([0, *(shard.num_images for shard in self.shards)], dtype=np.int64)

    @functools.cached_property
    def _table(self) -> tuple[list[str], list[str | None]]:
        """Return the names and labels of all images, from the headers of all shards."""
        tables = _read_all_names(self.shards)
        names = [name for part, _ in tables for name in part]
        return names, [label for _, part in tables for label in part]

    @functools.cached_property
    def _labelling(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
        """Return the labels of images and the names of classes, which all splits share."""
        if not self.is_labelled:
            return None, None
        classes = self.class_names
        if classes is None:
            tables = _read_all_names([shard for split in self.family for shard in split])
            words = [word for _, labels in tables for word in labels]
            _, classes = number_labels([word for word in words if word is not None])
        return number_labels(self._table[1], classes or ())

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Return the labels, or None if an image has none."""
        return self._labelling[0]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the names of classes, or None if an image has no label."""
        return self._labelling[1]

    def without_labels(self) -> "ShardSet":
        """Return the images to pretrain on."""
        return replace(self, split="pretrain", is_labelled=False)

    def image_name(self, i: int) -> str:
        """Return the name of an image in its shard."""
        return self._table[0][i]

    def locate(self, i: int) -> tuple[int, int]:
        """Return the shard of an image, and its row in it."""
        shard = int(np.searchsorted(self.starts, i, side="right")) - 1
        return shard, i - int(self.starts[shard])

    def job_groups(self) -> Iterator[JobGroup]:
        """Yield the jobs that decode all images, shard by shard; the next is fetched meanwhile."""
        folder = _made(cache_home() / "shards")
        with temporary_folder(folder, "shards-") as scratch, ThreadPoolExecutor(1) as thread:
            following = thread.submit(open_shard, self.shards[0], scratch)
            for number in range(len(self.shards)):
                opening = following
                if number + 1 < len(self.shards):
                    following = thread.submit(open_shard, self.shards[number + 1], scratch)
                yield from self._groups_of(number, opening)
                for file in scratch.glob(f"{scratch_name(self.shards[number])}*"):
                    file.unlink()

    def _groups_of(self, number: int, opening: "Future[OpenShard]") -> Iterator[JobGroup]:
        first, end = int(self.starts[number]), int(self.starts[number + 1])
        try:
            opened = opening.result()
        except LostError as error:
            yield range(first, end), str(error)
            return
        count = min(len(opened), end - first)
        yield [(first + row, opened.target(row)) for row in range(count)]
        if first + count < end:
            yield range(first + count, end), f"{self.shards[number].location} has fewer images"

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Hash the location, size and version of every shard."""
        for shard in self.shards:
            digest.update(os.fsencode(f"\0{shard.location}\0{shard.num_bytes} {shard.version}"))

    def sample(self, count: int) -> Iterator[Target | bytes]:
        """Yield the first images of the first shard that can be read."""
        for shard in self.shards[:MAX_SAMPLED_SHARDS]:
            with contextlib.suppress(LostError, OSError, tarfile.TarError, ValueError):
                with range_file(shard) as source:
                    images = contents(shard, source)
                    first = list(itertools.islice(images, min(count, MAX_SAMPLE)))
                if first:
                    yield from first
                    return

    def head(self, count: int) -> "ShardSet":
        """Return the first shards, with as many images or a few more; other splits likewise."""
        family = tuple(_first(shards, count) for shards in self.family)
        return replace(self, shards=_first(self.shards, count), family=family)


def _first(shards: tuple[Shard, ...], count: int) -> tuple[Shard, ...]:
    """Return the first shards, with `count` images or a few more."""
    ends = np.cumsum([shard.num_images for shard in shards])
    return shards[: int(np.searchsorted(ends, count)) + 1]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _read_all_names(shards: Sequence[Shard]) -> list[tuple[list[str], list[str | None]]]:
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return list(threads.map(read_names, shards))


@dataclass(frozen=True)
class Shards:
    """Hold the shards of a source by split."""

    root: str
    train: ShardSet
    val: ShardSet | None

    def split(self, split: Split) -> ShardSet:
        """Return the shards of a split; pretraining uses those of train."""
        if split != "val":
            return self.train
        if self.val is None:
            raise UserError(
                f"{self.root} has no shards to validate on, named such as val-000.tar or "
                "test-000.parquet; --data.validation 0.1 holds out some of the images"
            )
        return self.val


def find_shards(locations: Sequence[str], name: str, root: str) -> Shards:
    """Sort shards into splits by their names.

    A shard whose name or folder is val, validation or test is not trained on. Of these, val is
    used first.
    """
    kinds: dict[str, list[str]] = {}
    for location in locations:
        words = re.split(r"[^a-z]+", location.removeprefix(root).lower())
        kind = next((kind for kind in VAL_FOLDERS if kind in words), "train")
        kinds.setdefault(kind, []).append(location)
    if "train" not in kinds:  # all are called test, say: they are meant
        kinds = {"train": list(locations)}
    index = {shard.location: shard for shard in read_index(locations)}
    val = next((kind for kind in VAL_FOLDERS if kind in kinds), None)
    used = [kinds["train"], *([kinds[val]] if val else [])]
    family = tuple(tuple(index[location] for location in part) for part in used)
    classes = read_class_names(family[0][0], locations)
    if not sum(shard.num_images for shard in family[0]):
        raise UserError(f"the shards of {root} hold no images")

    def part(split: Split, shards: tuple[Shard, ...]) -> ShardSet:
        return ShardSet(name, split, root, shards, family, classes)

    return Shards(root, part("train", family[0]), part("val", family[1]) if val else None)
