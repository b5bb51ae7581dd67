"""Write the features of all images of a folder or dataset to a file.

embed("runs/mine", data="photographs", out="features.npz")

The features are those of evaluation, equal to the bit for the same batch size. Only a few batches
are in memory at a time.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from smi.data.given import Given
from smi.data.shards import ShardSet
from smi.data.sources import ImageSet
from smi.device import Runtime, choose_precision
from smi.distributed import num_launched
from smi.errors import DiskError, UserError
from smi.files import disk_errors, expand, make_folder, write_whole
from smi.inference.feature_files import choose_writer, refuse_other_encoder
from smi.inference.images import EMBED_BATCH_SIZE, AllImages, describe_encoder, find_images
from smi.runs.encoder import load
from smi.terminal import announce, printable, quietly, say


def embed(
    source: str | Path,
    *,
    data: Given,
    out: str | Path,
    batch_size: int = EMBED_BATCH_SIZE,
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32",
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Write the features of every image, in the order of their paths, and return the file.

    path = embed("runs/mine", data="photographs", out="features.npz")
    arrays = np.load(path)      # features [n, F], files [n], about; labels [n], classes if any

    source: the folder of a run, a file of an encoder, or another source that `load` takes. data: a
    folder of images, the name of a dataset, or another source (`smi.data.given`). out: FILE.npz or
    FILE.parquet; for shards also a folder, which gets FILE.parquet for each shard, and where a
    second call adds the missing ones. precision: number format of the network; auto is bfloat16 on
    GPUs that compute in it. A warning names files that cannot be read; they have no row.
    """
    if num_launched() > 1:
        raise UserError("`smi embed` writes its file from one process: start it without torchrun")
    out = expand(out)
    in_folder = not out.suffix
    write = choose_writer(out.with_suffix(".parquet") if in_folder else out)
    encoder = load(source)
    device = runtime.choose_device()
    encoder.to(device)
    chosen = choose_precision(precision, device)

    def embed_part(sets: Sequence[ImageSet], path: Path) -> None:
        with AllImages(sets, encoder, runtime) as images:
            begin = time.perf_counter()
            features = images.features(encoder, batch_size, device, "embedding", chosen)
            with disk_errors(f"writing {path}"), contextlib.closing(features) as batches:
                write_whole(path, lambda partial: write(partial, batches, images, encoder, chosen))
            seconds = max(time.perf_counter() - begin, 1e-9)
            images.warn_unreadable()
            say(
                f"{printable(str(path))}: {images.num_readable:,} images × {encoder.dim:,} "
                f"features of {describe_encoder(encoder, source)}; "
                f"{len(images) / seconds:,.0f} images/s"
            )

    with quietly(quiet):
        sets = find_images(data, encoder, runtime)
        if not in_folder:
            embed_part(sets, out)
            return out
        parts = _by_shard(sets, out)
        with disk_errors(f"writing {out}"):
            make_folder(out)
        lost = 0
        for path, part in parts.items():
            if path.exists():
                refuse_other_encoder(path, encoder)
                continue
            try:
                embed_part([part], path)
            except DiskError:  # it would be full for the other shards, too
                raise
            except UserError as error:  # one shard of many; a second call tries it again
                announce(f"warning: {printable(path.name)} is left out: {error}")
                lost += 1
        if lost == len(parts):
            raise UserError(f"none of the {lost:,} shards can be read")
    return out


def _by_shard(sets: Sequence[ImageSet], folder: Path) -> dict[Path, ImageSet]:
    """Return the images of every shard, by the file for their features."""
    parts: dict[Path, ImageSet] = {}
    for images in sets:
        if not isinstance(images, ShardSet):
            raise UserError(
                "only the features of shards are written into a folder: --out must end in .npz or "
                ".parquet"
            )
        for shard in images.shards:
            name = os.path.splitext(shard.location.removeprefix(images.root).strip("/"))[0]
            path = folder / f"{name.replace('/', '-')}.parquet"
            if path in parts:
                raise UserError(f"two shards would be written to {path}: rename one of them")
            parts[path] = replace(images, shards=(shard,))
    return parts
