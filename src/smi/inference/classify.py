"""Train a classifier on labelled images, or label images with one, as `smi classify` does.

classify("runs/mine", data="photos", out="classifiers/photos")      # trains and keeps it
print(classify("classifiers/photos", ["a.jpg", "holiday/"]).csv())  # labels with confidence
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from smi.data.arrays import is_array_file
from smi.data.decoder_pool import num_cores
from smi.data.folders import FileSet
from smi.data.given import Given
from smi.data.listing import SUFFIXES, Listing
from smi.data.lists import LIST_SUFFIXES, look_up
from smi.data.remote import is_url
from smi.data.shards import SHARD_SUFFIXES
from smi.data.sources import ImageSet
from smi.data.value_range import range_of_files
from smi.device import Runtime
from smi.distributed import num_launched
from smi.errors import UserError
from smi.files import expand
from smi.inference.classifier import PREDICT_BATCH_SIZE, Classifier, load_classifier
from smi.inference.images import AllImages, find_images
from smi.inference.predictions import Prediction, Predictions, check_labels_path
from smi.inference.train_classifier import train_classifier
from smi.runs.encoder import Pretrained, square
from smi.terminal import printable, quietly


def classify(
    source: str | Path,
    images: Given | None = None,
    *,
    data: Given | None = None,
    out: str | Path | None = None,
    epochs: int | None = None,
    seed: int = 0,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Classifier | Predictions:
    """Train a classifier on the labelled images `data`, or label `images` with a trained one.

    classifier = classify("runs/mine", data="photos", out="classifiers/photos")
    predictions = classify("classifiers/photos", ["a.jpg", "holiday/"])
    predictions.rows[0].label, predictions.rows[0].confidence

    source: to train, a run, an encoder file, an exported folder or timm:NAME; to label, the folder
    of a classifier. images: files, folders or other sources. out: the folder of a new classifier,
    or a file for the labels, FILE.csv or FILE.json. epochs: of fine-tuning; 0 skips it, None takes
    those that fit into ten minutes. seed: of the images kept apart and of fine-tuning.
    """
    if num_launched() > 1:
        raise UserError("`smi classify` runs in one process: start it without torchrun")
    has_images = images is not None and not (isinstance(images, Sequence) and len(images) == 0)
    with quietly(quiet):
        if data is not None:
            if has_images:
                raise UserError(
                    "give --data to train a classifier or images to label with one, not both"
                )
            if out is None:
                raise UserError("name the folder of the classifier: --out classifiers/mine")
            return train_classifier(
                source, data=data, out=out, epochs=epochs, seed=seed, runtime=runtime
            )
        classifier = load_classifier(source)
        if not has_images:
            raise UserError(f"name the images to label: smi classify {source} IMAGES...")
        return _label(classifier, images, expand(out) if out is not None else None, runtime)


def _label(
    classifier: Classifier, images: Given, out: Path | None, runtime: Runtime
) -> Predictions:
    """Label images, and write the labels if there is a file for them."""
    if out is not None:
        check_labels_path(out)
    device = runtime.choose_device()
    classifier.to(device)
    parts = list(_find_parts(images, classifier.encoder, runtime))
    rows = [row for part in parts for row in _label_readable(part, classifier, device)]
    predictions = Predictions(rows)
    return predictions if out is None else predictions.write(out)


# --------------------------------------------------------------------------------- images to label


@dataclass(frozen=True)
class _Part:
    """Hold images of one source.

    folder: as the user named it, for the names of its images. files: single files, if it is those.
    """

    sets: Sequence[ImageSet]
    folder: str
    runtime: Runtime
    files: Sequence[str] = ()


def _find_parts(images: Given, encoder: Pretrained, runtime: Runtime) -> Iterator[_Part]:
    """Find the images of files, folders and other sources, in the order of their names."""
    if isinstance(images, str | os.PathLike):
        images = [images]
    is_list = isinstance(images, list | tuple)
    if not is_list or not all(isinstance(item, str | os.PathLike) for item in images):
        yield _Part(find_images(images, encoder, runtime), "", runtime)
        return
    for are_files, words in groupby(map(os.fspath, images), _is_file):
        if are_files:
            yield _files(list(words), encoder, runtime)
            continue
        for word in words:
            folder = word if not is_url(word) and expand(word).is_dir() else ""
            yield _Part(find_images(word, encoder, runtime), folder, runtime)


def _is_file(word: str) -> bool:
    """Return whether a word names one image, not a folder, list, array file or shard."""
    suffix = os.path.splitext(word)[1].lower()
    if is_url(word) or not expand(word).exists():
        return suffix in SUFFIXES
    other = suffix in (*LIST_SUFFIXES, *SHARD_SUFFIXES) or is_array_file(word)
    return expand(word).is_file() and not other


def _files(words: list[str], encoder: Pretrained, runtime: Runtime) -> _Part:
    """Return single image files as one part; all of them must exist."""
    paths = [word if is_url(word) else str(expand(word)) for word in words]
    for path in paths:
        if not is_url(path) and not os.path.isfile(path):
            raise UserError(f"there is no image {printable(path)}")
    root = Path.cwd()
    files = FileSet("images", "train", root, Listing.of(look_up(root, paths)))
    files = replace(files, value_range=encoder.value_range or range_of_files(files))
    workers = min(runtime.num_workers or num_cores(), len(paths))
    return _Part((files,), "", replace(runtime, num_workers=workers), paths)


def _label_readable(
    part: _Part, classifier: Classifier, device: torch.device
) -> Iterator[Prediction]:
    """Yield predictions; if no file can be read, the error is about the file, not its folder."""
    try:
        yield from _label_part(part, classifier, device)
    except UserError:
        for path in part.files:
            if not is_url(path):
                square(path, classifier.encoder.resolution, classifier.encoder.value_range)
        raise


def _label_part(part: _Part, classifier: Classifier, device: torch.device) -> Iterator[Prediction]:
    """Yield the predictions of all images of a part that can be read."""
    classes = classifier.classes
    with AllImages(part.sets, classifier.encoder, part.runtime) as images:
        features = images.features(classifier.encoder, PREDICT_BATCH_SIZE, device, "classifying")
        with contextlib.closing(features) as batches:
            for h, places in batches:
                with torch.inference_mode():
                    best = classifier.probabilities(h.to(device)).topk(2)
                rows = zip(
                    places.tolist(), best.values.tolist(), best.indices.tolist(), strict=True
                )
                for place, (first_p, second_p), (first, second) in rows:
                    name = os.path.join(part.folder, images.name(place))
                    yield Prediction(name, classes[first], first_p, classes[second], second_p)
        images.warn_unreadable()
