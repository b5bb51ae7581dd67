"""Compute everything a report shows about a run's encoder, and store it in the run's folder.

portrait = load_portrait(Run("runs/smi"), Sample("cifar10", images=1000), torch.device("cpu"))

A portrait holds t-SNE, nearest neighbours, spectrum, energy maps, views and pairs of some images.
Because it takes long, it is saved as figures/portrait-<weights>-<settings>.json. A saved portrait
is used even if its images are gone. n images, F features.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smi import __version__
from smi.data import Batch
from smi.data.folders import FileSet
from smi.data.shards import ShardSet
from smi.data.sources import resolve_source
from smi.errors import DiskError, UserError
from smi.evaluation.features import evaluation_mode
from smi.evaluation.knn import nearest
from smi.figures.eigenspectrum import cumulative_variance
from smi.figures.energy_maps import choose_images, energies
from smi.figures.landscape import MIN_PAIRS, Pairs, positive_pairs
from smi.figures.sample import IMAGES_PER_COORDINATE, Sample, feature_blocks
from smi.figures.tsne import embed_in_3d
from smi.figures.variance_violin import relative_variance
from smi.files import check_fields, make_folder, read_json, write_text
from smi.losses.smi import EPS
from smi.reporting.data_urls import PICTURE_SIDE, THUMBNAIL_SIDE, energy_url, picture_url
from smi.runs.encoder import Pretrained, load
from smi.runs.restore import load_method, load_views
from smi.runs.run import Run
from smi.terminal import Progress
from smi.views.normalisation import normalise, unnormalise
from smi.views.views import Views

FORMAT = 5  # of the file; a portrait in another format is computed again
MAX_IMAGES = 1000  # that are shown
NUM_QUERIES = 8  # rows of neighbours
NUM_NEIGHBOURS = 7  # in each row
MAX_PAIRS = 256  # that are sorted
NUM_PAIRS = 12  # that are shown
NUM_VIEWED = 6  # images with their views
NUM_DRAWS = 2  # of the views of an image
NUM_MAPS = 6  # images with energy maps
BATCH_SIZE = 128


@dataclass(frozen=True)
class Portrait:
    """Hold the parts of a portrait. `missing` says why other parts could not be computed."""

    parts: dict[str, Any]
    missing: dict[str, str]


def load_portrait(run: Run, sample: Sample, device: torch.device) -> Portrait:
    """Return the portrait that the run's folder holds, or compute it and save it there."""
    if not run.checkpoint.is_file():
        reason = (
            f"{run.folder} has no checkpoint yet, so there is no encoder to show. "
            "Run `smi pretrain` with the same --out to resume."
        )
        return Portrait({}, {"encoder": reason})
    # The encoder of the best probe may be newer than the checkpoint.
    weights = [path for path in (run.checkpoint, run.best) if path.is_file()]
    return saved_or_made(portrait_path(run, weights, sample), PortraitMaker(run, sample, device))


def saved_or_made(path: Path, maker: "PortraitMaker") -> Portrait:
    """Return the portrait that a file holds, or make it and write the file."""
    fingerprint, reason = None, ""
    try:
        fingerprint = _fingerprint(maker.sample)
    except UserError as error:
        reason = str(error)
    saved = _read(path, fingerprint)
    if saved is not None:
        return saved
    if fingerprint is None:
        return Portrait({}, {"images": reason})
    portrait = maker.make()
    document = {
        "format": FORMAT,
        "which": fingerprint,
        "again": maker.is_incomplete,
        "digest": _digest(portrait),
        "parts": portrait.parts,
        "missing": portrait.missing,
    }
    with suppress(OSError):  # a read-only folder: the portrait is computed again the next time
        make_folder(path.parent)
        write_text(path, json.dumps(document))
    return portrait


# ------------------------------------------------------------------------------ the saved file


