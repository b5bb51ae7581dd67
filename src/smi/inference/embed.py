"""Write the features of all images of a folder or dataset to a file.

embed("runs/mine", data="photographs", out="features.npz")

The features are those of evaluation, equal to the bit for the same batch size. Only a few batches
are in memory at a time.
"""

import contextlib
import time
from pathlib import Path

from smi.device import Runtime
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
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Write the features of every image, in the order of their paths, and return the file.

    path = embed("runs/mine", data="photographs", out="features.npz")
    arrays = np.load(path)      # features [n, F], files [n], about; labels [n], classes if any

    source: the folder of a run, or a file of an encoder. data: a folder of images, with any folders
    in it, or the name of a dataset. out: FILE.npz or FILE.parquet. A warning names files that
    cannot be read; they have no row.
    """
    out = expand(out)
    write = choose_writer(out)
    encoder = load(source)
    device = runtime.choose_device()
    encoder.to(device)
    with quietly(quiet), AllImages(data, encoder, runtime) as images:
        begin = time.perf_counter()
        features = images.features(encoder, batch_size, device, "embedding")
        with disk_errors(f"writing {out}"), contextlib.closing(features) as batches:
            write_whole(out, lambda partial: write(partial, batches, images, encoder))
        seconds = max(time.perf_counter() - begin, 1e-9)
        images.warn_unreadable()
        say(
            f"{printable(str(out))}: {images.num_readable:,} images × {encoder.dim:,} features of "
            f"{describe_encoder(encoder)}; {len(images) / seconds:,.0f} images/s"
        )
    return out
