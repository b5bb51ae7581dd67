"""Read shards: WebDataset tar files and Parquet files with the bytes of images.

    index = read_index(["shards/000000.tar", "shards/000001.tar"])      # how many images each has
    shard = open_shard(index[0], scratch)                               # where each of them is
    shard.path, shard.start[0], shard.size[0], shard.name(0)

A tar shard of the disk is read in place. One behind a URL is copied to the disk first, and the
images of a Parquet file are written one after another into a file of bytes. Members of a tar file
whose names agree up to the first dot belong together: 0001.jpg and 0001.cls, a label.

The number of images comes from shards.json beside the shards, as `smi shard` writes it. Where it is
missing, headers are read, by ranges if they are behind a URL, and the numbers kept in the cache.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder import Target, ValueRange
from smi.data.folders import VAL_FOLDERS, JobGroup, Split, number_labels
from smi.data.listing import SUFFIXES
from smi.data.remote import (
    File,
    LostError,
    describe,
    fetch,
    has_ranges,
    is_url,
    list_files,
    read,
    refuse_full_disk,
)
from smi.errors import UserError
from smi.files import cache_home, lock, write_json
from smi.terminal import Progress

INDEX = "shards.json"
SHARD_SUFFIXES = (".tar", ".parquet")
NUM_THREADS = 8  # that read headers behind URLs
SHARDS_PER_SAVE = 200  # after as many headers, the index is kept
HEADER_BYTES = 16_384  # read at once: a header, the next ones if images are small, and labels
MAX_SAMPLE = 64  # images read to estimate their size
MAX_SAMPLED_SHARDS = 8  # until one can be read
MAX_LABEL_LENGTH = 200
MAX_JSON_BYTES = 10**6  # of the description of an image
IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp", "bytes")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls")

Key = tuple[str, int, str]  # location, bytes and version of a shard


@dataclass(frozen=True)
class Shard(File):
    """Describe a shard."""

    num_images: int


@dataclass(frozen=True)
class OpenShard:
    """Say where the images of a shard are: in bytes of one file of this machine."""

    path: Path
    start: NDArray[np.int64]  # [n]
    size: NDArray[np.int64]  # [n]
    names: list[str]
    labels: list[str | None]

    def __len__(self) -> int:
        return len(self.start)

    def target(self, row: int) -> Target:
        """Return what a decoder reads for an image."""
        return str(self.path), int(self.start[row]), int(self.size[row])


# ------ the index


def read_index(locations: Sequence[str]) -> list[Shard]:
    """Return the size and the number of images of every shard.

    A shard that cannot be found is an error, unless shards.json describes it: then it is lost when
    it is needed.
    """
    written = _read_written(locations)
    files = _describe_all(locations, written)
    known = {
        (file.location, file.num_bytes, file.version): written[file.location][1]
        for file in files
        if written.get(file.location, (None,))[0] == file.num_bytes
    }
    path = _kept_path(files)
    with contextlib.ExitStack() as stack:
        if len(known) < len(files):
            with contextlib.suppress(OSError):  # a cache that cannot be written has no lock
                waiting = "waiting for another process that reads the headers of shards"
                stack.enter_context(lock(path.with_suffix(".lock"), waiting))
        known = _read_kept(path) | known
        missing = [file for file in files if _key(file) not in known]
        with (
            Progress("reading headers of", len(missing), "shards") as progress,
            ThreadPoolExecutor(NUM_THREADS) as threads,
        ):
            counts = threads.map(_count_images, missing)
            for number, (file, count) in enumerate(zip(missing, counts, strict=True), 1):
                known[_key(file)] = count
                progress.advance(1)
                if number % SHARDS_PER_SAVE == 0 or number == len(missing):
                    _keep(path, known)
    return [Shard(f.location, f.num_bytes, f.version, known[_key(f)]) for f in files]


def _describe_all(locations: Sequence[str], written: Mapping[str, tuple[int, int]]) -> list[File]:
    """Return the sizes of files; those of a folder behind a URL are listed at once."""
    listed: dict[str, File] = {}
    for folder in sorted({location.rpartition("/")[0] for location in locations}):
        if is_url(folder) and not folder.startswith("http"):  # web servers have no lists
            with contextlib.suppress(LostError):
                listed |= {file.location: file for _, file in list_files(folder)}

    def find(location: str) -> File:
        try:
            return listed.get(location) or describe(location)
        except (LostError, OSError) as error:
            if location in written:
                return File(location, written[location][0], "")
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"the shard {location} cannot be read: {reason}") from error

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return list(threads.map(find, locations))


def _key(file: File) -> Key:
    return file.location, file.num_bytes, file.version


def _read_indices(locations: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folders of shards and their shards.json, where there is one."""
    for folder in sorted({location.rpartition("/")[0] for location in locations}):
        with contextlib.suppress(LostError, OSError, ValueError, RecursionError):
            index = json.loads(read(f"{folder}/{INDEX}" if folder else INDEX))
            if isinstance(index, dict):
                yield folder, index


