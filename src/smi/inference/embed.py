"""Features of all images of a folder, and the images that are nearest to some. n images, F coordinates, m queries.

embed("runs/mine", data="photographs", out="features.npz")     # features [n, F], files [n]; labels [n], classes where there are any
neighbours("runs/mine", data="photographs", queries=["cat.jpg"], out="neighbours.png")

The features are those that evaluation uses, to the bit for the same size of batches. No more than some batches are in memory at a time.
"""

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smi import __version__
from smi.data.folders import FileSet
from smi.data.sources import all_images
from smi.data.store import open_store
from smi.device import choose_device, versions
from smi.errors import UserError
from smi.evaluation import batches_of_features
from smi.files import cache_home, disk_errors, expand, write_whole
from smi.inference.sheet import Tile, draw_sheet, thumbnail, thumbnail_of_file
from smi.losses.embeddings import unit_rows
from smi.runs.encoder import Pretrained, load
from smi.tables import Table
from smi.terminal import Progress, announce, printable
from smi.views.png import check_png_path, write_png

BATCH = 256
SHOWN = 3  # files named in a warning
GROUP = 2**23  # bytes of features in a row group of Parquet: the writer holds some copies of one
NAMES = 4096  # names turned into an array at a time

Batches = Generator[tuple[Tensor, Tensor], None, None]  # h [N, F], and which images it is of [N]


def embed(
    source: str | Path,
    *,
    data: str | Path,
    out: str | Path,
    batch_size: int = BATCH,
    root: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
) -> Path:
    """Write the features of every image, in the order of their paths, to FILE.npz or FILE.parquet; give its path.

    source: a run's folder or an encoder's file. data: a folder with whatever folders in it, or a set by name. Files that cannot be read
    have no row: a warning names them.
    """
    out = expand(out)
    write = _writer(out)
    encoder = load(source)
    where = choose_device(device)
    encoder.to(where)
    with AllImages(data, encoder, root=root, num_workers=num_workers) as images:
        begun = time.perf_counter()
        with (
            disk_errors(f"writing {out}"),
            contextlib.closing(images.features(encoder, batch_size, where, "embedding")) as batches,
        ):
            write_whole(out, lambda partial: write(partial, batches, images, encoder))
        seconds = time.perf_counter() - begun
    images.tell_unreadable()
    num = len(images) - len(images.unreadable)
    print(
        f"{printable(str(out))}: {num:,} images × {encoder.dim:,} features of {_described(encoder)}; "
        f"{len(images) / max(seconds, 1e-9):,.0f} images/s"
    )
    return out


@dataclass(frozen=True)
class Neighbour:
    """An image that is near a query: cosine similarity of their features, path relative to the folder, class if it has one."""

    file: str
    similarity: float
    label: str | None


def neighbours(
    source: str | Path,
    *,
    data: str | Path,
    queries: Sequence[str | Path],
    out: str | Path,
    k: int = 8,
    root: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
) -> list[list[Neighbour]]:
    """Draw the k images of a folder or set that are nearest to each query, and print them; nearest first.

    Of images as near as each other the first in the order of paths comes first. A query that lies in the folder is not its own neighbour.
    """
    out = expand(out)
    check_png_path(out)
    if k < 1:
        raise UserError(f"there must be 1 nearest neighbour or more, not {k}")
    if not queries:
        raise UserError("give one image or more to look for with --query")
    asked = [expand(query) for query in queries]
    encoder = load(source)
    tiles = [
        thumbnail_of_file(query) for query in asked
    ]  # one that cannot be read says so before the long part
    where = choose_device(device)
    encoder.to(where)
    with AllImages(data, encoder, root=root, num_workers=num_workers) as images:
        own = [images.places_of(query) for query in asked]
        if any(_same(out, query) for query in asked) or images.places_of(out):
            raise UserError(f"{printable(str(out))} is one of the images: choose another --out")
        near = _nearest(encoder, images, asked, own, k, where)
        images.tell_unreadable()
        if (fewest := min(map(len, near))) < k:
            few = "no other" if fewest == 0 else f"only {fewest:,}"
            announce(f"{k:,} nearest images were asked for, and {printable(str(data))} has {few}")
        rows = [
            (
                Tile(tile, query.name, images.label(places[0]) or "" if places else ""),
                [images.tile(*one) for one in row],
            )
            for query, tile, places, row in zip(asked, tiles, own, near, strict=True)
        ]
        found = [
            [Neighbour(images.name(i), similarity, images.label(i)) for i, similarity in row]
            for row in near
        ]
    write_png(
        draw_sheet(rows, title=f"nearest of {data}, by the features of {_described(encoder)}"), out
    )
    print(_table(asked, found))
    num = len(images) - len(images.unreadable)
    print(
        f"\n{printable(str(out))}: {len(asked):,} × {max(map(len, found)):,} of {num:,} images, by {_described(encoder)}"
    )
    return found