def portrait_path(
    run: Run, weights: Sequence[Path], sample: Sample, *, prefix: str = "portrait"
) -> Path:
    """Return the path of a portrait, which depends on files of weights and on the settings."""
    content = hashlib.sha256()
    for path in weights:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: content)
    settings = {
        "source": sample.source,
        "root": None,
        "images": sample.images,
        "seed": sample.seed,
        "smi": __version__,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return run.folder / "figures" / f"{prefix}-{content.hexdigest()[:12]}-{digest}.json"


def _read(path: Path, fingerprint: str | None) -> Portrait | None:
    """Read a saved portrait; None if there is none for these images, or it is incomplete.

    fingerprint: None if the images are missing; then any saved portrait is used.
    """
    with suppress(OSError, UserError, KeyError):
        document = read_json(path)
        check_fields(document, {"parts": dict, "missing": dict}, path)
        portrait = Portrait(document["parts"], document["missing"])
        is_whole = document["digest"] == _digest(portrait)
        is_incomplete = document["again"] and fingerprint is not None
        is_same = fingerprint in (None, document["which"])
        if document["format"] == FORMAT and is_whole and is_same and not is_incomplete:
            return portrait
    return None


def _digest(portrait: Portrait) -> str:
    """Hash what a file of a portrait holds, so that a damaged one is computed again."""
    text = json.dumps([portrait.parts, portrait.missing], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fingerprint(sample: Sample) -> str:
    """Hash the number of images, and the paths and sizes of files."""
    sample = sample.with_existing_split()
    images = resolve_source(sample.source, sample.split, Path(sample.root) if sample.root else None)
    digest = hashlib.sha256(f"{sample.split} {len(images)}".encode())
    if isinstance(images, ShardSet):
        images.update_digest(digest)
    if isinstance(images, FileSet):
        for entry in images.entries:
            digest.update(f"{entry.path}\0{entry.size}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


# ------------------------------------------------------------------------------ the computation


class PortraitMaker:
    """Compute the parts of a portrait one by one; a part that fails leaves the others intact."""

    def __init__(self, run: Run, sample: Sample, device: torch.device):
        self.run = run
        self.sample = sample
        self.device = device
        self.parts: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self.is_incomplete = False  # a missing part may be possible the next time

    def make(self) -> Portrait:
        """Compute all parts."""
        encoder = load(self.run.folder).to(self.device)
        sample = self.sample.with_existing_split()
        self.parts["of"] = sample.described
        self.parts["data"] = sample.data
        self.parts["epoch"] = encoder.about.get("epoch")
        self.parts["step"] = encoder.about.get("step")
        h = self._attempt("images", lambda: self._add_images(encoder, sample))
        if h is not None:
            blocks = self._attempt("statistics", lambda: _enough_features(encoder, sample, h)) or []
            self.parts["measured"] = sum(map(len, blocks))
            self._attempt("spectrum", lambda: self._add("spectrum", cumulative_variance(blocks)[0]))
            self._attempt("variances", lambda: self._add("variances", relative_variance(blocks)[0]))
            self._arrange(h)
        self._attempt("maps", lambda: self._add_maps(encoder, sample))
        self._attempt("pairs", self._add_pairs)
        return Portrait(self.parts, self.missing)

    def _attempt(self, name: str, compute: Callable[[], Any]) -> Any:
        """Compute a part, or note why it is missing."""
        try:
            return compute()
        except UserError as error:
            self.is_incomplete |= name == "images" or isinstance(error, DiskError)
            self.missing[name] = str(error)
        except Exception as error:  # an encoder may have diverged, or be a user's own and unusual
            self.missing[name] = (
                f"{name} could not be computed ({type(error).__name__}: {error}); "
                f"`smi doctor {self.run.folder}` may say why"
            )
            self.is_incomplete |= isinstance(error, OSError | MemoryError | torch.OutOfMemoryError)
        return None

    def _arrange(self, h: Tensor) -> None:
        """Add t-SNE and nearest neighbours of features [n, F]."""
        seed = self.sample.seed
        self._attempt("places", lambda: self._add("places", embed_in_3d(h.numpy(), seed=seed)))
        self._attempt("neighbours", lambda: self._add_neighbours(h))

    def _add(self, name: str, values: NDArray[Any]) -> None:
        """Add an array as rounded numbers."""
        self.parts[name] = np.asarray(values, dtype=np.float64).round(5).tolist()

    def _add_images(self, encoder: Pretrained, sample: Sample) -> Tensor:
        """Add names, labels and thumbnails of images; return their features [n, F]."""
        features: list[Tensor] = []
        readable: list[int] = []
        pictures: list[str] = []
        with (
            sample.open(encoder.resolution, encoder.value_range) as (store, names),
            Progress("computing features", len(store), "images") as progress,
        ):
            for start in range(0, len(store), BATCH_SIZE):
                index = torch.arange(start, min(start + BATCH_SIZE, len(store)))
                images, loaded = store.start_squares(index)()
                good = loaded == index  # a file that cannot be read is replaced by another image
                features.append(_features(encoder, images[good], self.device))
                readable += index[good].tolist()
                pictures += [picture_url(image, THUMBNAIL_SIDE) for image in images[good]]
                progress.advance(len(index))
            labels = None if store.labels is None else [int(store.labels[i]) for i in readable]
            classes = None if store.classes is None else list(store.classes)
        self.parts["names"] = [names[i] for i in readable]
        self.parts["labels"] = labels
        self.parts["pictures"] = pictures
        self.parts["classes"] = classes
        if not readable:
            raise UserError(f"none of the {sample.described} can be read")
        return torch.cat(features)

    def _add_neighbours(self, h: Tensor) -> None:
        """Add the nearest neighbours of some images."""
        if len(h) < 3:
            raise UserError(f"nearest neighbours need 3 images or more, and there are {len(h)}")
        if not h.isfinite().all():
            raise UserError(
                "features are not finite, so images have no nearest neighbours: training diverged"
            )
        queries = self._choose_queries(len(h))
        similarities, indices = nearest(h, h[queries], NUM_NEIGHBOURS + 1)  # one is the query
        rows = []
        for query, similarity, index in zip(
            queries, similarities.tolist(), indices.tolist(), strict=True
        ):
            near = [[i, round(s, 4)] for i, s in zip(index, similarity, strict=True) if i != query]
            rows.append({"query": query, "near": near[:NUM_NEIGHBOURS]})
        self.parts["neighbours"] = rows

    def _choose_queries(self, num_images: int) -> list[int]:
        """Draw images at random, with one image of each class first if there are labels."""
        generator = torch.Generator().manual_seed(self.sample.seed)
        order: list[int] = torch.randperm(num_images, generator=generator).tolist()
        labels = self.parts["labels"]
        if labels:
            firsts = {labels[i]: i for i in reversed(order)}
            rest = [i for i in order if firsts[labels[i]] != i]
            order = [firsts[label] for label in sorted(firsts)] + rest
        return order[:NUM_QUERIES]

    def _add_maps(self, encoder: Pretrained, sample: Sample) -> None:
        """Add energy maps of some images."""
        images, captions = choose_images(sample, encoder.resolution, NUM_MAPS, encoder.value_range)
        maps, places = energies(encoder, images)
        self.parts["maps"] = {
            "captions": captions,
            "images": [picture_url(image, PICTURE_SIDE) for image in images],
            "maps": [energy_url(image, energy) for image, energy in zip(images, maps, strict=True)],
            "places": list(places),
        }

    def _add_pairs(self) -> None:
        """Add views of pretraining images, and how far the embeddings of two views agree."""
        config = self.run.resolve()
        method = load_method(self.run, device=self.device)
        views = load_views(self.run, method)
        sample = replace(self.sample, images=MAX_PAIRS, split="pretrain")
        try:
            with sample.open(self.run.facts.resolution or config.views.size) as (store, _):
                images = store[:]
        except UserError:
            self.is_incomplete = True
            raise
        self._add_views(views, images[:: max(1, len(images) // NUM_VIEWED)][:NUM_VIEWED])
        if len(images) < MIN_PAIRS:
            raise UserError(f"sorting pairs needs {MIN_PAIRS} images or more, not {len(images)}")
        eps = float(config.method.get("eps", EPS))
        pairs = positive_pairs(method, views, images, seed=sample.seed, eps=eps)
        self.parts["pairs"] = {
            "count": len(images),
            "data": sample.data,
            "shown": _choose_pairs(pairs),
        }

    def _add_views(self, views: Views, images: Tensor) -> None:
        """Add several draws of the views of each image; patches of a jigsaw are views too."""
        rows: list[list[str]] = [[] for _ in images]
        for draw in range(NUM_DRAWS):
            batch = Batch(images, torch.arange(len(images)), self.sample.seed + draw)
            for view in views(images, batch.generator()):
                for row, image in zip(
                    rows, unnormalise(view, views.policy.mean, views.policy.std), strict=True
                ):
                    row.append(picture_url(image, PICTURE_SIDE))
        self.parts["views"] = {
            "policy": views.policy.name,
            "sizes": _view_sizes(views),
            "images": [picture_url(image, PICTURE_SIDE) for image in images],
            "views": rows,
        }


def _enough_features(encoder: Pretrained, sample: Sample, h: Tensor) -> list[NDArray[np.float32]]:
    """Return features of ten images per coordinate in blocks, or of all if there are fewer.

    h: the features of the sample.
    """
    enough = IMAGES_PER_COORDINATE * encoder.dim
    if sample.images >= enough:
        return [h.numpy()]
    return list(feature_blocks(encoder, replace(sample, images=enough)))


@torch.inference_mode()
def _features(encoder: Pretrained, images: Tensor, device: torch.device) -> Tensor:
    """Compute the features of uint8 images, in evaluation mode, on the CPU."""
    if not len(images):
        return torch.empty(0, encoder.dim)
    with evaluation_mode(encoder):
        h: Tensor = encoder(
            normalise(images.to(device), encoder.mean, encoder.std, encoder.image_size)
        )
    return h.float().cpu()


def _choose_pairs(pairs: Pairs) -> list[dict[str, Any]]:
    """Choose pairs from the lowest dependency to the highest, at even distances in rank."""
    order = np.argsort(pairs.m, kind="stable")
    shares = np.linspace(0, 1, min(NUM_PAIRS, len(order)))
    chosen = [int(order[round(share * (len(order) - 1))]) for share in shares]
    return [
        {
            "pictures": [
                picture_url(torch.from_numpy(side[i]).permute(2, 0, 1), PICTURE_SIDE)
                for side in (pairs.first, pairs.second)
            ],
            "rho": float(pairs.rho[i]),
            "m": float(pairs.m[i]),
        }
        for i in chosen
    ]


def _view_sizes(views: Views) -> str:
    """Count the views of an image by size: "2 of 32 px"."""
    kinds = Counter(
        f"{view.size} px"
        + (f", cut into {view.grid} × {view.grid} patches" if view.grid > 1 else "")
        for view in views.policy.views
    )
    return " and ".join(f"{count} of {kind}" for kind, count in kinds.items())
