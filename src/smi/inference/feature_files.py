"""Write features to .npz, .parquet and .csv, with a few batches in memory at a time."""

import contextlib
import csv
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smi import __version__
from smi.device import Precision, versions
from smi.errors import UserError
from smi.inference.images import AllImages, FeatureBatches
from smi.runs.encoder import Pretrained
from smi.tables import name_in_csv
from smi.views.normalisation import kept_side

ROW_GROUP_BYTES = 2**23  # of features in a Parquet row group: its writer holds a few copies
COPY_BYTES = 2**20  # copied at a time
NAMES_PER_CHUNK = 4096  # file names converted to an array at a time

FeatureWriter = Callable[[Path, FeatureBatches, AllImages, Pretrained, Precision], None]


def choose_writer(out: Path) -> FeatureWriter:
    """Validate `out` before the long computation and return the matching writer."""
    suffix = out.suffix.lower()
    if suffix not in (".npz", ".parquet", ".csv"):
        raise UserError(
            "features are written as .npz, .parquet or .csv, so --out must end in one of these, "
            f"not {out.name!r}"
        )
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}: create it, or choose another --out")
    if out.is_dir():
        raise UserError(f"{out} is a folder: choose another --out")
    if suffix == ".npz":
        return _write_npz
    if suffix == ".csv":
        return _write_csv
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise UserError(
            "Parquet needs pyarrow: pip install 'smi-ssl[parquet]', or write .npz"
        ) from error
    return _write_parquet


def refuse_other_encoder(path: Path, encoder: Pretrained) -> None:
    """Raise a UserError if a Parquet file has features of another encoder."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    try:
        digest = json.loads(read_schema(path).metadata[b"smi"])["encoder"]
    except (ArrowException, OSError, TypeError, KeyError, ValueError) as error:
        raise UserError(f"{path} is not a file of features: choose another --out") from error
    if digest != encoder.digest():
        raise UserError(f"{path} has features of another encoder: choose another --out")


def _metadata(images: AllImages, encoder: Pretrained, precision: Precision) -> str:
    """Describe the encoder and its preprocessing as JSON."""
    about = {
        "encoder": encoder.digest(),
        "trained": encoder.origin(),
        "image_size": encoder.image_size,
        "resolution": encoder.resolution,
        "crop": kept_side(encoder.resolution, encoder.image_size),
        "mean": encoder.mean,
        "std": encoder.std,
        "value_range": images.value_range,
        "precision": precision,
        "classes": images.classes,
        "smi": __version__,
        "versions": versions(),
    }
    return json.dumps(about)


def _write_npz(
    path: Path,
    batches: FeatureBatches,
    images: AllImages,
    encoder: Pretrained,
    precision: Precision,
) -> None:
    """Write features, files and metadata, and labels and classes if the images have them.

    The number of rows comes first in the file but is known last, so features are collected in a
    temporary file.
    """
    with tempfile.TemporaryFile(dir=path.parent) as rows:
        places: list[Tensor] = []
        for h, place in batches:
            rows.write(h.numpy())  # type: ignore[arg-type]  # contiguous, so a buffer
            places.append(place)
        index = torch.cat(places).tolist()
        rows.seek(0)
        with zipfile.ZipFile(path, "w") as archive:
            shape = (len(index), encoder.dim)
            with _member(archive, "features", np.dtype(np.float32), shape) as member:
                shutil.copyfileobj(rows, member, COPY_BYTES)
            _write_names(archive, [images.name(place) for place in index])
            arrays = {"about": np.array(_metadata(images, encoder, precision))}
            if images.labels is not None:
                arrays["labels"] = images.labels[index]
            if images.classes is not None:
                arrays["classes"] = np.array(images.classes)
            for name, array in arrays.items():
                with _member(archive, name, array.dtype, array.shape, compress=True) as member:
                    member.write(array.tobytes())


def _write_names(archive: zipfile.ZipFile, names: list[str]) -> None:
    """Write file names as an array of strings, in chunks."""
    text = np.dtype(f"U{max(1, max(map(len, names)))}")
    with _member(archive, "files", text, (len(names),), compress=True) as member:
        for i in range(0, len(names), NAMES_PER_CHUNK):
            member.write(np.array(names[i : i + NAMES_PER_CHUNK], dtype=text).tobytes())


@contextlib.contextmanager
def _member(
    archive: zipfile.ZipFile,
    name: str,
    dtype: "np.dtype[Any]",
    shape: tuple[int, ...],
    *,
    compress: bool = False,
) -> Iterator[io.BufferedIOBase]:
    """Open an array of an .npz for writing its bytes.

    It has no date, so that the same features make the same file.
    """
    info = zipfile.ZipInfo(f"{name}.npy")
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with archive.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": dtype.str, "fortran_order": False, "shape": shape}
        )
        yield member  # type: ignore[misc]


def _write_parquet(
    path: Path,
    batches: FeatureBatches,
    images: AllImages,
    encoder: Pretrained,
    precision: Precision,
) -> None:
    """Write the columns file and features, and label if the images have labels."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    fields = [("file", pa.string()), ("features", pa.list_(pa.float32(), encoder.dim))]
    fields += [("label", pa.int64())] if images.labels is not None else []
    schema = pa.schema(fields, metadata={"smi": _metadata(images, encoder, precision)})
    rows_per_group = max(1, ROW_GROUP_BYTES // (4 * encoder.dim))
    # Features hardly ever repeat, so a dictionary would not help.
    with ParquetWriter(path, schema, use_dictionary=False) as file:
        for h, place in _join_batches(batches, rows_per_group):
            # File names are bytes, and Parquet strings are UTF-8: other bytes are escaped.
            names = [
                images.name(i).encode("utf-8", "backslashreplace").decode() for i in place.tolist()
            ]
            columns = [
                pa.array(names, pa.string()),
                pa.FixedSizeListArray.from_arrays(pa.array(h.flatten().numpy()), encoder.dim),
            ]
            columns += [pa.array(images.labels[place.numpy()])] if images.labels is not None else []
            file.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(h))


def _write_csv(
    path: Path,
    batches: FeatureBatches,
    images: AllImages,
    encoder: Pretrained,
    precision: Precision,
) -> None:
    """Write a line for each image: its file, its label if there is one, and its features.

    Features have nine digits, which are all that float32 has.
    """
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        label = [] if images.labels is None else ["label"]
        writer.writerow(["file", *label, *(f"h{i}" for i in range(encoder.dim))])
        for h, place in batches:
            for row, i in zip(h.tolist(), place.tolist(), strict=True):
                named = [] if images.labels is None else [name_in_csv(images.label(i) or "")]
                numbers = (f"{value:.9g}" for value in row)
                writer.writerow([name_in_csv(images.name(i)), *named, *numbers])


def _join_batches(batches: FeatureBatches, num_rows: int) -> FeatureBatches:
    """Join batches until they have `num_rows` rows or more."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(h) for h, _ in waiting) >= num_rows:
            yield _concatenate(waiting)
            waiting = []
    if any(len(h) for h, _ in waiting):
        yield _concatenate(waiting)


def _concatenate(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([h for h, _ in batches]), torch.cat([place for _, place in batches])
