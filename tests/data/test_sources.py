import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from smi.data import load
from smi.data.sources import ARCHIVES, DATASET_NAMES, Source, dataset_label, resolve_source
from smi.errors import UserError
from smi.files import last_part
from support.pictures import Draw

RANDOM = np.random.default_rng(0)


def test_digits_come_with_scikit_learn() -> None:
    train, val = load("digits"), load("digits", "val")
    assert (len(train) + len(val), train.resolution, len(train.classes or ())) == (1797, 8, 10)
    assert 120 < len(val) < 240
    images = train[:]
    assert images.dtype == torch.uint8
    assert (images.min(), images.max()) == (0, 255)
    assert torch.equal(images[:, 0], images[:, 2])
    assert load("digits", "pretrain", resolution=32)[torch.arange(4)].shape == (4, 3, 32, 32)


def write_cifar(
    folder: Path, files: list[str], label_bytes: int, count: int = 5
) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    records = {
        file: RANDOM.integers(0, 10, (count, label_bytes + 3072), dtype=np.uint8) for file in files
    }
    for file, record in records.items():
        record.tofile(folder / file)
    return records


def test_cifar10(tmp_path: Path) -> None:
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    records = write_cifar(tmp_path / "cifar-10-batches-bin", files, 1)
    train, val = (
        load("cifar10", root=tmp_path),
        load("cifar10", "val", root=tmp_path / "cifar-10-batches-bin"),
    )
    assert (len(train), len(val)) == (25, 5)
    assert train.labels is not None
    assert train.labels[7] == records["data_batch_2.bin"][2, 0]
    assert (
        train[torch.tensor([7])].numpy().tobytes() == records["data_batch_2.bin"][2, 1:].tobytes()
    )
    assert train.classes is not None
    assert train.classes[3] == "cat"


def test_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    records = write_cifar(tmp_path / "cifar-100-binary", ["train.bin", "test.bin"], 2)
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").write_text("apple\naquarium_fish\n")
    store = load("cifar100", "val", root=tmp_path)
    assert store.labels is not None
    assert store.labels.tolist() == records["test.bin"][:, 1].tolist()
    assert store[torch.tensor([4])].numpy().tobytes() == records["test.bin"][4, 2:].tobytes()
    assert store.classes == ("apple", "aquarium_fish")


