"""What is in a folder of images, or in a named set: what `smi data` prints. Nothing here needs torch."""

import hashlib
import json
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from smi.data.cache import FILE_RESOLUTION, cache_bytes, decode_all, is_cached
from smi.data.decoder import Bad, Found
from smi.data.decoders import num_cores
from smi.data.download import download
from smi.data.folders import HELD_OUT_SHARE, MAX_BAD_SHARE, FileSet, Folder, read_folder
from smi.data.sources import ARCHIVES, NAMES, existing_folder, resolve
from smi.files import cache_home
from smi.terminal import printable

SHOWN = 10  # of a long list, unless as JSON
LOOK = 32  # pixels: large enough to see that a file decodes to its end, small enough to be quick

KINDS = {
    ".bmp": "BMP",
    ".dib": "BMP",
    ".gif": "GIF",
    ".png": "PNG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}


@dataclass(frozen=True)
class Description:
    """Of a folder. `sides` are the least, the median and the largest shorter side, in pixels; paths are relative to the folder."""

    path: str
    num_files: int
    num_bytes: int
    splits: dict[str, int]
    held_out: bool  # val is a part of what lies in the folder, kept from pretraining
    classes: dict[str, int] | None  # images in each, of all splits
    formats: dict[str, int]
    modes: dict[str, int]
    sides: tuple[int, float, int] | None
    unreadable: list[Bad]
    misnamed: list[Bad]
    duplicates: list[list[str]]  # groups of files with the same bytes
    across_splits: int  # of those groups, how many have files in train and in val
    ignored: list[str]
    unused: int  # images in neither split
    pretraining_images: int
    resolution: int
    cached: bool
    cache_bytes: int


def describe_folder(path: Path) -> Description:
    """Reads and decodes every file, on all cores."""
    folder = read_folder(path)
    files = [folder.train, *([folder.val] if folder.val else [])]
    entries = [(part.split, entry) for part in files for entry in part.entries]
    jobs = [(row, f"{folder.root}/{entry.path}") for row, (_, entry) in enumerate(entries)]
    replies = dict(decode_all(-1, LOOK, jobs, num_cores()))
    found = {row: reply for row, reply in replies.items() if isinstance(reply, Found)}
    unreadable = [
        Bad(entries[row][1].path, reply)
        for row, reply in sorted(replies.items())
        if isinstance(reply, str)
    ]
    sides = [min(image.width, image.height) for image in found.values()]
    duplicates = _duplicates(
        folder, (entry.path for row, (_, entry) in enumerate(entries) if row in found)
    )
    split_of = {entry.path: split for split, entry in entries}
    return Description(
        path=str(folder.root),
        num_files=len(entries),
        num_bytes=sum(entry.size for _, entry in entries),
        splits={part.split: len(part) for part in files},
        held_out=folder.held_out,
        classes=_class_counts(files),
        formats=_counts(image.format for image in found.values()),
        modes=_counts(image.mode for image in found.values()),
        sides=(min(sides), statistics.median(sides), max(sides)) if sides else None,
        unreadable=unreadable,
        misnamed=_misnamed({entries[row][1].path: image for row, image in sorted(found.items())}),
        duplicates=duplicates,
        across_splits=sum(len({split_of[path] for path in group}) > 1 for group in duplicates),
        ignored=list(folder.ignored),
        unused=folder.num_images - len(entries),
        pretraining_images=sum(entries[row][0] == "train" for row in found),
        resolution=FILE_RESOLUTION,
        cached=is_cached(folder.train, FILE_RESOLUTION, cache_home() / "images"),
        cache_bytes=cache_bytes(len(folder.train), FILE_RESOLUTION),
    )


def _class_counts(files: list[FileSet]) -> dict[str, int] | None:
    counts: Counter[str] = Counter()
    for part in files:
        if part.labels is not None and part.classes is not None:
            counts.update(part.classes[label] for label in part.labels)
    return dict(sorted(counts.items())) or None


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _misnamed(found: dict[str, Found]) -> list[Bad]:
    kinds = {path: KINDS.get(os.path.splitext(path)[1].lower(), "JPEG") for path in found}
    return [
        Bad(path, f"is {image.format}")
        for path, image in found.items()
        if image.format.replace("MPO", "JPEG") != kinds[path]
    ]


def _duplicates(folder: Folder, paths: Iterable[str]) -> list[list[str]]:
    """Only files of one size can be the same, so only those are read again."""
    by_size, by_bytes = defaultdict(list), defaultdict(list)
    for path in paths:
        by_size[(folder.root / path).stat().st_size].append(path)
    for same_size in by_size.values():
        for path in same_size if len(same_size) > 1 else ():
            with (folder.root / path).open("rb") as file:
                by_bytes[hashlib.file_digest(file, "sha256").digest()].append(path)
    return sorted(sorted(group) for group in by_bytes.values() if len(group) > 1)


@dataclass(frozen=True)
class Summary:
    """Of a named set."""

    name: str
    path: str | None
    pretraining_images: int
    splits: dict[str, int]
    classes: tuple[str, ...] | None
    pixels: int | None  # of a side; None where files have their own sizes


def summarize(name: str, root: Path | None = None) -> Summary:
    """Downloads the set if it is not there."""
    path = str(download(name, root)) if name in ARCHIVES else None
    train, val = resolve(name, "train", root), resolve(name, "val", root)
    pretrain = train if isinstance(train, FileSet) else resolve(name, "pretrain", root)
    pixels = None if isinstance(train, FileSet) else train.parts[0].shape[-1]
    path = str(train.root) if isinstance(train, FileSet) else path
    return Summary(
        name, path, len(pretrain), {"train": len(train), "val": len(val)}, train.classes, pixels
    )


# ------------------------------------------------------------------------------------------------------------------- what is printed


def print_data(target: str, *, root: Path | None, as_json: bool) -> None:
    found = summarize(target, root) if target in NAMES else describe_folder(existing_folder(target))
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    text = _summary_text(found) if isinstance(found, Summary) else _description_text(found)
    print("\n".join(map(printable, text.split("\n"))))


def _summary_text(summary: Summary) -> str:
    size = f"{summary.pixels} x {summary.pixels} pixels" if summary.pixels else "files of any size"
    lines = [
        f"{summary.name}: {size}",
        f"  where       {summary.path or 'comes with scikit-learn, nothing to download'}",
        f"  splits      {_listed(summary.splits)}",
        f"  classes     {_class_names(summary.classes)}",
        "",
        f"Pretraining would use {summary.pretraining_images:,} images, without their labels.",
    ]
    return "\n".join(lines)


def _class_names(classes: tuple[str, ...] | None) -> str:
    if classes is None:
        return "not named"
    return (
        f"{len(classes):,}: {', '.join(classes[:SHOWN])}{', ...' if len(classes) > SHOWN else ''}"
    )


def _description_text(d: Description) -> str:
    held_out = (
        f" (val: about {HELD_OUT_SHARE:.0%} of each class, held out by a hash of the path)"
        if d.held_out
        else ""
    )
    lines = [
        d.path,
        f"  files       {d.num_files:,} named like images, {d.num_bytes / 1e6:,.1f} MB",
        f"  formats     {_listed(d.formats)}",
        f"  modes       {_listed(d.modes)}",
        f"  sizes       {_sides(d.sides)}",
        f"  splits      {_listed(d.splits)}{held_out}",
        f"  classes     {_class_counts_text(d.classes)}",
        f"  unreadable  {len(d.unreadable):,}",
        *_shown([f"{printable(bad.path)}: {bad.reason}" for bad in d.unreadable]),
        f"  misnamed    {len(d.misnamed):,}",
        *_shown([f"{printable(bad.path)} {bad.reason}" for bad in d.misnamed]),
        f"  duplicates  {sum(map(len, d.duplicates)) - len(d.duplicates):,} files repeat another"
        + (f"; {d.across_splits:,} images are in train and in val" if d.across_splits else ""),
        *_shown([" = ".join(map(printable, group)) for group in d.duplicates]),
        f"  others      {len(d.ignored):,} ignored"
        + (f", and {d.unused:,} images outside train/ and val/" if d.unused else ""),
        *_shown(list(map(printable, d.ignored))),
        "",
    ]
    kept = (
        f"decoded once into a cache of {d.cache_bytes / 1e6:,.0f} MB"
        if d.cached
        else "decoded whenever they are seen (too many to cache)"
    )
    if len(d.unreadable) == d.num_files:
        return "\n".join([*lines, "Pretraining would stop: none of these files can be read."])
    lines.append(
        f"Pretraining would use {d.pretraining_images:,} images at {d.resolution} px, {kept}, without their labels."
    )
    if len(d.unreadable) > MAX_BAD_SHARE * d.num_files:
        lines.append(
            f"It would stop first, for more than {MAX_BAD_SHARE:.0%} of the files are unreadable: mend or remove them."
        )
    if d.classes is None:
        lines.append("There are no labels: everything but accuracy works without them.")
    return "\n".join(lines)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"


def _sides(sides: tuple[int, float, int] | None) -> str:
    return (
        f"shorter side {sides[0]:,} to {sides[2]:,} px, median {sides[1]:,.0f}" if sides else "none"
    )


def _class_counts_text(classes: dict[str, int] | None) -> str:
    if classes is None:
        return "none (two or more folders of images, and no image beside them, would be classes)"
    few, many = min(classes.values()), max(classes.values())
    shown = _listed(dict(list(classes.items())[:SHOWN]))
    return f"{len(classes):,} of {few:,} to {many:,} images: {shown}{', ...' if len(classes) > SHOWN else ''}"


def _shown(items: list[str]) -> list[str]:
    more = [f"... and {len(items) - SHOWN:,} more (all with --json)"] if len(items) > SHOWN else []
    return [f"              {item}" for item in [*items[:SHOWN], *more]]
