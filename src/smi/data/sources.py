"""Find datasets by name, folders and array files by path.

    smi data cifar10                 downloads and verifies it
    Source("cifar10").split("val")   finds it: arrays of pixels, files or shards

A source is the name of a dataset, a folder, a list of images (`lists.py`), or shards (`shards.py`).
Each may be a URL that fsspec reads. A pattern names several folders or shards: `photos/{a,b}`,
`shards/{000000..000099}.tar`, `s3://bucket/train-*.parquet`. `hf:NAME` or `hf:NAME:SPLIT` is a
dataset of Hugging Face's hub.

There are three splits. `pretrain` never has labels and holds all images to learn from (those of
STL-10 include its unlabelled images). `train` and `val` are for probes. If the second split of a
dataset is called test, it is `val` here.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smi.data.arrays import ArrayFile, is_array_file, read_arrays
from smi.data.arrays import ArraySet as ArraySet
from smi.data.decoder import ValueRange
from smi.data.folders import (
    VAL_FOLDERS,
    FileSet,
    Folder,
    Split,
    is_held_out,
    join_folders,
    read_folder,
    read_remote_folder,
)
from smi.data.listing import SUFFIXES
from smi.data.lists import LIST_SUFFIXES, read_list
from smi.data.remote import (
    LostError,
    common_folder,
    expand_pattern,
    is_folder,
    is_url,
    list_files,
)
from smi.data.shards import SHARD_SUFFIXES, Shards, ShardSet, find_shards
from smi.data.value_range import range_of_files
from smi.errors import UserError
from smi.files import data_home, expand, last_part
from smi.terminal import suggest

ImageSet = FileSet | ArraySet | ShardSet


@dataclass(frozen=True)
class Archive:
    """Describe the official archive of a dataset, and the folder inside it."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        """Return the file name of the archive."""
        return self.url.rsplit("/", 1)[1]


ARCHIVES = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
    ),
    "stl10": Archive(
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "91f7769df0f17e558f3565bffb0c7dfb",
        "stl10_binary",
    ),
    "imagenette": Archive(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
        "3df6f0d01a2c9592104656642f5e78a3",
        "imagenette2-320",
    ),
    "imagewoof": Archive(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz",
        "0f46d997ec2264e97609196c95897a44",
        "imagewoof2-320",
    ),
}
DATASET_NAMES = ("digits", *ARCHIVES, "imagenet")
MAX_FOLDERS_WITHOUT_SHARDS = 1000  # until a folder is taken for one of images
ARRAY_DATASETS = ("digits", "cifar10", "cifar100", "stl10")  # stored as arrays, not as files

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

CLASS_WORDS = {  # the words for ImageNet's class numbers in Imagenette and Imagewoof
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "dingo",
}


class Source:
    """Find the images of a dataset, a folder or an array file, without decoding files.

    A name wins over a folder with the same name: `./digits` is the folder. The files of a folder
    are listed once, for all splits. value_range: the values that become 0 and 255 in images of more
    than 8 bits; None measures them on the training images.
    """

    def __init__(
        self,
        target: str | Path,
        root: Path | None = None,
        value_range: ValueRange | None = None,
    ):
        self.target = target
        self.root = root
        self._given_range = value_range

    @cached_property
    def _found(self) -> Folder | Shards:
        return find(self.target, self.root)

    @cached_property
    def _arrays(self) -> ArrayFile:
        return read_arrays(self.target, self._given_range)

    @cached_property
    def _value_range(self) -> ValueRange | None:
        return self._given_range or range_of_files(self._found.train)

    def split(self, split: Split) -> ImageSet:
        """Return the images of a split."""
        if split not in ("pretrain", "train", "val"):
            raise UserError(f"there is no split {split!r}: it is pretrain, train or val")
        images = self._find_split(split)
        return images.without_labels() if split == "pretrain" else images

    def all_images(self) -> tuple[ImageSet, ...]:
        """Return the images of all splits.

        Files are one set, sorted by path; arrays and shards are the splits train and val.
        """
        if self.target in ARRAY_DATASETS:
            return self.split("train"), self.split("val")
        if is_array_file(self.target):
            return self._arrays.all_images()
        if isinstance(self._found, Shards):
            parts = (part for part in (self._found.train, self._found.val) if part is not None)
            return tuple(self._finish(part) for part in parts)
        return (self._finish(self._found.all_files()),)

    def labelled_parts(self) -> tuple[ImageSet, ImageSet | None]:
        """Return the images to train a classifier on, and those of the source's own second split.

        Without such a split the first part is all images: the tenth that a hash would hold out
        is among them.
        """
        if self.target in ARRAY_DATASETS:
            return self.split("train"), self.split("val")
        if is_array_file(self.target):
            arrays = self._arrays
            return (arrays.train, arrays.val) if arrays.whole is None else (arrays.whole, None)
        found = self._found
        if isinstance(found, Folder) and found.held_out:
            whole = self._finish(found.all_files())
            return (whole if whole.labels is not None else self.split("train")), None
        return self.split("train"), None if found.val is None else self.split("val")

    def _find_split(self, split: Split) -> ImageSet:
        if self.target == "digits":
            return _digits(split)
        if self.target == "stl10":
            return _stl10(find_dataset("stl10", self.root), split)
        if self.target in ARRAY_DATASETS:
            name = str(self.target)
            return _cifar(name, find_dataset(name, self.root), split)
        if is_array_file(self.target):
            return self._arrays.split(split)
        return self._finish(self._found.split(split))

    def _finish(self, files: FileSet | ShardSet) -> FileSet | ShardSet:
        if isinstance(files, FileSet):
            files = _with_class_words(self.target, files)
        return replace(files, value_range=self._value_range)


def resolve_source(target: str | Path, split: Split, root: Path | None = None) -> ImageSet:
    """Find the images of one split of a dataset or a folder."""
    return Source(target, root).split(split)


def all_images(target: str | Path, root: Path | None = None) -> tuple[ImageSet, ...]:
    """Find the images of all splits of a dataset or a folder."""
    return Source(target, root).all_images()


def find(target: str | Path, root: Path | None = None) -> Folder | Shards:
    """Find the files or shards of a source, other than a dataset of arrays."""
    if target == "imagenet":
        return find_imagenet(root)
    if target in ARCHIVES:
        return read_folder(find_dataset(str(target), root), str(target))
    text = os.fspath(target)
    if text.startswith("hf:") and not is_url(text):
        return find_on_hub(text)
    try:
        found = [_find_one(location) for location in _expand(text)]
    except LostError as error:
        raise UserError(f"{text} cannot be read: {error}") from error
    shards = [place for place in found if isinstance(place, str)]
    if shards and len(shards) == len(found):
        return find_shards(shards, _name(text), common_folder(shards))
    folders = [place for place in found if isinstance(place, Folder)]
    if len(folders) < len(found):
        raise UserError(f"{text} names shards and folders: give one kind, or two commands")
    return folders[0] if len(folders) == 1 else join_folders(folders)


def _expand(text: str) -> list[str]:
    """Return the locations of a source, which may be a pattern, and those of shards in a folder."""
    locations = []
    for location in expand_pattern(text if is_url(text) else str(expand(text))):
        # A web server would send a whole shard to answer whether it is a folder.
        is_file = is_url(location) and location.endswith((*SHARD_SUFFIXES, *LIST_SUFFIXES))
        inside = [] if is_file or not is_folder(location) else _shards_in(location)
        locations += inside or [location]
    if not locations:
        raise UserError(f"{text} names no file and no folder")
    return locations


def _shards_in(folder: str) -> list[str]:
    """Return the shards of a folder that holds shards and no images.

    A folder of images may be large, so it is given up after some folders without a shard.
    """
    shards: list[str] = []
    for number, path in _walk(folder):
        if number > MAX_FOLDERS_WITHOUT_SHARDS and not shards:
            return []
        suffix = os.path.splitext(path)[1].lower()
        if suffix in SUFFIXES:
            return []
        if suffix in SHARD_SUFFIXES:
            shards.append(f"{folder.rstrip('/')}/{path}")
    return sorted(shards)


def _walk(folder: str) -> Iterator[tuple[int, str]]:
    """Yield the paths of files in a folder, and how many folders were visited before."""
    if is_url(folder):
        yield from ((0, path) for path, _ in list_files(folder))
        return
    for number, (place, folders, names) in enumerate(os.walk(folder)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield number, os.path.relpath(os.path.join(place, name), folder)


def _find_one(location: str) -> Folder | str:
    """Return a folder or a list of images, or the location of a shard."""
    suffix = os.path.splitext(location)[1].lower()
    is_file = is_url(location) or os.path.isfile(location)
    if suffix in SHARD_SUFFIXES and not os.path.isdir(location):
        return location  # also if it is missing: the index may know it
    if is_file and suffix in LIST_SUFFIXES:
        return read_list(location)
    if is_url(location):
        return read_remote_folder(location)
    return read_folder(existing_folder(location))


def find_on_hub(text: str) -> Shards:
    """Find the Parquet files of a dataset on Hugging Face's hub: hf:NAME or hf:NAME:SPLIT."""
    _, name, *rest = text.split(":")
    for revision in ("", "@refs%2Fconvert%2Fparquet"):  # the hub converts other formats
        root = f"hf://datasets/{name}{revision}"
        try:
            paths = [path for path, _ in list_files(root) if path.endswith(".parquet")]
        except LostError as error:
            raise UserError(f"{text} cannot be read: {error}") from error
        if rest:
            words = (rest[0], *(VAL_FOLDERS if rest[0] == "train" else ()))
            paths = [path for path in paths if set(re.split(r"[^a-z0-9]+", path)) & {*words}]
        if paths:
            return find_shards([f"{root}/{path}" for path in paths], name, root)
    raise UserError(f"{name} on the hub has no Parquet files of {rest[0] if rest else 'images'}")


