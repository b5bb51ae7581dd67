"""Build the galleries of a report from portraits: views, pairs, neighbours and energy maps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from smi.evaluation.results import OFF_THE_SHELF
from smi.figures.energy_maps import MAP_DESCRIPTION
from smi.pages import Block, Gallery, Section, Tile
from smi.reporting.gains import ADAPTED
from smi.reporting.portrait import NUM_NEIGHBOURS, Portrait
from smi.reporting.run_blocks import group_rows, join_words, missing_block

PAIRS_TITLE = "Positive pairs, sorted by dependency"
NEIGHBOURS_TITLE = "Nearest neighbours"
BEFORE_AFTER_NEIGHBOURS_TITLE = f"{NEIGHBOURS_TITLE}, before and after"
NUM_NEIGHBOURS_BESIDE = 5  # in each row before and after
MAPS_TITLE = "Energy maps of the encoders"


def views_gallery(views: Mapping[str, Any], data: str) -> Gallery:
    """Show images beside their augmented views."""
    rows: list[tuple[str, list[Tile]]] = []
    for number, (image, drawn) in enumerate(zip(views["images"], views["views"], strict=True), 1):
        tiles = [Tile(image, f"image {number} of {data}", mark="query")]
        tiles += [Tile(view, f"view {i} of image {number}") for i, view in enumerate(drawn, 1)]
        rows.append(("", tiles))
    return Gallery(
        "Images and their augmented views",
        rows,
        f"Framed: images of {data}. Beside each: two draws of its views under the policy "
        f"{views['policy']} ({views['sizes']}), as in training.",
    )


def pairs_gallery(row: str, part: Mapping[str, Any]) -> Gallery:
    """Show pairs of views with their dependency."""
    pairs = part["pairs"]
    rows = []
    for number, pair in enumerate(pairs["shown"], 1):
        caption = f"M = {pair['m']:.2f}, ρ = {pair['rho']:.2f}".replace("-", "−")
        tiles = [
            Tile(picture, f"view {i} of pair {number}")
            for i, picture in enumerate(pair["pictures"], 1)
        ]
        rows.append((caption, tiles))
    return Gallery(
        PAIRS_TITLE,
        rows,
        "Two views of one image, from the pair with the least dependent embeddings to the pair "
        f"with the most dependent ones: {len(rows)} of {pairs['count']:,} images of "
        f"{pairs['data']}, embedded by {row}. M = −½ log(1 − ρ² + ε), where ρ is the correlation "
        "of the two embeddings.",
        flow=True,
    )


def neighbours_gallery(row: str, part: Mapping[str, Any]) -> Gallery:
    """Show queries beside their nearest neighbours."""
    has_labels = part["labels"] is not None
    rows: list[tuple[str, list[Tile]]] = []
    for neighbours in part["neighbours"]:
        query = neighbours["query"]
        tiles = [_query_tile(part, query)]
        tiles += [
            _neighbour_tile(part, query, i, similarity) for i, similarity in neighbours["near"]
        ]
        rows.append(("", tiles))
    marks = " ✓: same class as the query, ×: another class." if has_labels else ""
    return Gallery(
        NEIGHBOURS_TITLE,
        rows,
        f"Framed: a query. Beside it: the {NUM_NEIGHBOURS} nearest of the other "
        f"{len(part['names']) - 1:,} {part['of']}, by cosine similarity of the features of {row}, "
        f"nearest first.{marks}",
    )


def before_after_gallery(
    part: Mapping[str, Any], before: Sequence[Mapping[str, Any]], row: str
) -> Gallery:
    """Show queries beside their nearest neighbours off the shelf and after training.

    before: the neighbours of the start among the images of `part`.
    """
    sides = {OFF_THE_SHELF: before, ADAPTED: part["neighbours"]}
    pairs = zip(*sides.values(), strict=True)
    rows = [
        _side_row(part, side, neighbours)
        for pair in pairs
        for side, neighbours in zip(sides, pair, strict=True)
    ]
    marks = " ✓: same class as the query, ×: another class." if part["labels"] is not None else ""
    return Gallery(
        BEFORE_AFTER_NEIGHBOURS_TITLE,
        rows,
        f"Framed: a query. Beside it: the {NUM_NEIGHBOURS_BESIDE} nearest of the other "
        f"{len(part['names']) - 1:,} {part['of']}, by cosine similarity of the features of the "
        f"start ({OFF_THE_SHELF}) and of {row} ({ADAPTED}), nearest first.{marks}",
        side_by_side=True,
    )


def _side_row(
    part: Mapping[str, Any], side: str, neighbours: Mapping[str, Any]
) -> tuple[str, list[Tile]]:
    """Show a query beside its neighbours, with the number of those of the same class."""
    query, labels = neighbours["query"], part["labels"]
    near = neighbours["near"][:NUM_NEIGHBOURS_BESIDE]
    tiles = [_query_tile(part, query)]
    tiles += [_neighbour_tile(part, query, i, similarity) for i, similarity in near]
    if labels is None:
        return side, tiles
    num_same = sum(labels[i] == labels[query] for i, _ in near)
    return f"{side}: {num_same} of {len(near)} of the same class", tiles


def _query_tile(part: Mapping[str, Any], query: int) -> Tile:
    """Show a query with its class and file name."""
    name = part["names"][query]
    words = (_class_name(part, query), name.rsplit("/", 1)[-1])
    return Tile(part["pictures"][query], f"query {name}", words, "query")


def _neighbour_tile(part: Mapping[str, Any], query: int, i: int, similarity: float) -> Tile:
    """Show a neighbour with its class and similarity, marked by whether the class is the same."""
    labels = part["labels"]
    class_name = _class_name(part, i)
    alt = f"{class_name} {part['names'][i]}, similarity {similarity:.3f}".strip()
    if labels is None:
        return Tile(part["pictures"][i], alt, (f"{similarity:.3f}",))
    mark: Literal["same", "other"] = "same" if labels[i] == labels[query] else "other"
    return Tile(part["pictures"][i], alt, (class_name, f"{similarity:.3f}"), mark)


def _class_name(part: Mapping[str, Any], i: int) -> str:
    """Return the class of an image, its label if classes have no names, or nothing."""
    labels, classes = part["labels"], part["classes"]
    if labels is None:
        return ""
    return str(classes[labels[i]] if classes else labels[i])


def energy_maps(
    parts: Mapping[str, dict[str, Any]], portraits: Mapping[str, Portrait]
) -> Iterator[Block]:
    """Yield one gallery for all encoders that were shown the same images."""
    groups = group_rows(parts, lambda part: (part["data"], *part.get("maps", {}).get("images", ())))
    for rows in groups.values():
        with_maps = [row for row in rows if "maps" in parts[row]]
        without_maps = [row for row in rows if "maps" not in parts[row]]
        if with_maps:
            yield _maps_gallery(with_maps, parts)
        if without_maps:
            yield Section(
                f"{MAPS_TITLE}: missing for {join_words(without_maps)}",
                [missing_block(portraits[row].missing.get("maps")) for row in without_maps],
            )


def _maps_gallery(rows: Sequence[str], parts: Mapping[str, dict[str, Any]]) -> Gallery:
    """Show images beside the energy map of each encoder."""
    first = parts[rows[0]]["maps"]
    gallery = []
    for i, caption in enumerate(first["captions"]):
        tiles = [Tile(first["images"][i], f"image: {caption}")]
        tiles += [
            Tile(parts[row]["maps"]["maps"][i], f"energy map of {row} over the image")
            for row in rows
        ]
        gallery.append((caption, tiles))
    sizes = dict.fromkeys(" × ".join(map(str, parts[row]["maps"]["places"])) for row in rows)
    return Gallery(
        MAPS_TITLE,
        gallery,
        f"{parts[rows[0]]['of'].capitalize()}, in grey beneath the ℓ2 norm over channels of each "
        f"encoder's {MAP_DESCRIPTION}, enlarged to the image (bilinear, from "
        f"{join_words(sizes)} positions). "
        "Each map is scaled from its minimum (dark) to its maximum (bright), so it shows where the "
        "energy is, not how much.",
        ("image", *rows),
    )
