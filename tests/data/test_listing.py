import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smi.data import listing
from smi.data.listing import SUFFIXES, Entry, Listing, scan


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))


def write(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x" * len(path))
    return root


def age(root: Path) -> None:
    """Date all folders and files an hour back: a folder that just changed is not trusted."""
    for folder, _, files in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            info = os.stat(path)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns - 3600 * 10**9))


def plain(root: Path, suffixes: bool) -> list[Entry]:
    """List files by os.walk, as a reference."""
    entries = []
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), root)
            info = os.stat(os.path.join(folder, name))
            if (os.path.splitext(name)[1].lower() in SUFFIXES) == suffixes:
                entries.append(Entry(path, info.st_size, info.st_mtime_ns))
    return sorted(entries, key=lambda entry: entry.path)


NAMES = st.text(st.sampled_from("aZ-. 0ü中"), min_size=1, max_size=4).filter(
    lambda name: name.strip(". ") and not name.startswith(".")
)


@st.composite
def some_paths(draw):
    """Paths of files that can all exist: no folder is called like a file."""
    folders = [f"d{name}/" for name in draw(st.lists(NAMES, max_size=2))]
    return "".join(folders) + f"f{draw(NAMES)}" + draw(st.sampled_from([".JPG", ".txt"]))


@given(st.sets(some_paths(), max_size=20))
def test_a_listing_is_what_walking_finds_sorted_by_path(tmp_path_factory, paths):
    root = write(tmp_path_factory.mktemp("folder"), *paths)
    images, others = scan(root)
    assert list(images) == plain(root, suffixes=True)
    assert list(others) == plain(root, suffixes=False)
    assert [images[i] for i in range(len(images))] == list(images)
    assert images.num_bytes == sum(entry.size for entry in images)


def test_a_part_of_a_listing(tmp_path):
    paths = [f"{folder}/{i}.png" for folder in ("a", "a-b", "c") for i in range(4)]
    images, _ = scan(write(tmp_path / "set", *paths))
    order = sorted(paths)
    assert [entry.path for entry in images] == order
    assert [entry.path for entry in images[2:7]] == order[2:7]
    chosen = np.arange(12) % 3 == 0
    assert [entry.path for entry in images[chosen]] == order[::3]
    assert images[chosen].places_in(images).tolist() == [0, 3, 6, 9]
    assert images == list(images)
    assert images != list(images)[1:]


def test_names_that_are_not_text_survive(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    (root / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"x")
    images, _ = scan(root)
    assert os.fsencode(images[0].path) == b"caf\xe9.jpg"
    assert os.fsencode(next(iter(images)).path) == b"caf\xe9.jpg"


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A folder that counts as large, listed once."""
    monkeypatch.setattr(listing, "MIN_KEPT_FILES", 4)
    root = write(tmp_path / "set", *(f"{c}/{i}.png" for c in "ab" for i in range(3)), "a/n.txt")
    age(root)
    scan(root)
    return root


def walks(monkeypatch) -> list[str]:
    walked = []
    walk = listing._walk_all
    monkeypatch.setattr(listing, "_walk_all", lambda root: walked.append(root) or walk(root))
    return walked


def test_the_listing_of_a_large_folder_is_kept(large, monkeypatch):
    walked = walks(monkeypatch)
    images, others = scan(large)
    assert walked == []
    assert list(images) == plain(large, suffixes=True)
    assert [entry.path for entry in others] == ["a/n.txt"]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "b" / "new.png").write_bytes(b"x"),
        lambda root: (root / "a" / "0.png").unlink(),
        lambda root: (root / "a" / "0.png").rename(root / "b" / "moved.png"),
        lambda root: write(root, "c/d/0.png"),
        lambda root: (root / "a" / "1.png").write_bytes(b"another size"),  # all are sampled here
    ],
    ids=["added", "removed", "moved", "folder", "rewritten"],
)
def test_a_changed_folder_is_listed_again(large, monkeypatch, change):
    change(large)
    walked = walks(monkeypatch)
    images, _ = scan(large)
    assert walked == [str(large)]
    assert list(images) == plain(large, suffixes=True)


def test_a_folder_that_has_just_changed_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "MIN_KEPT_FILES", 4)
    root = write(tmp_path / "set", *(f"{i}.png" for i in range(5)))
    scan(root)
    assert not list((tmp_path / "cache").glob("listings/*"))


@pytest.mark.parametrize("name", ["names", "images", "folders"])
def test_a_damaged_listing_is_made_again(large, tmp_path, monkeypatch, name):
    (file,) = (tmp_path / "cache").glob(f"listings/*/{name}.npy")
    file.write_bytes(file.read_bytes()[:100])
    walked = walks(monkeypatch)
    assert list(scan(large)[0]) == plain(large, suffixes=True)
    assert len(walked) == 1
    scan(large)
    assert len(walked) == 1  # kept again


def test_a_cache_that_cannot_be_written_is_no_error(large, tmp_path, monkeypatch):
    monkeypatch.setenv("SMI_CACHE", "/proc/nowhere")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert len(scan(large)[0]) == 6


def test_processes_of_a_machine_share_one_listing(tmp_path):
    """Two processes start at once: one lists the folder, the other waits and maps the listing."""
    root = write(tmp_path / "set", *(f"{i}.png" for i in range(50)))
    age(root)
    script = (
        "import sys; from pathlib import Path; from smi.data import listing\n"
        "listing.MIN_KEPT_FILES = 4\n"
        "walk = listing._walk_all\n"
        "listing._walk_all = lambda root: print('walked') or walk(root)\n"
        "print(len(listing.scan(Path(sys.argv[1]))[0]))"
    )
    environment = os.environ | {"LOCAL_WORLD_SIZE": "2", "SMI_CACHE": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(root)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(said) == [["50"], ["walked", "50"]]


def test_a_million_files_take_little_memory():
    """A listing that is made up: names as long as ImageNet's."""
    n = 1_000_000
    names = np.frombuffer(b"n01440764_10026.JPEG" * n, dtype=np.uint8)
    rows = np.zeros(n, dtype=listing.ROW)
    rows["start"] = np.arange(n) * 20
    rows["length"] = 20
    folders = np.zeros(1, dtype=listing.ROW)
    images = Listing(names, rows, folders)
    assert (names.nbytes + rows.nbytes) / n <= 100
    assert images[999_999].path == "n01440764_10026.JPEG"
    assert len(images[::1000]) == 1000
