"""Open the labelled training and test images of a dataset for evaluation."""

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from smi.data import Store, load
from smi.data.decoder import ValueRange
from smi.data.folders import FileSet
from smi.data.remote import LostError, read
from smi.data.shards import ShardSet
from smi.data.sources import ArraySet, ImageSet, Source, dataset_label
from smi.data.subset import Subset
from smi.errors import UserError
from smi.evaluation.accuracy import TOP_RANK
from smi.evaluation.features import labels_of
from smi.seeds import derive

NUM_HASHED_IMAGES = 64  # images of each split that are hashed to identify the dataset
MAX_NAMED_CLASSES = 5  # classes that a note lists


class LabelledData:
    """Hold labelled images of two splits, and the part of a protocol that describes them."""

    def __init__(
        self, data: str, train: Store, test: Store, *, images: dict[str, dict[str, Any]], seed: int
    ):
        """Check the classes of both splits.

        data: the name of a dataset, or the name of a folder followed by a slash.
        images: the part of the protocol that describes the splits "train" and "test".
        """
        self.data = data
        self.train = train
        self.test = test
        self.seed = seed
        labels, test_labels = labels_of(train), labels_of(test)
        self.classes = train.classes or test.classes
        self.num_classes = (
            len(self.classes) if self.classes else int(max(labels.max(), test_labels.max())) + 1
        )
        # the same for every protocol on these images
        self.protocol = {"data": data, "classes": self.num_classes, **images}
        trained = sorted(set(labels.tolist()))
        tested = sorted(set(test_labels.tolist()))
        self._check_classes(trained, tested)
        self.notes = list(self._class_notes(trained, tested, test_labels))

    def _check_classes(self, trained: Sequence[int], tested: Sequence[int]) -> None:
        if len(trained) < 2:
            raise UserError(
                f"all labelled training images of {self.data} are of one class "
                f"({self._class_names(trained)}): evaluation needs two classes or more"
            )
        if not set(trained) & set(tested):
            raise UserError(
                f"no class of {self.data}'s training images ({self._class_names(trained)}) is "
                f"among those of its test images ({self._class_names(tested)}): the class folders "
                "of both splits must have the same names"
            )

    def _class_notes(
        self, trained: Sequence[int], tested: Sequence[int], test_labels: Tensor
    ) -> Iterator[str]:
        """Yield a note for each way in which the classes limit the accuracy."""
        if unseen := [label for label in tested if label not in trained]:
            num_wrong = int(torch.isin(test_labels, torch.tensor(unseen)).sum())
            yield (
                f"{self._class_names(unseen)}: no training images, so {num_wrong:,} of the "
                f"{len(test_labels):,} test images cannot be classified correctly"
            )
        if untested := [label for label in trained if label not in tested]:
            yield f"{self._class_names(untested)}: no test images"
        if self.num_classes <= TOP_RANK:
            yield f"{self.num_classes} classes: top-5 accuracy would always be 100 %"

    def _class_names(self, labels: Sequence[int]) -> str:
        names = [self.classes[label] if self.classes else str(label) for label in labels]
        num_more = len(names) - MAX_NAMED_CLASSES
        return ", ".join(names[:MAX_NAMED_CLASSES]) + (
            f" and {num_more} more" if num_more > 0 else ""
        )


def check_number(images: int, available: int, name: str) -> None:
    """Raise a UserError if a dataset does not have as many labelled training images."""
    if images < 1:
        raise UserError(f"--images must be 1 or more, not {images}")
    if images > available:
        raise UserError(
            f"--images is {images:,}, but {name} has only {available:,} labelled images"
        )


class LabelledSource:
    """Open datasets by name or folder, and close their stores at the end.

    with LabelledSource(images=None, seed=0, num_workers=None) as source:
        data = source.open("cifar10", resolution=32, root=None)
    """

    def __init__(self, *, images: int | None, seed: int, num_workers: int | None):
        """Set the number of training images to draw with the seed; None takes all."""
        self._images = images
        self._seed = seed
        self._num_workers = num_workers
        self._stack = ExitStack()

    def open(
        self,
        data: str,
        *,
        resolution: int,
        root: str | Path | None,
        value_range: ValueRange | None = None,
    ) -> LabelledData:
        """Open the training and test images of a dataset.

        resolution: the size at which files are decoded. root: the folder of named datasets.
        value_range: of the encoder, for images of more than 8 bits; None is that of the dataset.
        """
        source = Source(data, Path(root) if root else None, value_range)
        described: dict[str, dict[str, Any]] = {}

        def open_split(split: Literal["train", "val"], part: str) -> Store:
            images = source.split(split)
            described[part] = {
                "split": split,
                "images": len(images),
                "which": _fingerprint(images),
            }
            store = load(
                source,
                split,
                resolution=None if isinstance(images, ArraySet) else resolution,
                num_workers=self._num_workers,
            )
            self._stack.callback(store.close)
            return store

        train = open_split("train", "train")
        labels_of(train)  # missing labels are reported before a missing test split
        test = open_split("val", "test")
        if self._images is not None:
            train = self._draw(train, dataset_label(data))
            described["train"] |= {"images": self._images, "drawn with seed": self._seed}
        return LabelledData(dataset_label(data), train, test, images=described, seed=self._seed)

    def _draw(self, train: Store, name: str) -> Store:
        """Draw the requested number of training images."""
        images = self._images or 0
        check_number(images, len(train), name)
        generator = torch.Generator().manual_seed(derive(self._seed, "labelled"))
        order = torch.randperm(len(train), generator=generator)
        return Subset(train, order[:images].sort().values)

    def __enter__(self) -> "LabelledSource":
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()


def _fingerprint(images: ImageSet) -> str:
    """Hash labels, paths and sizes of files, and the content of some of them.

    Results on different images must not have the same stamp.
    """
    digest = hashlib.sha256(
        json.dumps(images.classes).encode()
        + (b"" if images.labels is None else images.labels.tobytes())
    )
    if isinstance(images, FileSet):
        hashed = set(range(0, len(images), math.ceil(len(images) / NUM_HASHED_IMAGES)))
        for i, entry in enumerate(images.entries):
            digest.update(f"{entry.path}\0{entry.size}\0".encode(errors="surrogateescape"))
            if i in hashed:
                with contextlib.suppress(OSError, LostError):  # unreadable: it has no content
                    digest.update(read(images.location(i)))
    elif isinstance(images, ShardSet):
        images.update_digest(digest)
    else:
        for part in images.parts:
            digest.update(part[: NUM_HASHED_IMAGES // len(images.parts) + 1].tobytes())
    return digest.hexdigest()[:8]