def _read_written(locations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the bytes and images of shards that shards.json tells, by location."""
    known = {}
    for folder, index in _read_indices(locations):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            for shard in index["shards"]:
                location = f"{folder}/{shard['name']}" if folder else str(shard["name"])
                known[location] = int(shard["bytes"]), int(shard["images"])
    return known


def _kept_path(files: Sequence[File]) -> Path:
    folders = sorted({file.location.rpartition("/")[0] for file in files})
    digest = hashlib.sha256("\0".join(folders).encode(errors="surrogateescape")).hexdigest()[:24]
    return cache_home() / "shards" / f"{digest}.json"


def _read_kept(path: Path) -> dict[Key, int]:
    try:
        kept = json.loads(path.read_text())["shards"]
        return {(str(place), int(size), str(v)): int(count) for place, size, v, count in kept}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _keep(path: Path, known: Mapping[Key, int]) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written is done without
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"shards": [[*key, count] for key, count in known.items()]})


def _count_images(file: File) -> int:
    """Return the number of images of a shard from its headers."""
    try:
        with _range_file(file) as source:
            if file.location.endswith(".parquet"):
                return int(_parquet(source).metadata.num_rows)
            return sum(1 for _ in _tar_images(source))
    except (LostError, OSError, tarfile.TarError, ValueError) as error:
        raise UserError(f"the shard {file.location} cannot be read: {error}") from error


class _Ranges(io.RawIOBase):
    """Read a file by ranges, a window at a time."""

    def __init__(self, file: File):
        self._file = file
        self._position = 0
        self._window = b""
        self._window_start = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.num_bytes}
        self._position = base[whence] + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._file.num_bytes if size < 0 else self._position + size
        end = min(end, self._file.num_bytes)
        window_end = self._window_start + len(self._window)
        if not self._window_start <= self._position <= end <= window_end:
            stop = min(max(end, self._position + HEADER_BYTES), self._file.num_bytes)
            self._window = (
                read(self._file.location, self._position, stop) if stop > self._position else b""
            )
            self._window_start = self._position
        data = self._window[
            self._position - self._window_start : max(end, self._position) - self._window_start
        ]
        self._position += len(data)
        return data


def _range_file(file: File) -> Any:
    """Open a file to read parts of it; copy it first if its server sends it whole only."""
    if not is_url(file.location):
        return open(file.location, "rb")
    if has_ranges(file):
        return _Ranges(file)
    with tempfile.TemporaryDirectory() as folder:
        fetch(file, Path(folder, "shard"))
        return Path(folder, "shard").open("rb")  # which outlives its name


# ------ tar files


@dataclass(frozen=True)
class _Member:
    name: str
    start: int
    size: int
    label: str | None


def _tar_images(source: Any) -> Iterator[_Member]:
    """Yield the images of a tar file with their labels, in its order.

    Of several images with one key, the first is used.
    """
    with tarfile.open(fileobj=source, mode="r:") as archive:
        key: str | None = None
        image: tuple[str, int, int] | None = None
        about = _About()
        for member in archive:
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            stem, _, suffix = base.partition(".")
            if (member_key := f"{folder}/{stem}") != key:
                if image is not None:
                    yield about.member(*image)
                key, image, about = member_key, None, _About()
            if os.path.splitext(base)[1].lower() in SUFFIXES and image is None:
                image = (member.name, member.offset_data, member.size)
            elif suffix in ("cls", "json") and member.size <= MAX_JSON_BYTES:
                data = archive.extractfile(member)
                about.read(suffix, data.read() if data is not None else b"")
        if image is not None:
            yield about.member(*image)


def _as_word(label: object) -> str | None:
    """Return a label as a word; numbers below 0 and other values stand for no label."""
    if isinstance(label, bool) or not isinstance(label, int | str):
        return None
    word = str(label).strip() if isinstance(label, str) or label >= 0 else ""
    return word[:MAX_LABEL_LENGTH] or None


class _About:
    """Collect what .cls and .json members say about an image: its label and its path."""

    def __init__(self) -> None:
        self._label: str | None = None
        self._path: str | None = None

    def read(self, suffix: str, data: bytes) -> None:
        try:
            value = json.loads(data) if suffix == "json" else data.decode().strip()
        except (ValueError, RecursionError):
            return
        if suffix == "cls" and self._label is None:
            self._label = _as_word(value)
        elif isinstance(value, dict):
            path = value.get("path")
            self._label = _as_word(value.get("label")) or self._label
            self._path = path if isinstance(path, str) else None

    def member(self, name: str, start: int, size: int) -> _Member:
        return _Member(self._path or name, start, size, self._label)


# ------ Parquet files


def _parquet(source: Any) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError("Parquet needs pyarrow: pip install 'smi-ssl[parquet]'") from error
    try:
        return ParquetFile(source)
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _image_column(schema: Any, location: str) -> str:
    """Return the column of images: Hugging Face's struct of bytes and path, or plain bytes."""
    import pyarrow as pa

    for field in schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    for field in schema:
        is_binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
        if is_binary and field.name.lower() in IMAGE_COLUMNS:
            return str(field.name)
    raise UserError(
        f"{location} has no column with the bytes of images ({', '.join(schema.names)})"
    )


def parquet_classes(file: File) -> tuple[str, ...] | None:
    """Return the names of classes that Hugging Face writes into the schema of a Parquet file."""
    try:
        with _range_file(file) as source:
            schema = _parquet(source).schema_arrow
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        (names,) = (features[name]["names"] for name in LABEL_COLUMNS if name in features)
        return tuple(map(str, names))
    except (LostError, OSError, KeyError, TypeError, ValueError):
        return None


def _extract_parquet(file: File, source: Path, target: Path) -> OpenShard:
    """Write the bytes of all images of a Parquet file one after another."""
    table = _parquet(source)
    column = _image_column(table.schema_arrow, file.location)
    label_column = next((n for n in LABEL_COLUMNS if n in table.schema_arrow.names), None)
    sizes: list[int] = []
    names: list[str] = []
    labels: list[str | None] = []
    base = file.location.rpartition("/")[2]
    partial = target.with_name(f"{target.name}.partial")
    with partial.open("wb") as out:
        for batch in table.iter_batches(
            64, columns=[column, *([label_column] if label_column else [])]
        ):
            for value in batch.column(0).to_pylist():
                data = value.get("bytes") if isinstance(value, dict) else value
                name = value.get("path") if isinstance(value, dict) else None
                names.append(str(name) if name else f"{base}/{len(names)}")
                sizes.append(out.write(data or b""))
            if label_column:
                labels += map(_as_word, batch.column(1).to_pylist())
    partial.replace(target)
    ends = np.cumsum(sizes, dtype=np.int64)
    return OpenShard(
        target,
        ends - np.array(sizes, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        names,
        labels or [None] * len(names),
    )


# ------ the images of one shard


def open_shard(shard: File, scratch: Path, stopped: Callable[[], bool] = bool) -> OpenShard:
    """Return where the images of a shard are, after copying it to a folder if it must be.

    Raises LostError if the shard cannot be read. stopped: when it returns True, so it is.
    """
    name = scratch_name(shard)
    try:
        path = Path(shard.location)
        if is_url(shard.location):
            path = scratch / name
            if not path.exists():
                fetch(shard, path, stopped)
        elif path.stat().st_size != shard.num_bytes:
            raise LostError(f"{shard.location}: it has changed")
        if shard.location.endswith(".parquet"):
            return _extract_parquet(shard, path, scratch / f"{name}.bytes")
        with path.open("rb") as source:
            members = list(_tar_images(source))
    except UserError:
        raise
    except (OSError, tarfile.TarError, ValueError) as error:
        refuse_full_disk(error, shard.location)
        raise LostError(f"{shard.location}: {error}") from error
    return OpenShard(
        path,
        np.array([member.start for member in members], dtype=np.int64),
        np.array([member.size for member in members], dtype=np.int64),
        [member.name for member in members],
        [member.label for member in members],
    )


def scratch_name(shard: File) -> str:
    """Return the name of a copied shard."""
    text = f"{shard.location}\0{shard.num_bytes}\0{shard.version}"
    digest = hashlib.sha256(os.fsencode(text))
    return digest.hexdigest()[:24]


def needs_scratch(shard: File) -> bool:
    """Return whether a shard is copied before it is read."""
    return is_url(shard.location) or shard.location.endswith(".parquet")


# ------ the images of several shards


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
        scratch = Path(tempfile.mkdtemp(prefix="shards-", dir=_made(cache_home() / "shards")))
        try:
            with ThreadPoolExecutor(1) as thread:
                following = thread.submit(open_shard, self.shards[0], scratch)
                for number in range(len(self.shards)):
                    opening = following
                    if number + 1 < len(self.shards):
                        following = thread.submit(open_shard, self.shards[number + 1], scratch)
                    yield from self._groups_of(number, opening)
                    for file in scratch.glob(f"{scratch_name(self.shards[number])}*"):
                        file.unlink()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

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
                with _range_file(shard) as source:
                    found = _contents(shard, source)
                    contents = list(itertools.islice(found, min(count, MAX_SAMPLE)))
                if contents:
                    yield from contents
                    return

    def head(self, count: int) -> "ShardSet":
        """Return the first shards, with as many images or a few more; other splits likewise."""
        family = tuple(_first(shards, count) for shards in self.family)
        return replace(self, shards=_first(self.shards, count), family=family)


def _first(shards: tuple[Shard, ...], count: int) -> tuple[Shard, ...]:
    """Return the first shards, with `count` images or a few more."""
    ends = np.cumsum([shard.num_images for shard in shards])
    return shards[: int(np.searchsorted(ends, count)) + 1]


def _contents(shard: Shard, source: Any) -> Iterator[bytes]:
    """Yield the bytes of images of an open shard, from the first on."""
    if shard.location.endswith(".parquet"):
        table = _parquet(source)
        column = _image_column(table.schema_arrow, shard.location)
        for batch in table.iter_batches(16, columns=[column]):
            for value in batch.column(0).to_pylist():
                yield (value.get("bytes") if isinstance(value, dict) else value) or b""
        return
    for member in list(itertools.islice(_tar_images(source), MAX_SAMPLE)):
        source.seek(member.start)
        yield source.read(member.size)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _read_all_names(shards: Sequence[Shard]) -> list[tuple[list[str], list[str | None]]]:
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return list(threads.map(_read_names, shards))


@functools.lru_cache(maxsize=4096)  # shards
def _read_names(shard: Shard) -> tuple[list[str], list[str | None]]:
    """Return the names and labels of the images of a shard; numbers if it cannot be read."""
    base = shard.location.rpartition("/")[2]
    names = [f"{base}/{row}" for row in range(shard.num_images)]
    labels: list[str | None] = [None] * shard.num_images
    try:
        with _range_file(shard) as source:
            if shard.location.endswith(".parquet"):
                found: list[tuple[str, str | None]] = list(
                    zip(names, _parquet_labels(shard, source), strict=False)
                )
            else:
                found = [(member.name, member.label) for member in _tar_images(source)]
    except UserError:
        raise
    except (LostError, OSError, tarfile.TarError, ValueError):
        return names, labels
    for row, (name, label) in enumerate(found[: shard.num_images]):
        names[row], labels[row] = name, label
    return names, labels


def _parquet_labels(shard: Shard, source: Any) -> list[str | None]:
    """Return the labels of a Parquet file: the names of Hugging Face's classes, or words."""
    table = _parquet(source)
    column = next((n for n in LABEL_COLUMNS if n in table.schema_arrow.names), None)
    if column is None:
        return [None] * shard.num_images
    values = table.read(columns=[column]).column(0).to_pylist()
    classes = parquet_classes(shard)
    if classes is None:
        return [_as_word(value) for value in values]
    known = range(len(classes))
    return [classes[value] if value in known else None for value in values]


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
    classes = _class_names(family[0][0], locations)
    if not sum(shard.num_images for shard in family[0]):
        raise UserError(f"the shards of {root} hold no images")

    def part(split: Split, shards: tuple[Shard, ...]) -> ShardSet:
        return ShardSet(name, split, root, shards, family, classes)

    return Shards(root, part("train", family[0]), part("val", family[1]) if val else None)


def _class_names(shard: Shard, locations: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of classes from shards.json or the schema of Parquet, if they tell them."""
    if shard.location.endswith(".parquet"):
        return parquet_classes(shard)
    for _, index in _read_indices(locations):
        classes = index.get("classes")
        if isinstance(classes, list) and all(isinstance(name, str) for name in classes):
            return tuple(classes)
    return None