# ------------------------------------------------------------------------------------------------------------------------ all images


class AllImages:
    """All images of a folder or set in their order, whatever its splits, with their names; labels [n] if every one has one.

    Files are decoded as they are asked for: nothing is kept of them.
    """

    def __init__(
        self,
        data: str | Path,
        encoder: Pretrained,
        *,
        root: str | Path | None = None,
        num_workers: int | None = None,
    ):
        root = root or encoder.root  # where the run's own set lies
        self._sets = all_images(data, Path(root) if root else None)
        self._stores = [
            open_store(
                images,
                resolution=encoder.resolution
                if isinstance(images, FileSet)
                else None,  # pixels are as they are
                cache=cache_home(),
                num_workers=num_workers,
                max_bad_share=1,
                max_cache_bytes=0,
            )
            for images in self._sets
        ]
        self._starts = [0]
        for images in self._sets:
            self._starts.append(self._starts[-1] + len(images))
        labels = [images.labels for images in self._sets]
        self.labels = (
            np.concatenate([some for some in labels if some is not None])
            if all(some is not None for some in labels)
            else None
        )
        self.classes = self._sets[0].classes if self.labels is not None else None
        self.unreadable: list[int] = []  # of those asked for so far

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, i: int) -> str:
        """Relative to the folder; of a set of pixels train/0 and so on."""
        part, row = self._part(i)
        images = self._sets[part]
        return images.entries[row].path if isinstance(images, FileSet) else f"{images.split}/{row}"

    def label(self, i: int) -> str | None:
        if self.labels is None:
            return None
        return self.classes[self.labels[i]] if self.classes is not None else str(self.labels[i])

    def features(
        self, encoder: Pretrained, batch_size: int, device: torch.device, doing: str
    ) -> Batches:
        """Batch by batch on the CPU. What could not be read is left out: a store has another image in its place, and says so."""
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
                )
                with contextlib.closing(batches):
                    for h, which in batches:
                        good = which == torch.arange(row, row + len(which))
                        place = torch.arange(start + row, start + row + len(which))
                        self.unreadable += place[~good].tolist()
                        row += len(which)
                        progress.advance(len(which))
                        yield h.float().cpu()[good], place[good]

    def tile(self, i: int, similarity: float) -> Tile:
        """For a sheet; the image is read again."""
        part, row = self._part(i)
        images = self._sets[part]
        seen = (
            thumbnail_of_file(images.root / images.entries[row].path)
            if isinstance(images, FileSet)
            else thumbnail(self._stores[part][[row]][0])
        )
        label = self.label(i)
        return Tile(
            seen, self.name(i), f"{similarity:.3f}" + (f"  {label}" if label is not None else "")
        )

    def places_of(self, file: Path) -> list[int]:
        """Where a file is in this order, under whatever name: more than once where there are links to it."""
        try:
            info = file.stat()
        except OSError:
            return []
        found = []
        for start, images in zip(self._starts, self._sets, strict=False):
            if isinstance(images, FileSet):
                for i, entry in enumerate(images.entries):
                    alike = (
                        entry.size == info.st_size and entry.mtime_ns == info.st_mtime_ns
                    )  # few are, so few are looked at again
                    if alike and _same(images.root / entry.path, file):
                        found.append(start + i)
        return found

    def tell_unreadable(self) -> None:
        if not self.unreadable:
            return
        reasons = {bad.path: bad.reason for store in self._stores for bad in store.bad}
        names = [self.name(i) for i in self.unreadable]
        shown = ", ".join(
            f"{printable(name)} ({printable(reasons.get(name, 'unreadable'))})"
            for name in names[:SHOWN]
        )
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        files = (
            "1 file cannot be read as an image and is"
            if len(names) == 1
            else f"{len(names):,} files cannot be read as images and are"
        )
        announce(f"warning: {files} left out: {shown}{more}")

    def _part(self, i: int) -> tuple[int, int]:
        part = next(part for part, end in enumerate(self._starts[1:]) if i < end)
        return part, i - self._starts[part]

    def close(self) -> None:
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


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return False