def _name(text: str) -> str:
    return re.sub(r"[{}*?\[\]]", "", text.rstrip("/").rpartition("/")[2]) or "shards"


def existing_folder(target: str | Path) -> Path:
    """Return the path of a folder that exists, or raise an error that suggests a dataset name."""
    folder = expand(target)
    if folder.is_dir():
        return folder
    if folder.exists():
        kinds = ", ".join((*LIST_SUFFIXES, *SHARD_SUFFIXES))
        raise UserError(f"{folder} is a file: give the folder that holds the images, or {kinds}")
    name = os.fspath(target)
    raise UserError(f"there is no dataset or folder {name!r}: {suggest(name, DATASET_NAMES)}")


def holds_arrays(source: str | Path) -> bool:
    """Return whether a source is a dataset of arrays or an array file: its images have one size."""
    return source in ARRAY_DATASETS or is_array_file(source)


def dataset_label(source: str | Path) -> str:
    """Return the name of a dataset or a file, or a folder's name with a slash.

    A folder may be called cifar10.
    """
    text = str(source)
    if text in DATASET_NAMES or (text.startswith("hf:") and not is_url(text)):
        return text
    is_file = is_array_file(text) or text.endswith((*SHARD_SUFFIXES, *LIST_SUFFIXES))
    if is_url(text) or is_file:
        return last_part(text)
    return f"{expand(text).resolve().name}/"


