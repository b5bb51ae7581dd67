"""What a run's encoder makes of some images: t-SNE, neighbours, spectrum, energy maps, views, pairs. n images, F coordinates.

What takes long is kept in the run's folder, as figures/portrait-<weights>-<asked>.json, and is there at once the next time, even if the
images are not.
"""

import base64
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from smi import __version__
from smi.config.resolve import resolve as read_config
from smi.data import Batch
from smi.data.folders import FileSet
from smi.data.sources import resolve
from smi.device import choose_device
from smi.errors import UserError
from smi.evaluation.features import evaluation_mode
from smi.figures.eigenspectrum import cumulative_variance
from smi.figures.energy_maps import choose_images, energies, scale_to_unit
from smi.figures.landscape import MIN_PAIRS, Pairs, positive_pairs
from smi.figures.sample import Sample
from smi.figures.tsne import embed
from smi.figures.variance_violin import relative_variance
from smi.files import write_text
from smi.losses.embeddings import unit_rows
from smi.runs.encoder import Pretrained, load
from smi.runs.restore import create, create_views
from smi.runs.run import Run
from smi.terminal import Progress
from smi.views.normalisation import normalise
from smi.views.views import Views

FORMAT = 2  # of the file: another is made anew
IMAGES = 1000  # that features are taken of, at most
SIDE, LARGE, EXACT = (
    72,
    96,
    16,
)  # pixels: of a thumbnail at most, of other pictures, of what is kept to the bit
QUALITY = 78
QUERIES, NEAR = 8, 7  # rows of neighbours, and how many in each
PAIRS, SHOWN = 256, 12  # pairs that are sorted, and of them those that are shown
VIEWED, DRAWS = 6, 2  # images with their views, and draws of them
MAPS = 6  # images with energy maps
BATCH = 128


@dataclass(frozen=True)
class Asked:
    """Of which images."""

    source: str
    root: str | None
    images: int = IMAGES
    seed: int = 0


@dataclass(frozen=True)
class Portrait:
    """Parts that could not be made are absent, and `missing` says why."""

    parts: dict[str, Any]
    missing: dict[str, str]