def _described(encoder: Pretrained) -> str:
    method, epoch = encoder.about.get("method"), encoder.about.get("epoch")
    facts = [method] if method else []
    facts += [f"epoch {epoch:g}"] if epoch is not None else []
    return printable(str(encoder.source)) + (f" ({', '.join(facts)})" if facts else "")


# ------------------------------------------------------------------------------------------------------------------- files of features

Write = Callable[[Path, Batches, AllImages, Pretrained], None]


def _writer(out: Path) -> Write:
    """What would be wrong at the end is wrong now."""
    suffix = out.suffix.lower()
    if suffix not in (".npz", ".parquet"):
        raise UserError(
            f"features are written as .npz or .parquet, so --out must end in one of these, not {out.name!r}"
        )
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}: make it, or choose another --out")
    if out.is_dir():
        raise UserError(f"{out} is a folder: choose another --out")
    if suffix == ".npz":
        return _write_npz
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise UserError(
            "Parquet needs pyarrow: pip install 'smi-ssl[parquet]', or write .npz"
        ) from error
    return _write_parquet


def _about(images: AllImages, encoder: Pretrained) -> str:
    """What made the features, as JSON."""
    about = {
        "encoder": encoder.digest(),
        "trained": encoder.origin(),
        "image_size": encoder.image_size,
        "resolution": encoder.resolution,
        "mean": encoder.mean,
        "std": encoder.std,
        "classes": images.classes,
        "smi": __version__,
        "versions": versions(),
    }
    return json.dumps(about)


def _write_npz(path: Path, batches: Batches, images: AllImages, encoder: Pretrained) -> None:
    """How many rows there are, which comes first in the file, is known last: until then they lie in a file without a name."""
    with tempfile.TemporaryFile(dir=path.parent) as rows:
        kept: list[Tensor] = []
        for h, which in batches:
            rows.write(h.numpy())  # type: ignore[arg-type]  # contiguous, so a buffer
            kept.append(which)
        index = torch.cat(kept).tolist()
        rows.seek(0)
        with zipfile.ZipFile(path, "w") as archive:
            with _member(
                archive, "features", np.dtype(np.float32), (len(index), encoder.dim)
            ) as member:
                shutil.copyfileobj(rows, member, 2**20)
            text = np.dtype(f"U{max(1, max(len(images.name(i)) for i in index))}")
            with _member(archive, "files", text, (len(index),), compress=True) as member:
                for i in range(0, len(index), NAMES):
                    member.write(
                        np.array(
                            [images.name(row) for row in index[i : i + NAMES]], dtype=text
                        ).tobytes()
                    )
            arrays = {"about": np.array(_about(images, encoder))}
            if images.labels is not None:
                arrays["labels"] = images.labels[index]
            if images.classes is not None:
                arrays["classes"] = np.array(images.classes)
            for name, array in arrays.items():
                with _member(archive, name, array.dtype, array.shape, compress=True) as member:
                    member.write(array.tobytes())