def find_dataset(name: str, root: Path | None = None) -> Path:
    """Return the extracted folder of a named dataset: below the root, or the root itself."""
    root = expand(root or data_home())
    folder = ARCHIVES[name].folder
    for path in (root / folder, root):
        if path.name == folder and path.is_dir():
            return path
    command = f"smi data {name}" if root == data_home() else f"smi data {name} --root {root}"
    raise UserError(f"{name} is not in {root}: run `{command}` to download it")


def find_imagenet(root: Path | None = None) -> Folder:
    """Find ImageNet in one of its usual places below the root."""
    root = expand(root or data_home())
    for path in (root, root / "imagenet", root / "ILSVRC" / "Data" / "CLS-LOC"):
        if (path / "train").is_dir():
            return read_folder(path, "imagenet")
    folder = root / "imagenet"
    raise UserError(
        "imagenet cannot be downloaded without an account at image-net.org: put its images into "
        f"{folder / 'train'} and {folder / 'val'}, one folder for each class, or name the folder "
        "that holds train/ and val/ with --root"
    )


def _with_class_words(target: str | Path, files: FileSet) -> FileSet:
    """Replace the class numbers of a named dataset by words."""
    if target not in ARCHIVES or files.classes is None:
        return files
    return replace(files, classes=tuple(CLASS_WORDS.get(name, name) for name in files.classes))


