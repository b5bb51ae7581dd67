"""Describe a dataset, an array file or a folder, as `smi data` prints it, without torch.

print(describe_data("photos").text())
"""

import hashlib
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from smi.data.arrays import is_array_file, read_arrays
from smi.data.cache import FILE_RESOLUTION, cache_bytes, decode_all, is_cached
from smi.data.decoder import BadFile, Decoded, ImageInfo, ValueRange, source_of
from smi.data.decoder_pool import Job, num_cores
from smi.data.download import download
from smi.data.folders import HELD_OUT_SHARE, MAX_BAD_SHARE, FileSet, Folder
from smi.data.remote import join, read
from smi.data.shards import Shards
from smi.data.sources import ARCHIVES, DATASET_NAMES, ArraySet, find, resolve_source
from smi.data.value_range import range_of_files
from smi.files import cache_home
from smi.terminal import printable, quietly

NUM_SAMPLED_IMAGES = 64  # of shards, for their sizes
MAX_LABELS_READ = 1_000_000  # of shards, from their headers
MAX_ITEMS_SHOWN = 10  # of a long list in the text; JSON has all of them
CHECK_RESOLUTION = 32  # pixels: enough to decode a file to its end, small enough to be quick

FORMAT_OF_SUFFIX = {  # all other suffixes are JPEG's
    ".bmp": "BMP",
    ".dib": "BMP",
    ".gif": "GIF",
    ".png": "PNG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}


def describe_data(
    target: str | Path, *, root: Path | None = None, quiet: bool = False
) -> "DatasetDescription | FolderDescription | ShardsDescription":
    """Describe a named dataset, downloading it if it is missing, or any other source of images.

    describe_data("cifar10").text()
    describe_data("photos").plain()["unreadable"]

    root: the folder of named datasets; None is `data` in smi's cache folder.
    quiet: print neither progress nor status.
    """
    with quietly(quiet):
        if target in DATASET_NAMES:
            return describe_dataset(str(target), root)
        if is_array_file(target):
            return describe_arrays(target)
        found = find(target, root)
        return describe_shards(found) if isinstance(found, Shards) else describe_folder(found)


# ------ named datasets


@dataclass(frozen=True)
class DatasetDescription:
    """Describe a named dataset or an array file."""

    name: str
    path: str | None
    pretraining_images: int
    splits: dict[str, int]
    classes: tuple[str, ...] | None
    pixels: int | None  # of a side; None if the files have different sizes
    value_range: ValueRange | None = None  # what becomes 0 and 255, of more than 8 bits

    def plain(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    def text(self) -> str:
        """Format the description for a terminal."""
        size = f"{self.pixels} x {self.pixels} pixels" if self.pixels else "files of any size"
        lines = [
            f"{self.name}: {size}",
            f"  location    {self.path or 'comes with scikit-learn, nothing to download'}",
            f"  splits      {_counts_text(self.splits)}",
            f"  classes     {_class_names_text(self.classes)}",
            *_range_text(self.value_range),
            "",
            f"Pretraining would use {self.pretraining_images:,} images, without their labels.",
        ]
        return "\n".join(map(printable, lines))


def describe_dataset(name: str, root: Path | None = None) -> DatasetDescription:
    """Describe a named dataset; download it if it is missing."""
    path = str(download(name, root)) if name in ARCHIVES else None
    train = resolve_source(name, "train", root)
    val = resolve_source(name, "val", root)
    num_pretraining = len(resolve_source(name, "pretrain", root))
    pixels = None
    if isinstance(train, ArraySet):
        pixels = train.parts[0].shape[-1]
    else:
        path = str(train.root)
    return DatasetDescription(
        name=name,
        path=path,
        pretraining_images=num_pretraining,
        splits={"train": len(train), "val": len(val)},
        classes=train.classes,
        pixels=pixels,
    )


def describe_arrays(target: str | Path) -> DatasetDescription:
    """Describe an array file."""
    file = read_arrays(target)
    return DatasetDescription(
        name=file.train.name,
        path=str(file.path),
        pretraining_images=len(file.train),
        splits={"train": len(file.train)} | ({"val": len(file.val)} if file.val else {}),
        classes=file.train.classes,
        pixels=file.train.parts[0].shape[-1],
        value_range=file.train.value_range,
    )


# ------ folders


@dataclass(frozen=True)
class FolderDescription:
    """Describe a folder of images. Paths are relative to the folder."""

    path: str
    num_files: int
    num_bytes: int
    splits: dict[str, int]
    held_out: bool  # val is a part of the folder that is held out from pretraining
    classes: dict[str, int] | None  # the number of images of each class, over all splits
    formats: dict[str, int]
    modes: dict[str, int]
    sides: tuple[int, float, int] | None  # minimum, median, maximum of the shorter side, in pixels
    value_range: ValueRange | None  # what becomes 0 and 255, of more than 8 bits
    unreadable: list[BadFile]
    unreadable_of: dict[str, int]  # the number of them in each split
    misnamed: list[BadFile]
    duplicates: list[list[str]]  # groups of files with the same bytes
    across_splits: int  # the number of those groups with files in train and in val
    ignored: list[str]
    unused: int  # images in neither split
    pretraining_images: int
    resolution: int
    cached: bool
    cache_bytes: int  # an estimate

    def plain(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    def text(self) -> str:
        """Format the description for a terminal."""
        lines = [*self._contents(), *self._problems(), "", *self._conclusion()]
        return "\n".join(map(printable, lines))

    def _contents(self) -> list[str]:
        share = f"{HELD_OUT_SHARE:.0%}"
        held_out = f" (val: about {share} of each class, held out by a hash of the path)"
        return [
            self.path,
            f"  files       {self.num_files:,} named like images, {self.num_bytes / 1e6:,.1f} MB",
            f"  formats     {_counts_text(self.formats)}",
            f"  modes       {_counts_text(self.modes)}",
            f"  sizes       {_sides_text(self.sides)}",
            *_range_text(self.value_range),
            f"  splits      {_counts_text(self.splits)}{held_out if self.held_out else ''}",
            f"  classes     {_class_counts_text(self.classes)}",
        ]

    def _problems(self) -> list[str]:
        num_repeated = sum(map(len, self.duplicates)) - len(self.duplicates)
        across = f"; {self.across_splits:,} images are in train and in val"
        unused = f", and {self.unused:,} images outside train/ and val/"
        return [
            f"  unreadable  {len(self.unreadable):,}",
            *_indented(f"{bad.path}: {bad.reason}" for bad in self.unreadable),
            f"  misnamed    {len(self.misnamed):,}",
            *_indented(f"{bad.path} {bad.reason}" for bad in self.misnamed),
            f"  duplicates  {num_repeated:,} files repeat another"
            + (across if self.across_splits else ""),
            *_indented(" = ".join(group) for group in self.duplicates),
            f"  others      {len(self.ignored):,} ignored" + (unused if self.unused else ""),
            *_indented(self.ignored),
        ]

    def _conclusion(self) -> list[str]:
        if len(self.unreadable) == self.num_files:
            return ["Pretraining would stop: none of these files can be read."]
        decoding = (
            f"decoded once into a cache of about {self.cache_bytes / 1e6:,.0f} MB"
            if self.cached
            else "decoded whenever they are read, because a cache would take about "
            f"{self.cache_bytes / 1e9:,.0f} GB"
        )
        lines = [
            f"Pretraining would use {self.pretraining_images:,} images at {self.resolution} px, "
            f"{decoding}, without their labels."
        ]
        for split, command in {"train": "Pretraining", "val": "Evaluation"}.items():
            num_bad, num_files = self.unreadable_of.get(split, 0), self.splits.get(split, 0)
            if num_bad > MAX_BAD_SHARE * num_files:
                lines.append(
                    f"{command} would stop, because {num_bad:,} of the {num_files:,} files of "
                    f"{split} are unreadable, more than {MAX_BAD_SHARE:.0%}: repair or remove them."
                )
        if self.classes is None:
            lines.append("There are no labels: everything except accuracy works without them.")
        return lines


# ------ shards


@dataclass(frozen=True)
class ShardsDescription:
    """Describe shards, from their index and the first images."""

    path: str
    num_shards: int
    num_bytes: int
    splits: dict[str, int]
    classes: tuple[str, ...] | None
    sides: tuple[int, float, int] | None  # of the first images
    pretraining_images: int
    cached: bool
    resolution: int = FILE_RESOLUTION  # of decoded images

    def plain(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    def text(self) -> str:
        """Format the description for a terminal."""
        reading = (
            f"decoded once into a cache at {self.resolution} px"
            if self.cached
            else "read some shards at a time, because a cache would be too large"
        )
        lines = [
            f"{self.path}: {self.num_shards:,} shards, {self.num_bytes / 1e6:,.0f} MB",
            f"  sizes       {_sides_text(self.sides)}, of the first images",
            f"  splits      {_counts_text(self.splits)}",
            f"  classes     {_class_names_text(self.classes)}",
            "",
            f"Pretraining would use {self.pretraining_images:,} images, {reading}.",
        ]
        return "\n".join(map(printable, lines))


def describe_shards(shards: Shards) -> ShardsDescription:
    """Describe shards without decoding more than the first images."""
    parts = [shards.train, *([shards.val] if shards.val is not None else [])]
    sides = []
    for content in shards.train.sample(NUM_SAMPLED_IMAGES):
        try:
            sides.append(min(Image.open(source_of(content)).size))
        except Exception:  # a damaged image can raise anything
            continue
    train = shards.train
    return ShardsDescription(
        path=shards.root,
        num_shards=sum(len(part.shards) for part in parts),
        num_bytes=sum(shard.num_bytes for part in parts for shard in part.shards),
        splits={part.split: len(part) for part in parts},
        classes=train.classes if len(train) <= MAX_LABELS_READ else None,
        sides=(min(sides), statistics.median(sides), max(sides)) if sides else None,
        pretraining_images=len(train),
        cached=is_cached(train, FILE_RESOLUTION, cache_home() / "images"),
    )


# ------ folders


def describe_folder(folder: Folder) -> FolderDescription:
    """Read and decode every file of a folder, on all cores, and describe them."""
    train = replace(folder.train, value_range=range_of_files(folder.train))
    splits = [folder.train, *([folder.val] if folder.val else [])]
    entries = [(files.split, entry) for files in splits for entry in files.entries]
    paths = [entry.path for _, entry in entries]
    jobs: list[Job] = [(row, join(str(folder.root), path)) for row, path in enumerate(paths)]
    decoded = decode_all(
        -1,
        CHECK_RESOLUTION,
        [jobs],
        len(jobs),
        num_cores(),
        keep="square",
        value_range=train.value_range,
    )
    replies = dict(sorted(decoded))
    infos = {row: reply.info for row, reply in replies.items() if isinstance(reply, Decoded)}
    bad = {row: reply for row, reply in replies.items() if isinstance(reply, str)}
    sides = [min(info.width, info.height) for info in infos.values()]
    duplicates = _duplicates(folder, (paths[row] for row in infos))
    split_of = {entry.path: split for split, entry in entries}
    return FolderDescription(
        path=str(folder.root),
        num_files=len(entries),
        num_bytes=sum(entry.size for _, entry in entries),
        splits={files.split: len(files) for files in splits},
        held_out=folder.held_out,
        classes=_class_counts(splits),
        formats=_counts(info.format for info in infos.values()),
        modes=_counts(info.mode for info in infos.values()),
        sides=(min(sides), statistics.median(sides), max(sides)) if sides else None,
        value_range=train.value_range,
        unreadable=[BadFile(paths[row], reason) for row, reason in bad.items()],
        unreadable_of=dict(Counter(entries[row][0] for row in bad)),
        misnamed=_misnamed({paths[row]: info for row, info in infos.items()}),
        duplicates=duplicates,
        across_splits=sum(len({split_of[path] for path in group}) > 1 for group in duplicates),
        ignored=[entry.path for entry in folder.ignored],
        unused=folder.num_images - len(entries),
        pretraining_images=sum(entries[row][0] == "train" for row in infos),
        resolution=FILE_RESOLUTION,
        cached=is_cached(train, FILE_RESOLUTION, cache_home() / "images"),
        cache_bytes=cache_bytes(folder.train, FILE_RESOLUTION, "aspect"),
    )


def _class_counts(splits: list[FileSet]) -> dict[str, int] | None:
    counts: Counter[str] = Counter()
    for files in splits:
        if files.labels is not None and files.classes is not None:
            counts.update(files.classes[label] for label in files.labels)
    return dict(sorted(counts.items())) or None


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _misnamed(infos: dict[str, ImageInfo]) -> list[BadFile]:
    """List files with the suffix of another format."""
    misnamed = []
    for path, info in infos.items():
        expected = FORMAT_OF_SUFFIX.get(os.path.splitext(path)[1].lower(), "JPEG")
        if info.format.replace("MPO", "JPEG") != expected:
            misnamed.append(BadFile(path, f"is {info.format}"))
    return misnamed


def _duplicates(folder: Folder, paths: Iterable[str]) -> list[list[str]]:
    """Group files with the same bytes; only files of the same size are read again."""
    by_size = defaultdict(list)
    by_bytes = defaultdict(list)
    sizes = {entry.path: entry.size for entry in folder.entries}
    for path in paths:
        by_size[sizes[path]].append(path)
    for same_size in by_size.values():
        for path in same_size if len(same_size) > 1 else ():
            content = read(join(str(folder.root), path))
            by_bytes[hashlib.sha256(content).digest()].append(path)
    return sorted(sorted(group) for group in by_bytes.values() if len(group) > 1)


# ------ parts of the text


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"


def _class_names_text(classes: tuple[str, ...] | None) -> str:
    if classes is None:
        return "none named"
    more = ", ..." if len(classes) > MAX_ITEMS_SHOWN else ""
    return f"{len(classes):,}: {', '.join(classes[:MAX_ITEMS_SHOWN])}{more}"


def _range_text(value_range: ValueRange | None) -> list[str]:
    if value_range is None:
        return []
    low, high = value_range
    return [f"  values      {low:,.6g} to {high:,.6g} become 0 to 255"]


def _class_counts_text(classes: dict[str, int] | None) -> str:
    if classes is None:
        return "none (two or more folders of images, and no image beside them, would be classes)"
    fewest, most = min(classes.values()), max(classes.values())
    counts = _counts_text(dict(list(classes.items())[:MAX_ITEMS_SHOWN]))
    more = ", ..." if len(classes) > MAX_ITEMS_SHOWN else ""
    return f"{len(classes):,} of {fewest:,} to {most:,} images: {counts}{more}"


def _sides_text(sides: tuple[int, float, int] | None) -> str:
    if sides is None:
        return "none"
    return f"shorter side {sides[0]:,} to {sides[2]:,} px, median {sides[1]:,.0f}"


def _indented(items: Iterable[str]) -> list[str]:
    """Indent the first items below their heading, and count the rest."""
    items = list(items)
    lines = items[:MAX_ITEMS_SHOWN]
    if len(items) > MAX_ITEMS_SHOWN:
        lines.append(f"... and {len(items) - MAX_ITEMS_SHOWN:,} more (all with --json)")
    return [f"              {line}" for line in lines]
