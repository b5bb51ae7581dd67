"""Image sets by name or by path.

    smi data cifar10            downloads and verifies
    resolve("cifar10", "val")   finds it: arrays of pixels, or files

The three splits: `pretrain` never has labels and is all there is to learn from (for STL-10 with its unlabelled images); `train` and `val`
are for probes. Where a set's own second split is called test, it is `val` here.
"""

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smi.data.folders import FileSet, Folder, Split, is_held_out, read_folder
from smi.errors import UserError
from smi.files import data_home, expand


@dataclass(frozen=True)
class ArraySet:
    """One split of a set whose images all have one small size: parts of uint8 [n, 3, H, W], mapped from files where they are large."""

    name: str
    split: Split
    parts: tuple[NDArray[np.uint8], ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts))


ImageSet = FileSet | ArraySet


@dataclass(frozen=True)
class Archive:
    """The official archive of a set, and the folder that is in it."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
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
NAMES = ("digits", *ARCHIVES, "imagenet")
PIXELS = ("digits", "cifar10", "cifar100", "stl10")  # sets that are no files, but arrays

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

WORDS = {
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


def resolve(target: str | Path, split: Split, root: Path | None = None) -> ImageSet:
    """A name wins over a folder of the same name: `./digits` is the folder."""
    if split not in ("pretrain", "train", "val"):
        raise UserError(f"there is no split {split!r}: it is pretrain, train or val")
    found = _resolve(target, split, root)
    return replace(found, split=split, labels=None, classes=None) if split == "pretrain" else found


def everything(target: str | Path, root: Path | None = None) -> tuple[ImageSet, ...]:
    """All images, whatever their split: of files one set in the order of their paths, of pixels the splits train and val."""
    if target in PIXELS:
        return resolve(target, "train", root), resolve(target, "val", root)
    return (_named(target, _folder(target, root).everything()),)


def _resolve(target: str | Path, split: Split, root: Path | None) -> ImageSet:
    if target == "digits":
        return _digits(split)
    if target == "stl10":
        return _stl10(find("stl10", root), split)
    if target in PIXELS:
        return _cifar(str(target), find(str(target), root), split)
    return _named(target, _folder(target, root).split(split))


def _folder(target: str | Path, root: Path | None) -> Folder:
    if target == "imagenet":
        return find_imagenet(root)
    return (
        read_folder(find(str(target), root), str(target))
        if target in ARCHIVES
        else read_folder(existing_folder(target))
    )


def existing_folder(target: str | Path) -> Path:
    folder = expand(target)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UserError(f"{folder} is a file: give the folder that holds the images")
    close = difflib.get_close_matches(str(target).lower(), NAMES, 1)
    hint = f"did you mean {close[0]}?" if close else f"the names are {', '.join(NAMES)}"
    raise UserError(f"there is no set or folder {os.fspath(target)!r}: {hint}")


def find(name: str, root: Path | None = None) -> Path:
    """The extracted folder of a named set: below the root, or the root itself."""
    root = expand(root or data_home())
    folder = ARCHIVES[name].folder
    for place in (root / folder, root):
        if place.name == folder and place.is_dir():
            return place
    command = f"smi data {name}" if root == data_home() else f"smi data {name} --root {root}"
    raise UserError(f"{name} is not in {root}: run `{command}` to download it")


def find_imagenet(root: Path | None = None) -> Folder:
    root = expand(root or data_home())
    for place in (root, root / "imagenet", root / "ILSVRC" / "Data" / "CLS-LOC"):
        if (place / "train").is_dir():
            return read_folder(place, "imagenet")
    raise UserError(
        f"imagenet cannot be downloaded without an account at image-net.org: put its images into {root / 'imagenet' / 'train'} and "
        f"{root / 'imagenet' / 'val'}, one folder for each class, or name the folder that holds train/ and val/ with --root"
    )


def _named(target: str | Path, files: FileSet) -> FileSet:
    """With words for the classes of a set that numbers them."""
    if target not in ARCHIVES or files.classes is None:
        return files
    return replace(files, classes=tuple(WORDS.get(name, name) for name in files.classes))


# --------------------------------------------------------------------------------------------------------------------- sets of pixels


def _digits(split: Split) -> ArraySet:
    """1,797 handwritten digits of 8 x 8, which come with scikit-learn; it names no split, so a tenth is held out as from a folder."""
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
    """Records of one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 pixels."""
    ten = name == "cifar10"
    if ten:
        files = (
            ["test_batch.bin"] if split == "val" else [f"data_batch_{i}.bin" for i in range(1, 6)]
        )
    else:
        files = ["test.bin" if split == "val" else "train.bin"]
    label_bytes = 1 if ten else 2
    parts, labels = [], []
    for file in files:
        records = _mapped(folder / file, label_bytes + 3072).reshape(-1, label_bytes + 3072)
        labels.append(records[:, label_bytes - 1].astype(np.int64))
        parts.append(records[:, label_bytes:].reshape(-1, 3, 32, 32))
    classes = CIFAR10_CLASSES if ten else _lines(folder / "fine_label_names.txt")
    return ArraySet(name, split, tuple(parts), np.concatenate(labels), classes)


def _stl10(folder: Path, split: Split) -> ArraySet:
    """Images of 3 x 96 x 96, each channel column by column; labels from 1. Pretraining has 100,000 more that nobody labelled."""

    def images(file: str) -> NDArray[np.uint8]:
        return _mapped(folder / file, 3 * 96 * 96).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)

    part = "test" if split == "val" else "train"
    labels = _mapped(folder / f"{part}_y.bin", 1).astype(np.int64) - 1
    parts = (images(f"{part}_X.bin"), *([images("unlabeled_X.bin")] if split == "pretrain" else []))
    return ArraySet("stl10", split, parts, labels, _lines(folder / "class_names.txt"))


def _mapped(path: Path, record: int) -> NDArray[np.uint8]:
    """The bytes of a file of whole records. Mapped, not read, and private, so that torch may wrap them without a warning."""
    if not path.is_file():
        raise UserError(f"{path} is missing: remove {path.parent} and download the set again")
    size = path.stat().st_size
    if size == 0 or size % record:
        raise UserError(
            f"{path} has {size:,} bytes, not a multiple of {record:,}: remove {path.parent} and download the set again"
        )
    return np.memmap(path, dtype=np.uint8, mode="c")


def _lines(path: Path) -> tuple[str, ...] | None:
    return tuple(path.read_text().split()) if path.is_file() else None