# ------ datasets of arrays


def _digits(split: Split) -> ArraySet:
    """Load the 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn.

    They have no splits, so a tenth is held out in the same way as from a folder.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    held_out = np.array([is_held_out(f"digits/{i}") for i in range(len(digits.target))])
    chosen = held_out if split == "val" else ~held_out
    grey = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # [n, 8, 8], from 0..16
    images = np.repeat(grey[:, None], 3, axis=1)
    return ArraySet(
        "digits", split, (images,), digits.target[chosen].astype(np.int64), tuple("0123456789")
    )


def _cifar(name: str, folder: Path, split: Split) -> ArraySet:
    """Map records of 3 x 32 x 32 pixels after a label byte (CIFAR-100: a coarse and a fine one)."""
    if name == "cifar100":
        label_bytes = 2
        classes = _words(folder / "fine_label_names.txt")
        files = ["test.bin" if split == "val" else "train.bin"]
    else:
        label_bytes = 1
        classes = CIFAR10_CLASSES
        train_files = [f"data_batch_{i}.bin" for i in range(1, 6)]
        files = ["test_batch.bin"] if split == "val" else train_files
    parts = []
    labels = []
    for file in files:
        records = _map_records(folder / file, label_bytes + 3072).reshape(-1, label_bytes + 3072)
        labels.append(records[:, label_bytes - 1].astype(np.int64))
        parts.append(records[:, label_bytes:].reshape(-1, 3, 32, 32))
    return ArraySet(name, split, tuple(parts), np.concatenate(labels), classes)


def _stl10(folder: Path, split: Split) -> ArraySet:
    """Map images of 3 x 96 x 96 pixels, stored column by column, with labels that count from 1.

    Pretraining adds the 100,000 unlabelled images.
    """

    def images(file: str) -> NDArray[np.uint8]:
        return _map_records(folder / file, 3 * 96 * 96).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)

    part = "test" if split == "val" else "train"
    labels = _map_records(folder / f"{part}_y.bin", 1).astype(np.int64) - 1
    parts = [images(f"{part}_X.bin")]
    if split == "pretrain":
        parts.append(images("unlabeled_X.bin"))
    return ArraySet("stl10", split, tuple(parts), labels, _words(folder / "class_names.txt"))


def _map_records(path: Path, record_bytes: int) -> NDArray[np.uint8]:
    """Map the bytes of a file of records, copy-on-write: torch warns about read-only arrays."""
    fix = f"remove {path.parent} and download the dataset again"
    if not path.is_file():
        raise UserError(f"{path} is missing: {fix}")
    size = path.stat().st_size
    if size == 0 or size % record_bytes:
        raise UserError(f"{path} has {size:,} bytes, not a multiple of {record_bytes:,}: {fix}")
    return np.memmap(path, dtype=np.uint8, mode="c")


def _words(path: Path) -> tuple[str, ...] | None:
    return tuple(path.read_text().split()) if path.is_file() else None
