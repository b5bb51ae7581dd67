"""Open labelled images for a classifier: a part to train on, and a part that is kept apart."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from smi.data.cache import MAX_CACHE_BYTES
from smi.data.folders import MAX_BAD_SHARE
from smi.data.given import Given, as_path
from smi.data.sources import ArraySet, ImageSet, Source, dataset_label
from smi.data.store import Store, open_store
from smi.data.subset import Subset
from smi.device import Runtime
from smi.errors import UserError
from smi.evaluation.logistic import hold_out
from smi.files import cache_home
from smi.runs.encoder import Pretrained
from smi.terminal import printable

MAX_NAMED_CLASSES = 3  # classes that a sentence lists


@dataclass(frozen=True)
class LabelledImages:
    """Hold the images to train on, those kept apart, and the names of the classes."""

    name: str
    train: Store
    apart: Store
    classes: tuple[str, ...]
    how_apart: str  # how the second part was chosen, in words


@contextlib.contextmanager
def open_labelled(
    data: Given, encoder: Pretrained, seed: int, runtime: Runtime
) -> Iterator[LabelledImages]:
    """Open labelled images at the size of an encoder, and close them at the end.

    The second split of the data (val/ or test/) is kept apart. Without one it is a fifth of each
    class, drawn with the seed.
    """
    target = as_path(data)
    name = dataset_label(target)
    root = runtime.root or encoder.root
    source = Source(target, Path(root) if root else None, encoder.value_range)
    train_set, apart_set = source.labelled_parts()
    classes = _check_labels(train_set, apart_set, name)
    with contextlib.ExitStack() as stack:

        def opened(images: ImageSet) -> Store:
            store = open_store(
                images,
                resolution=None if isinstance(images, ArraySet) else encoder.resolution,
                cache=cache_home() / "images",
                num_workers=runtime.num_workers,
                max_bad_share=MAX_BAD_SHARE,
                max_cache_bytes=MAX_CACHE_BYTES,
            )
            stack.callback(store.close)
            return store

        train = opened(train_set)
        if apart_set is not None:
            yield LabelledImages(name, train, opened(apart_set), classes, "the split val")
            return
        fitted, held_out = hold_out(_labels(train), seed)
        how = f"a fifth of each class, drawn with seed {seed}"
        yield LabelledImages(name, Subset(train, fitted), Subset(train, held_out), classes, how)


def _labels(store: Store) -> Tensor:
    assert store.labels is not None  # checked before the store was opened
    return store.labels


def _check_labels(train: ImageSet, apart: ImageSet | None, name: str) -> tuple[str, ...]:
    """Return the names of the classes, or raise a UserError if they cannot be learnt."""
    name = printable(name)
    labels, apart_labels = train.labels, None if apart is None else apart.labels
    if labels is None or (apart is not None and apart_labels is None):
        part = "" if labels is None else " of the second split"
        raise UserError(
            f"the images{part} of {name} have no labels: put those of each class into a folder of "
            "its own, in two folders or more, or give a list with labels"
        )
    numbers = [*labels.tolist(), *(apart_labels.tolist() if apart_labels is not None else [])]
    classes = train.classes or tuple(map(str, range(max(numbers) + 1)))
    trained = {*labels.tolist()}
    if len(trained) < 2:
        raise UserError(
            f"all labelled images of {name} are of one class ({printable(classes[numbers[0]])}): "
            "a classifier needs two or more"
        )
    counts = Counter(numbers)
    if single := [classes[label] for label in sorted(counts) if counts[label] == 1]:
        raise UserError(
            f"{name} has only one image of {_listed(single)}: a classifier needs two or more of "
            "each class, one to learn from and one to test it"
        )
    if unseen := [classes[label] for label in sorted(counts.keys() - trained)]:
        raise UserError(
            f"{name} has no training images of {_listed(unseen)}: add some, or remove the class"
        )
    return classes


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(printable, names[:MAX_NAMED_CLASSES]))
    num_more = len(names) - MAX_NAMED_CLASSES
    return shown + (f" and {num_more:,} more classes" if num_more > 0 else "")
