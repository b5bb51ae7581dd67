"""List the files of a folder in arrays: about 60 bytes a file, where objects would take 260.

    images, others = scan(folder)
    images[0].path, images[0].size

The listing of a large folder is kept in the cache and mapped by all processes of a machine:

    <cache>/listings/<key>/names.npy     uint8: all names, one after another
    <cache>/listings/<key>/images.npy    a row for each image, and others.npy, folders.npy

It is used again while no folder has changed, which a few `stat` calls tell, and none of a sample of
files. A file that is rewritten in place leaves its folder unchanged, so in a large folder it may be
missed until a file is added, removed or renamed.
"""

import hashlib
import os
import shutil
import stat
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from smi.errors import UserError
from smi.files import cache_home, lock, sync, temporary_folder

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif"}
)
MIN_KEPT_FILES = 50_000  # a smaller folder is listed in a moment
NUM_CHECKED_FILES = 1000  # of a kept listing
CHUNK_ROWS = 65_536  # of names that are read at once
MIN_AGE_NS = 2 * 10**9  # a younger folder may change again without another time
LISTING_VERSION = 1  # raise it when kept listings have another form

ROW = np.dtype(
    [
        ("start", "<i8"),  # of the name
        ("length", "<i4"),  # of the name
        ("folder", "<i4"),  # its row; -1 for a folder
        ("size", "<i8"),
        ("mtime_ns", "<i8"),
    ]
)
Rows = NDArray[Any]  # of type ROW


@dataclass(frozen=True)
class Entry:
    """Describe a file."""

    path: str  # relative to the folder, with forward slashes
    size: int
    mtime_ns: int


class Listing(Sequence[Entry]):
    """List files, sorted by path, as a sequence of entries.

    names: the bytes of all names. rows: one for each file, of type ROW. folders: one for each
    folder, whose name is its path with a slash at the end.
    """

    def __init__(self, names: NDArray[np.uint8], rows: Rows, folders: Rows):
        self._names = names
        self._rows = rows
        self._folders = folders

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Listing":
        """List entries in the order in which they come."""
        table = _Names()
        images = _Table()
        folders = _Table()
        numbers: dict[str, int] = {}
        for entry in entries:
            folder, slash, name = entry.path.rpartition("/")
            if (folder := folder + slash) not in numbers:
                numbers[folder] = len(folders)
                folders.add(*table.add(folder), -1, 0, 0)
            images.add(*table.add(name), numbers[folder], entry.size, entry.mtime_ns)
        return cls(table.array(), images.rows(), folders.rows())

    @classmethod
    def joined(cls, parts: "Sequence[tuple[str, Listing]]") -> "Listing":
        """Join listings, with a prefix for the paths of each."""
        return cls.of(
            Entry(
                entry.path if _is_absolute(entry.path) else prefix + entry.path,
                entry.size,
                entry.mtime_ns,
            )
            for prefix, listing in parts
            for entry in listing
        )

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: "slice | NDArray[Any]") -> "Listing": ...
    def __getitem__(self, index: "int | slice | NDArray[Any]") -> "Entry | Listing":
        """Return an entry, or the listing of a part; a slice is not copied."""
        if not isinstance(index, int):
            return Listing(self._names, self._rows[index], self._folders)
        row = self._rows[index]
        path = self.folder_path(int(row["folder"])) + _decode(self._names, row)
        return Entry(path, int(row["size"]), int(row["mtime_ns"]))

    def __iter__(self) -> Iterator[Entry]:
        current, folder = -1, ""
        for at in range(0, len(self._rows), CHUNK_ROWS):
            rows = self._rows[at : at + CHUNK_ROWS]
            for row, name in zip(rows.tolist(), self._decode_all(rows), strict=True):
                if row[2] != current:
                    current, folder = row[2], self.folder_path(row[2])
                yield Entry(folder + name, row[3], row[4])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def places_in(self, whole: "Listing") -> NDArray[np.int64]:
        """Return where the files of this part are in the whole listing."""
        return np.searchsorted(whole._rows["start"], self._rows["start"])

    @property
    def num_bytes(self) -> int:
        """Return the size of all files."""
        return int(self._rows["size"].sum())

    @property
    def folder(self) -> NDArray[np.int32]:
        """Return the number of the folder of each file."""
        return self._rows["folder"]

    @property
    def num_folders(self) -> int:
        """Return the number of all folders; some may hold none of these files."""
        return len(self._folders)

    def folder_path(self, number: int) -> str:
        """Return the path of a folder with a slash at the end, or "" for the folder itself."""
        return _decode(self._names, self._folders[number])

    def _decode_all(self, rows: Rows) -> Iterator[str]:
        """Yield the names of rows, whose bytes usually lie side by side."""
        first = int(rows["start"].min())
        last = int((rows["start"] + rows["length"]).max())
        data = self._names[first:last].tobytes()
        for start, length in zip(
            (rows["start"] - first).tolist(), rows["length"].tolist(), strict=True
        ):
            yield os.fsdecode(data[start : start + length])


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or "://" in path


def _decode(names: NDArray[np.uint8], row: Any) -> str:
    start = int(row["start"])
    return os.fsdecode(names[start : start + int(row["length"])].tobytes())


