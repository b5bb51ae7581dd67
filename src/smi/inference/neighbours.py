"""Find the images most similar to one or more query images, and draw them on a contact sheet.

result = neighbours("runs/mine", data="photographs", queries=["cat.jpg"], out="neighbours.png")
print(result.text())

n images, F coordinates, m queries.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.data.given import Given, as_path
from smi.device import Runtime
from smi.errors import UserError
from smi.evaluation.knn import NearestRows
from smi.files import Sources, as_list, expand, finite
from smi.inference.images import (
    EMBED_BATCH_SIZE,
    AllImages,
    describe_encoder,
    find_images,
    is_same_file,
)
from smi.inference.neighbours_sheet import Tile, draw_sheet, thumbnail_of_file
from smi.losses.numerics import unit_rows
from smi.runs.encoder import Pretrained, load
from smi.tables import Table
from smi.terminal import announce, printable, quietly
from smi.views.png import check_png_path, write_png

Nearest = list[tuple[int, float]]  # place and cosine similarity, most similar first


@dataclass(frozen=True)
class Neighbour:
    """Describe an image that is similar to a query."""

    file: str  # path relative to the folder
    similarity: float  # cosine similarity of the features
    label: str | None  # class, if the images have labels


@dataclass(frozen=True)
class Neighbours:
    """Hold the neighbours of every query, most similar first, and the contact sheet."""

    queries: list[Path]
    rows: list[list[Neighbour]]  # one for each query
    sheet: Path
    num_images: int
    encoder: str  # described in words

    def text(self) -> str:
        """Return a table of the neighbours, and a sentence about the contact sheet."""
        lines = [
            [printable(str(query)) if rank == 1 else "", str(rank), f"{neighbour.similarity:.4f}"]
            for query, row in zip(self.queries, self.rows, strict=True)
            for rank, neighbour in enumerate(row, 1)
        ]
        table = Table.of(["query", "rank", "similarity"], lines).text().split("\n")
        # File names are aligned to the left, so they follow the table.
        files = [_caption(neighbour) for row in self.rows for neighbour in row]
        files = ["file", "----", *files]
        body = [f"{line}  {file}" for line, file in zip(table, files, strict=True)]
        sentence = (
            f"{printable(str(self.sheet))}: {len(self.queries):,} × {max(map(len, self.rows)):,} "
            f"of {self.num_images:,} images, by {self.encoder}"
        )
        return "\n".join([*body, "", sentence])

    def plain(self) -> dict[str, Any]:
        """Return queries and neighbours as nested dictionaries, ready for JSON."""
        queries = [
            {"query": str(query), "neighbours": [asdict(neighbour) for neighbour in row]}
            for query, row in zip(self.queries, self.rows, strict=True)
        ]
        plain: dict[str, Any] = finite(
            {"sheet": str(self.sheet), "images": self.num_images, "queries": queries}
        )
        return plain


def neighbours(
    source: str | Path,
    *,
    data: Given,
    queries: Sources,
    out: str | Path = "neighbours.png",
    k: int = 8,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Neighbours:
    """Find the k images of a folder or dataset that are most similar to each query.

    result = neighbours("runs/mine", data="photographs", queries=["cat.jpg"], k=8)
    result.rows[0][0].file       # the image most similar to cat.jpg

    out: the contact sheet, a PNG. Equally similar images come in the order of their paths. A query
    that lies in the folder is not its own neighbour.
    """
    out = expand(out)
    check_png_path(out)
    if k < 1:
        raise UserError(f"the number of neighbours must be 1 or more, not {k}")
    if not queries:
        raise UserError("give at least one query image with --query")
    files = [expand(query) for query in as_list(queries)]
    data = as_path(data)
    encoder = load(source)
    device = runtime.choose_device()
    encoder.to(device)
    with quietly(quiet), AllImages(find_images(data, encoder, runtime), encoder, runtime) as images:
        encoder.value_range = images.value_range  # queries are scaled in the same way
        pictures = [thumbnail_of_file(file, images.value_range) for file in files]
        own = [images.places_of(file) for file in files]
        if any(is_same_file(out, file) for file in files) or images.places_of(out):
            raise UserError(f"{printable(str(out))} is one of the images: choose another --out")
        query_features = _query_features(encoder, files, device)
        nearest = _search(encoder, images, query_features, own, k, device)
        images.warn_unreadable()
        _warn_few(min(map(len, nearest)), k, data)
        tiles = [
            (
                Tile(picture, file.name, images.label(places[0]) or "" if places else ""),
                [images.tile(place, similarity) for place, similarity in row],
            )
            for file, picture, places, row in zip(files, pictures, own, nearest, strict=True)
        ]
        rows = [
            [
                Neighbour(images.name(place), similarity, images.label(place))
                for place, similarity in row
            ]
            for row in nearest
        ]
    described = describe_encoder(encoder, source)
    write_png(draw_sheet(tiles, title=f"nearest of {data}, by the features of {described}"), out)
    return Neighbours(files, rows, out, images.num_readable, described)


def _query_features(encoder: Pretrained, files: Sequence[Path], device: torch.device) -> Tensor:
    """Compute the features of the queries on the CPU, [m, F]."""
    with torch.inference_mode():
        parts = [
            encoder(encoder.transform(files[i : i + EMBED_BATCH_SIZE]).to(device)).cpu()
            for i in range(0, len(files), EMBED_BATCH_SIZE)
        ]
    return torch.cat(parts)


def _search(
    encoder: Pretrained,
    images: AllImages,
    query_features: Tensor,
    own: Sequence[Sequence[int]],
    k: int,
    device: torch.device,
) -> list[Nearest]:
    """Return the k nearest images of each query without its `own` places; fewer if there are few.

    Similarities are computed in float64 and rounded to float32. Equal features then have equal
    similarities in every batch.
    """
    queries = unit_rows(query_features.double())
    best = NearestRows(k, stable=True)
    features = images.features(encoder, EMBED_BATCH_SIZE, device, "searching")
    with contextlib.closing(features) as batches:
        for h, places in batches:
            similarity = (queries @ unit_rows(h.double()).T).float()  # [m, N]
            for query, own_places in enumerate(own):
                excluded = torch.isin(places, torch.tensor(own_places, dtype=torch.long))
                similarity[query, excluded] = -torch.inf
            best.add(similarity, places.expand(len(queries), -1))
    rows = zip(best.index.tolist(), best.similarity.tolist(), strict=True)
    return [
        [(place, s) for place, s in zip(places, similarities, strict=True) if s > -torch.inf]
        for places, similarities in rows
    ]


def _warn_few(fewest: int, k: int, data: Given) -> None:
    """Print a warning if there are fewer images than neighbours requested."""
    if fewest < k:
        available = "no other" if fewest == 0 else f"only {fewest:,}"
        announce(f"{k:,} neighbours were requested, but {printable(str(data))} has {available}")


def _caption(neighbour: Neighbour) -> str:
    label = f"  ({printable(neighbour.label)})" if neighbour.label is not None else ""
    return printable(neighbour.file) + label