def portrait(
    run: Run, asked: Asked, *, device: str | None = None, num_workers: int | None = None
) -> Portrait:
    """As it was kept, or made now."""
    if not run.checkpoint.is_file():
        reason = f"{run.folder} has no checkpoint yet, so there is no encoder to look with: `smi pretrain` with the same --out goes on."
        return Portrait({}, {"encoder": reason})
    kept = _file(run, asked)
    why = ""
    try:
        which = _which(asked)
    except UserError as error:
        which, why = None, str(error)
    with suppress(OSError, ValueError, KeyError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        again = which is not None and found["again"]
        if (
            found["format"] == FORMAT and which in (None, found["which"]) and not again
        ):  # of images that are gone, what was seen of them
            return Portrait(found["parts"], found["missing"])
    if which is None:
        return Portrait({}, {"images": why})
    painter = Painter(run, asked, device, num_workers)
    made = painter.paint()
    with suppress(OSError):  # a run's folder may be read-only: then it takes as long again
        kept.parent.mkdir(exist_ok=True)
        write_text(
            kept,
            json.dumps(
                {
                    "format": FORMAT,
                    "which": which,
                    "again": painter.again,
                    "parts": made.parts,
                    "missing": made.missing,
                }
            ),
        )
    return made


def _file(run: Run, asked: Asked) -> Path:
    with run.checkpoint.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    what = hashlib.sha256(
        json.dumps(asdict(asked) | {"root": None, "smi": __version__}, sort_keys=True).encode()
    ).hexdigest()[:8]
    return run.folder / "figures" / f"portrait-{weights}-{what}.json"


def _which(asked: Asked) -> str:
    """Tells sets of images apart by their number, and files by their paths and sizes."""
    sample = _sample(asked, None).with_existing_split()
    images = resolve(asked.source, sample.split, Path(asked.root) if asked.root else None)
    found = hashlib.sha256(f"{sample.split} {len(images)}".encode())
    if isinstance(images, FileSet):
        for entry in images.entries:
            found.update(f"{entry.path}\0{entry.size}\0".encode(errors="surrogateescape"))
    return found.hexdigest()[:12]


def _sample(asked: Asked, num_workers: int | None) -> Sample:
    return Sample(asked.source, asked.root, asked.images, asked.seed, num_workers)


class Painter:
    """One sitting."""

    def __init__(self, run: Run, asked: Asked, device: str | None, num_workers: int | None):
        self.run, self.asked, self.num_workers = run, asked, num_workers
        self.device = choose_device(device)
        self.parts: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self.again = False  # what is missing may be there the next time

    def paint(self) -> Portrait:
        encoder = load(self.run.folder).to(self.device)
        sample = _sample(self.asked, self.num_workers).with_existing_split()
        self.parts["of"], self.parts["data"] = sample.described, sample.data
        self.parts["epoch"], self.parts["step"] = (
            encoder.about.get("epoch"),
            encoder.about.get("step"),
        )
        h = self._part("images", lambda: self._images(encoder, sample))
        if h is not None:
            self._part("spectrum", lambda: self._keep("spectrum", cumulative_variance(h.numpy())))
            self._part("variances", lambda: self._keep("variances", relative_variance(h.numpy())))
            self._part(
                "places", lambda: self._keep("places", embed(h.numpy(), seed=self.asked.seed))
            )
            self._part("neighbours", lambda: self._neighbours(h))
        self._part("maps", lambda: self._maps(encoder, sample))
        self._part("pairs", self._pairs)
        return Portrait(self.parts, self.missing)

    def _part(self, name: str, make: Callable[[], Any]) -> Any:
        """One that cannot be made leaves a sentence, and the others as they are."""
        try:
            return make()
        except UserError as error:
            self.again |= name == "images"
            self.missing[name] = str(error)
        except (
            Exception
        ) as error:  # of an encoder that diverged, or is someone's own and very unusual
            self.missing[name] = (
                f"{name} could not be made ({type(error).__name__}: {error}); `smi doctor {self.run.folder}` may say why"
            )
            self.again |= isinstance(error, OSError | MemoryError | torch.OutOfMemoryError)
        return None

    def _keep(self, name: str, values: NDArray[Any]) -> None:
        self.parts[name] = np.asarray(values, dtype=np.float64).round(5).tolist()

    def _images(self, encoder: Pretrained, sample: Sample) -> Tensor:
        """Features [n, F]; names, labels and thumbnails are kept."""
        rows: list[Tensor] = []
        kept: list[int] = []
        pictures: list[str] = []
        with (
            sample.open(encoder.resolution) as (store, names),
            Progress("looking", len(store), "images") as progress,
        ):
            for start in range(0, len(store), BATCH):
                index = torch.arange(start, min(start + BATCH, len(store)))
                images, seen = store.start(index)()
                good = seen == index  # another image stands for a file that cannot be read
                rows.append(_features(encoder, images[good], self.device))
                kept += index[good].tolist()
                pictures += [url(image, SIDE) for image in images[good]]
                progress.advance(len(index))
            labels = None if store.labels is None else [int(store.labels[i]) for i in kept]
            self.parts |= {
                "names": [names[i] for i in kept],
                "labels": labels,
                "pictures": pictures,
            }
            self.parts["classes"] = None if store.classes is None else list(store.classes)
        if not kept:
            raise UserError(f"none of the {sample.described} can be read")
        return torch.cat(rows)

    def _neighbours(self, h: Tensor) -> None:
        """Of one image of each class, where there are any."""
        if len(h) < 3:
            raise UserError("neighbours take three images or more")
        if not h.isfinite().all():
            raise UserError(
                "features are not finite, so no image is near another: training diverged"
            )
        u = unit_rows(h)
        order = torch.randperm(
            len(h), generator=torch.Generator().manual_seed(self.asked.seed)
        ).tolist()
        if labels := self.parts["labels"]:
            firsts = {labels[i]: i for i in reversed(order)}
            order = [
                *(firsts[label] for label in sorted(firsts)),
                *(i for i in order if firsts[labels[i]] != i),
            ]
        found = []
        for query in order[:QUERIES]:
            similar = u @ u[query]
            similar[query] = -torch.inf
            near = similar.topk(min(NEAR, len(h) - 1))
            found.append(
                {
                    "query": query,
                    "near": [
                        [i, round(s, 4)]
                        for i, s in zip(near.indices.tolist(), near.values.tolist(), strict=True)
                    ],
                }
            )
        self.parts["neighbours"] = found

    def _maps(self, encoder: Pretrained, sample: Sample) -> None:
        images, captions = choose_images(sample, encoder.resolution, MAPS)
        found, places = energies(encoder, images)
        self.parts["maps"] = {
            "captions": captions,
            "images": [url(image, LARGE) for image in images],
            "maps": [overlaid(image, energy) for image, energy in zip(images, found, strict=True)],
            "places": list(places),
        }

    def _pairs(self) -> None:
        """Views as the run's policy draws them, of images it was pretrained on, and how its embeddings of them agree."""
        config = read_config(self.run.folder / "config.yaml")
        method = create(config, self.run.about.get("num_images") or 1)
        method.load_state_dict(self.run.state()["method"])
        method.to(self.device)
        views = create_views(config, method)
        sample = Sample(
            self.asked.source, self.asked.root, PAIRS, self.asked.seed, self.num_workers, "pretrain"
        )
        try:
            with sample.open(self.run.about.get("resolution") or config.views.size) as (store, _):
                images = store[:]
        except UserError:
            self.again = True
            raise
        self._views(views, images[:: max(1, len(images) // VIEWED)][:VIEWED])
        if len(images) < MIN_PAIRS:
            raise UserError(
                f"{len(images)} images are too few to sort pairs of: {MIN_PAIRS} are needed"
            )
        pairs = positive_pairs(
            method, views, images, seed=self.asked.seed, eps=float(config.method.get("eps", 1e-6))
        )
        self.parts["pairs"] = {"count": len(images), "data": sample.data, "shown": _sorted(pairs)}

    def _views(self, views: Views, images: Tensor) -> None:
        """Kept: for each image, its views in some draws. A jigsaw's patches are views too."""
        rows: list[list[str]] = [[] for _ in images]
        for draw in range(DRAWS):
            for view in views(
                images, Batch(images, torch.arange(len(images)), self.asked.seed + draw).generator()
            ):
                for row, one in zip(rows, _uint8(view, views), strict=True):
                    row.append(url(one, LARGE))
        policy = views.policy
        kinds = Counter(
            f"{view.size} px" + (f", cut into {view.grid} × {view.grid} patches" * (view.grid > 1))
            for view in policy.views
        )
        sizes = " and ".join(f"{count} of {kind}" for kind, count in kinds.items())
        self.parts["views"] = {
            "policy": policy.name,
            "sizes": sizes,
            "images": [url(image, LARGE) for image in images],
            "views": rows,
        }


@torch.inference_mode()
def _features(encoder: Pretrained, images: Tensor, device: torch.device) -> Tensor:
    if not len(images):
        return torch.empty(0, encoder.dim)
    with evaluation_mode(encoder):
        found: Tensor = encoder(
            normalise(images.to(device), encoder.mean, encoder.std, encoder.image_size)
        )
    return found.float().cpu()


def _sorted(pairs: Pairs) -> list[dict[str, Any]]:
    """From the least dependency to the most, at even distances."""
    order = np.argsort(pairs.m, kind="stable")
    chosen = [
        int(order[round(share * (len(order) - 1))])
        for share in np.linspace(0, 1, min(SHOWN, len(order)))
    ]
    sides = [
        [
            url(torch.from_numpy(side[i]).permute(2, 0, 1), LARGE)
            for side in (pairs.first, pairs.second)
        ]
        for i in chosen
    ]
    return [
        {"pictures": both, "rho": float(pairs.rho[i]), "m": float(pairs.m[i])}
        for both, i in zip(sides, chosen, strict=True)
    ]


def _uint8(x: Tensor, views: Views) -> Tensor:
    mean, std = (
        torch.tensor(values)[:, None, None] for values in (views.policy.mean, views.policy.std)
    )
    return ((x.cpu() * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)


def url(image: Tensor, most: int) -> str:
    """uint8 [3, H, W] as a data: URL, no larger than so many pixels. What is tiny stays exact, for it will be enlarged."""
    found = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if max(found.size) > most:
        found.thumbnail((most, most), Image.Resampling.LANCZOS)
    return encoded(found)


def encoded(image: Image.Image) -> str:
    kind = "png" if max(image.size) <= EXACT else "webp"
    buffer = io.BytesIO()
    try:
        image.save(
            buffer,
            kind,
            **({"optimize": True} if kind == "png" else {"quality": QUALITY, "method": 4}),
        )
    except (KeyError, OSError):  # a Pillow without WebP
        kind, buffer = "jpeg", io.BytesIO()
        image.save(buffer, kind, quality=QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def overlaid(image: Tensor, energy: Tensor) -> str:
    """uint8 [3, S, S] in grey under the energy [S, S] in plotly's Inferno."""
    from plotly.colors import sample_colorscale, unlabel_rgb

    colours = np.array(
        [unlabel_rgb(c) for c in sample_colorscale("Inferno", np.linspace(0, 1, 256))],
        dtype=np.float32,
    )
    size = (LARGE, LARGE)
    grey = interpolate(
        image.float().mean(dim=0)[None, None],
        size,
        mode="nearest" if image.shape[-1] < LARGE else "area",
    )[0, 0].numpy()
    smooth = interpolate(scale_to_unit(energy)[None, None], size, mode="bilinear")[0, 0]
    mixed = 0.38 * grey[..., None] + 0.62 * colours[(255 * smooth).round().long().numpy()]
    return encoded(Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8)))
