"""Read one shard: a WebDataset tar file, or a Parquet file with the bytes of images.

    opened = open_shard(shard, scratch)                    # where each of its images is
    opened.path, opened.start[0], opened.size[0], opened.names[0]

A tar shard of the disk is read in place. One behind a URL is copied to the disk first, and the
images of a Parquet file are written one after another into a file of bytes. Members of a tar file
whose names agree up to the first dot belong together: 0001.jpg and 0001.cls, a label.
"""

import functools
import hashlib
import io
import itertools
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.data.decoder import Target
from smi.data.listing import SUFFIXES
from smi.data.remote import File, LostError, fetch, has_ranges, is_url, read, refuse_full_disk
from smi.errors import UserError

HEADER_BYTES = 16_384  # read at once: a header, the next ones if images are small, and labels
MAX_SAMPLE = 64  # images read to estimate their size
MAX_LABEL_LENGTH = 200
MAX_JSON_BYTES = 10**6  # of the description of an image
MAX_EXPANSION = 100  # bytes of values for each byte of Parquet: images are compressed already
# Errors of the readers of a damaged file; chains of headers in a tar file can be endless.
DAMAGE = (OSError, tarfile.TarError, ValueError, OverflowError, RecursionError, KeyError, TypeError)
IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp", "bytes")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls")


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


def open_shard(shard: File, scratch: Path, stopped: Callable[[], bool] = bool) -> OpenShard:
    """Return where the images of a shard are, after copying it to a folder if it must be.

    Raises LostError if the shard cannot be read. stopped: when it returns True, so it is.
    """
    name = scratch_name(shard)
    try:
        path = Path(shard.location)
        if is_url(shard.location):
            path = scratch / name
            if not path.exists() or path.stat().st_size != shard.num_bytes:  # after a power loss
                fetch(shard, path, stopped)
        elif path.stat().st_size != shard.num_bytes:
            raise LostError(f"{shard.location}: it has changed")
        if shard.location.endswith(".parquet"):
            return _extract_parquet(shard, path, scratch / f"{name}.bytes")
        with path.open("rb") as source:
            members = list(_tar_images(source, shard.num_bytes))
    except UserError:
        raise
    except DAMAGE as error:
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


def count_images(file: File) -> int:
    """Return the number of images of a shard from its headers."""
    try:
        with range_file(file) as source:
            if file.location.endswith(".parquet"):
                return _num_rows(_parquet(source), file.num_bytes)
            return sum(1 for _ in _tar_images(source, file.num_bytes))
    except UserError:
        raise
    except (LostError, *DAMAGE) as error:
        raise UserError(f"the shard {file.location} cannot be read: {error}") from error


@functools.lru_cache(maxsize=4096)  # shards
def read_names(shard: Shard) -> tuple[list[str], list[str | None]]:
    """Return the names and labels of the images of a shard; numbers if it cannot be read."""
    base = shard.location.rpartition("/")[2]
    names = [f"{base}/{row}" for row in range(shard.num_images)]
    labels: list[str | None] = [None] * shard.num_images
    try:
        with range_file(shard) as source:
            if shard.location.endswith(".parquet"):
                found: list[tuple[str, str | None]] = list(
                    zip(names, _parquet_labels(shard, source), strict=False)
                )
            else:
                members = _tar_images(source, shard.num_bytes)
                found = [(member.name, member.label) for member in members]
    except UserError:
        raise
    except (LostError, *DAMAGE):
        return names, labels
    for row, (name, label) in enumerate(found[: shard.num_images]):
        names[row], labels[row] = name, label
    return names, labels


def contents(shard: Shard, source: Any) -> Iterator[bytes]:
    """Yield the bytes of images of an open shard, from the first on."""
    if shard.location.endswith(".parquet"):
        table = _parquet(source)
        column = _image_column(table.schema_arrow, shard.location)
        for batch in table.iter_batches(16, columns=[column]):
            for value in batch.column(0).to_pylist():
                yield (value.get("bytes") if isinstance(value, dict) else value) or b""
        return
    for member in list(itertools.islice(_tar_images(source, shard.num_bytes), MAX_SAMPLE)):
        source.seek(member.start)
        yield source.read(member.size)


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


def range_file(file: File) -> Any:
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


def _tar_images(source: Any, num_bytes: int) -> Iterator[_Member]:
    """Yield the images of a tar file with their labels, in its order.

    Of several images with one key, the first is used. num_bytes: of the file, in which all images
    must lie.
    """
    with tarfile.open(fileobj=source, mode="r:") as archive:
        key: str | None = None
        image: tuple[str, int, int] | None = None
        about = _About()
        end = -1  # of the last header: a negative size would lead back to it for ever
        for member in archive:
            if member.offset <= end or member.size < 0:
                raise ValueError("its headers are damaged")
            end = member.offset
            if not member.isfile() or member.issparse():  # a sparse file is not stored as it is
                continue
            if member.offset_data + member.size > num_bytes:
                raise ValueError(f"it ends inside {member.name!r}")
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


def _num_rows(table: Any, num_bytes: int) -> int:
    """Return the number of rows of a Parquet file, or raise a ValueError for a false number."""
    metadata = table.metadata
    rows = int(metadata.num_rows)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    if not 0 <= rows <= num_bytes or rows != sum(group.num_rows for group in groups):
        raise ValueError(f"it claims {rows:,} rows in {num_bytes:,} bytes")
    if not 0 <= size <= MAX_EXPANSION * num_bytes + MAX_JSON_BYTES:
        raise ValueError(f"it claims {size:,} bytes of values in {num_bytes:,} bytes")
    return rows


def _parquet(source: Any) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError("Parquet needs pyarrow: pip install 'smi-ssl[parquet]'") from error
    try:
        return ParquetFile(source)
    except (ArrowException, RuntimeError, MemoryError) as error:
        raise ValueError(" ".join(str(error).split())) from error


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
        with range_file(file) as source:
            schema = _parquet(source).schema_arrow
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        (names,) = (features[name]["names"] for name in LABEL_COLUMNS if name in features)
        return tuple(map(str, names))
    except (LostError, OSError, KeyError, TypeError, ValueError):
        return None


def _extract_parquet(file: File, source: Path, target: Path) -> OpenShard:
    """Write the bytes of all images of a Parquet file one after another."""
    table = _parquet(source)
    _num_rows(table, source.stat().st_size)
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
