"""Write the features of all images of a folder or dataset to a file.

embed("runs/mine", data="photographs", out="features.npz")

The features are those of evaluation, equal to the bit for the same batch size. Only a few batches
are in memory at a time.
"""

import contextlib
import time
from pathlib import Path
from typing import Literal

from smi.device import Runtime, choose_precision
from smi.distributed import num_launched
from smi.errors import UserError
from smi.files import disk_errors, expand, write_whole
from smi.inference.feature_files import choose_writer
from smi.inference.images import EMBED_BATCH_SIZE, AllImages, describe_encoder
from smi.runs.encoder import load
from smi.terminal import printable, quietly, say


def embed(
    source: str | Path,
    *,
    data: str | Path,
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
    folder of images, with any folders in it, or the name of a dataset. out: FILE.npz or
    FILE.parquet. precision: number format of the network; auto is bfloat16 on GPUs that compute in
    it. A warning names files that cannot be read; they have no row.
    """
    if num_launched() > 1:
        raise UserError("`smi embed` writes its file from one process: start it without torchrun")
    out = expand(out)
    write = choose_writer(out)
    encoder = load(source)
    device = runtime.choose_device()
    encoder.to(device)
    chosen = choose_precision(precision, device)
    with quietly(quiet), AllImages(data, encoder, runtime) as images:
        begin = time.perf_counter()
        features = images.features(encoder, batch_size, device, "embedding", chosen)
        with disk_errors(f"writing {out}"), contextlib.closing(features) as batches:
            write_whole(out, lambda partial: write(partial, batches, images, encoder, chosen))
        seconds = max(time.perf_counter() - begin, 1e-9)
        images.warn_unreadable()
        say(
            f"{printable(str(out))}: {images.num_readable:,} images × {encoder.dim:,} features of "
            f"{describe_encoder(encoder, source)}; {len(images) / seconds:,.0f} images/s"
        )
    return out