class _Names:
    """Collect the bytes of names."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, name: str) -> tuple[int, int]:
        """Add a name, and return its start and length."""
        data = os.fsencode(name)
        start = len(self._bytes)
        self._bytes.extend(data)
        return start, len(data)

    def array(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._bytes, dtype=np.uint8)


class _Table:
    """Collect rows."""

    def __init__(self) -> None:
        self._columns = (array("q"), array("i"), array("i"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, *values: int) -> None:
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def rows(self) -> Rows:
        rows = np.empty(len(self), dtype=ROW)
        for name, column in zip(ROW.names or (), self._columns, strict=True):
            rows[name] = column
        return rows


def scan(root: Path) -> tuple[Listing, Listing]:
    """List the files of a folder with the suffix of an image, and all others.

    Links are followed; hidden files are skipped. A kept listing is used if nothing has changed.
    """
    folder = cache_home() / "listings" / _key(root)
    kept = _read(folder, root)
    if kept is not None:
        return kept
    with ExitStack() as stack:
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:  # one of them lists, the others wait
            with suppress(OSError):  # a cache that cannot be written has no lock
                waiting = f"waiting for another process that lists {root}"
                stack.enter_context(lock(folder.with_suffix(".lock"), waiting))
                kept = _read(folder, root)
                if kept is not None:
                    return kept
        started = time.time_ns()
        names, images, others, folders = _walk_all(str(root))
        if len(images) >= MIN_KEPT_FILES and int(folders["mtime_ns"].max()) < started - MIN_AGE_NS:
            with suppress(OSError):
                _keep(folder, names, images, others, folders)
    return Listing(names, images, folders), Listing(names, others, folders)


def _key(root: Path) -> str:
    return hashlib.sha256(os.fsencode(f"{LISTING_VERSION}\0{root.resolve()}")).hexdigest()[:24]


def _read(folder: Path, root: Path) -> tuple[Listing, Listing] | None:
    """Map a kept listing; return None if there is none or if the folder has changed."""
    try:
        names, images, others, folders = (
            np.load(folder / f"{name}.npy", mmap_mode="r")
            for name in ("names", "images", "others", "folders")
        )
        listing = Listing(names, images, folders)
        for number, row in enumerate(folders):
            info = os.stat(root / listing.folder_path(number))
            if info.st_mtime_ns != row["mtime_ns"]:
                return None
        for entry in listing[:: max(1, len(listing) // NUM_CHECKED_FILES)]:
            info = os.stat(root / entry.path)
            if (info.st_size, info.st_mtime_ns) != (entry.size, entry.mtime_ns):
                return None
    except (OSError, ValueError, IndexError, EOFError):
        return None
    return listing, Listing(names, others, folders)


def _keep(folder: Path, *arrays: NDArray[Any]) -> None:
    """Write a listing to the cache, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder.parent, "listing-") as partial:
        for name, values in zip(("names", "images", "others", "folders"), arrays, strict=True):
            np.save(partial / f"{name}.npy", values)
            sync(partial / f"{name}.npy")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        sync(folder.parent)


def _walk_all(root: str) -> tuple[NDArray[np.uint8], Rows, Rows, Rows]:
    """Return the names, the images, the other files and the folders below a folder.

    Children are visited in the order of their paths, so nothing is sorted at the end.
    """
    names = _Names()
    images, others, folders = _Table(), _Table(), _Table()

    def add_file(name: str, folder: int, size: int = 0, mtime_ns: int = 0) -> None:
        is_image = os.path.splitext(name)[1].lower() in SUFFIXES
        (images if is_image else others).add(*names.add(name), folder, size, mtime_ns)

    def walk(path: str, name: str, above: int, parents: frozenset[tuple[int, int]]) -> None:
        """Visit a folder; `parents` are the folders above, to detect link loops."""
        try:
            info = os.stat(path)
            with os.scandir(path) as found:
                children = sorted(
                    (f"{child.name}/" if _is_folder(child) else child.name, child)
                    for child in found
                    if not child.name.startswith(".") and child.name != "__MACOSX"
                )
        except OSError as error:
            if above < 0:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            # one folder of many: list it, but skip its contents
            add_file(name.rstrip("/").rpartition("/")[2], above)
            return
        inode = (info.st_dev, info.st_ino)
        if inode in parents:  # a link to a folder above
            return
        number = len(folders)
        folders.add(*names.add(name), -1, 0, info.st_mtime_ns)
        for child_name, child in children:
            if child_name.endswith("/"):
                walk(child.path, name + child_name, number, parents | {inode})
                continue
            try:
                info = child.stat()
            except OSError:  # a link to nowhere or to itself: the decoder will report it
                add_file(child_name, number)
                continue
            if stat.S_ISREG(info.st_mode):
                add_file(child_name, number, info.st_size, info.st_mtime_ns)

    walk(root, "", -1, frozenset())
    return names.array(), images.rows(), others.rows(), folders.rows()


def _is_folder(child: "os.DirEntry[str]") -> bool:
    try:
        return child.is_dir()
    except OSError:  # a link to itself
        return False