def test_stl10_pretrains_on_unlabelled_images_too(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    images = {
        file: RANDOM.integers(0, 256, (n, 3, 96, 96), dtype=np.uint8)
        for file, n in (("train", 3), ("test", 2), ("unlabeled", 4))
    }
    for file, pixels in images.items():
        pixels.tofile(folder / f"{file}_X.bin")
    np.array([1, 10, 2], dtype=np.uint8).tofile(folder / "train_y.bin")
    np.array([3, 4], dtype=np.uint8).tofile(folder / "test_y.bin")
    pretrain, train, val = (
        load("stl10", split, root=tmp_path) for split in ("pretrain", "train", "val")
    )
    assert (len(pretrain), len(train), len(val)) == (7, 3, 2)
    assert pretrain.labels is None
    assert train.labels is not None
    assert train.labels.tolist() == [0, 9, 1]
    column_by_column = torch.from_numpy(images["unlabeled"][1]).transpose(1, 2)
    assert torch.equal(pretrain[torch.tensor([4])][0], column_by_column)


def test_imagenette_has_words_for_its_classes(tmp_path: Path, draw: Draw) -> None:
    for split in ("train", "val"):
        for name in ("n01440764", "n03888257"):
            draw(tmp_path / "imagenette2-320" / split / name / "a.JPEG")
    assert load("imagenette", root=tmp_path, resolution=8).classes == ("tench", "parachute")


def test_imagenet_is_a_folder_the_user_has(tmp_path: Path, draw: Draw) -> None:
    with pytest.raises(UserError, match=r"put its images into .*imagenet/train"):
        resolve_source("imagenet", "train", tmp_path)
    for i in range(2):
        draw(tmp_path / "imagenet" / "train" / f"n{i}" / "a.JPEG")
    draw(tmp_path / "imagenet" / "val" / "a.JPEG")
    for root in (tmp_path, tmp_path / "imagenet"):
        assert len(resolve_source("imagenet", "train", root)) == 2
    assert resolve_source("imagenet", "val", tmp_path).labels is None


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_error_for_a_missing_dataset_names_the_command(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"run `smi data {name} --root {tmp_path}` to download it"):
        resolve_source(name, "train", tmp_path)
    with pytest.raises(UserError, match=f"run `smi data {name}` to download it"):
        resolve_source(name, "train")


def test_damaged_binaries_are_user_errors(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-100-binary", ["train.bin"], 2)
    with pytest.raises(UserError, match=r"test.bin is missing: remove"):
        resolve_source("cifar100", "val", tmp_path)
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(b"short")
    with pytest.raises(UserError, match="has 5 bytes, not a multiple of 3,074"):
        resolve_source("cifar100", "train", tmp_path)


def test_unknown_targets_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no dataset or folder 'cifar-10': did you mean cifar10\?"):
        resolve_source("cifar-10", "train")
    with pytest.raises(UserError, match="choose one of digits, cifar10"):
        resolve_source(tmp_path / "absent", "train")
    (tmp_path / "file.zip").touch()
    with pytest.raises(UserError, match="is a file: give the folder"):
        resolve_source(tmp_path / "file.zip", "train")
    with pytest.raises(UserError, match="no split 'test'"):
        resolve_source("digits", "test")  # type: ignore[arg-type]


def test_a_name_wins_over_a_folder(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path / "digits" / "a.png")
    monkeypatch.chdir(tmp_path)
    assert len(resolve_source("digits", "train")) > 1000
    assert len(resolve_source("./digits", "train")) == 1


def test_checksums_look_like_checksums() -> None:
    assert set(ARCHIVES) < set(DATASET_NAMES)
    assert all(len(archive.md5) == hashlib.md5().digest_size * 2 for archive in ARCHIVES.values())


def test_the_label_of_a_folder_cannot_be_taken_for_a_dataset(tmp_path, monkeypatch):
    assert dataset_label("cifar10") == "cifar10"
    assert dataset_label(tmp_path / "cifar10") == "cifar10/"
    monkeypatch.chdir(tmp_path)
    assert dataset_label(".") == f"{tmp_path.name}/"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://b.org/x.tar?X-Cred=AKIA/2026/s3/aws4&X-Sig=abc", "x.tar"),
        ("https://h.org/download?token=SECRET&file=shard.tar", "download"),
        ("https://user:pw@host.org", "host.org"),
        ("https://host.org/a/b/#SECRET", "b"),
        ("https://host.org?user=me@SECRET", "host.org"),
        ("s3://k:secret@bucket", "bucket"),
        ("s3://k:secret@bucket/x.tar?versionId=SECRET", "x.tar"),
        (r"C:\Users\me\w.npy", "w.npy"),
        ("s3://bucket/a/x-{000..099}.tar", "x-{000..099}.tar"),
        ("s3://bucket/a/x-???.tar", "x-???.tar"),
        ("hf://datasets/org/name@main", "name@main"),
        ("https://host.org:8080/", "host.org:8080"),
        ("a/b?c=1#2.tar", "b?c=1#2.tar"),
    ],
)
def test_the_label_of_a_file_or_url_has_no_secret(source, name):
    assert dataset_label(source) == last_part(source) == name


def test_the_parts_of_labelled_images(tmp_path, draw):
    """A split of the source's own is the second part; one made by a hash is not."""
    for word in ("a", "b"):
        for i in range(20):
            for folder in ("plain", "split/train", "only/train"):
                draw(tmp_path / folder / word / f"{i}.png")
        draw(tmp_path / "split" / "val" / word / "x.png")
    plain, none = Source(tmp_path / "plain").labelled_parts()
    assert (len(plain), none) == (40, None)
    assert plain.classes == ("a", "b")
    assert np.bincount(plain.labels).tolist() == [20, 20]
    train, val = Source(tmp_path / "split").labelled_parts()
    assert (len(train), len(val)) == (40, 2)
    only, none = Source(tmp_path / "only").labelled_parts()
    assert (len(only), none) == (40, None)
    images = np.zeros((30, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", images=images, labels=np.arange(30) % 2)
    whole, none = Source(tmp_path / "one.npz").labelled_parts()
    assert (len(whole), none) == (30, None)
    labels = {"y_train": np.arange(30) % 2, "y_test": np.arange(30) % 2}
    np.savez(tmp_path / "two.npz", x_train=images, x_test=images, **labels)
    train, val = Source(tmp_path / "two.npz").labelled_parts()
    assert (len(train), len(val)) == (30, 30)
    train, val = Source("digits").labelled_parts()
    assert len(train) + len(val) == 1797