@contextlib.contextmanager
def _member(
    archive: zipfile.ZipFile,
    name: str,
    dtype: "np.dtype[Any]",
    shape: tuple[int, ...],
    *,
    compress: bool = False,
) -> Iterator[io.BufferedIOBase]:
    """An array of an .npz, to be filled with its bytes. Without a date: the same features make the same file."""
    info = zipfile.ZipInfo(f"{name}.npy")
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with archive.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": dtype.str, "fortran_order": False, "shape": shape}
        )
        yield member  # type: ignore[misc]


def _write_parquet(path: Path, batches: Batches, images: AllImages, encoder: Pretrained) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    fields = [("file", pa.string()), ("features", pa.list_(pa.float32(), encoder.dim))]
    fields += [("label", pa.int64())] if images.labels is not None else []
    schema = pa.schema(fields, metadata={"smi": _about(images, encoder)})
    with ParquetWriter(path, schema, use_dictionary=False) as file:  # features hardly ever repeat
        for h, which in _grouped(batches, max(1, GROUP // (4 * encoder.dim))):
            # A name on a disk need not be text, and a string of Parquet is.
            names = [
                images.name(i).encode("utf-8", "backslashreplace").decode() for i in which.tolist()
            ]
            columns = [
                pa.array(names, pa.string()),
                pa.FixedSizeListArray.from_arrays(pa.array(h.flatten().numpy()), encoder.dim),
            ]
            columns += [pa.array(images.labels[which.numpy()])] if images.labels is not None else []
            file.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(h))


def _grouped(batches: Batches, rows: int) -> Batches:
    """Joined until there are so many rows or more."""
    waiting: list[tuple[Tensor, Tensor]] = []
    num = 0
    for h, which in batches:
        waiting.append((h, which))
        num += len(h)
        if num >= rows:
            yield torch.cat([h for h, _ in waiting]), torch.cat([which for _, which in waiting])
            waiting, num = [], 0
    if num:
        yield torch.cat([h for h, _ in waiting]), torch.cat([which for _, which in waiting])


# -------------------------------------------------------------------------------------------------------------------------- neighbours


def _nearest(
    encoder: Pretrained,
    images: AllImages,
    queries: Sequence[Path],
    own: Sequence[Sequence[int]],
    k: int,
    device: torch.device,
) -> list[list[tuple[int, float]]]:
    """For each query the places and cosine similarities of the k nearest, but for its `own`; fewer where there are no more.

    In float64, and rounded: the same features are then as near in whichever batch they come.
    """
    with torch.inference_mode():
        some = [queries[i : i + BATCH] for i in range(0, len(queries), BATCH)]
        q = unit_rows(
            torch.cat([encoder(encoder.transform(part).to(device)).cpu() for part in some]).double()
        )  # [m, F]
    best, where = torch.empty(len(q), 0), torch.empty(len(q), 0, dtype=torch.long)
    with contextlib.closing(images.features(encoder, BATCH, device, "looking")) as batches:
        for h, which in batches:
            similarity = (q @ unit_rows(h.double()).T).float()  # [m, N]
            for row, places in enumerate(own):
                similarity[
                    row, torch.isin(which, torch.tensor(places, dtype=torch.long))
                ] = -torch.inf
            best, order = torch.cat([best, similarity], 1).sort(dim=1, descending=True, stable=True)
            best, where = (
                best[:, :k],
                torch.cat([where, which.expand(len(q), -1)], 1).gather(1, order[:, :k]),
            )
    rows = zip(where.tolist(), best.tolist(), strict=True)
    return [[(i, s) for i, s in zip(*row, strict=True) if s > -torch.inf] for row in rows]


def _table(queries: Sequence[Path], near: Sequence[Sequence[Neighbour]]) -> str:
    table, files = [], []
    for query, found in zip(queries, near, strict=True):
        for rank, one in enumerate(found, 1):
            table.append(
                [printable(str(query)) if rank == 1 else "", str(rank), f"{one.similarity:.4f}"]
            )
            files.append(
                printable(one.file)
                + (f"  ({printable(one.label)})" if one.label is not None else "")
            )
    lines = Table.of(["query", "rank", "similarity"], table).text().split("\n")
    return "\n".join(
        f"{line}  {file}" for line, file in zip(lines, ["file", "----", *files], strict=True)
    )
