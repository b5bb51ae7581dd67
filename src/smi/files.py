"""Find folders of this machine, lock files, read small files with checks, write them whole."""

import contextlib
import ctypes
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from smi.errors import DiskError, UserError
from smi.terminal import announce, printable

MAX_TEXT_BYTES = 200_000_000  # of JSON; the largest are the points of figures
MAX_YAML_BYTES = 200_000
MAX_YAML_VALUES = 10_000  # with those that aliases repeat
MAX_NUMBER_BITS = 1000  # of whole numbers; Python refuses to print those of thousands of digits
MAX_FLOAT = 1e300  # products and differences of two smaller numbers are still numbers, mostly
MAX_DEPTH = 100  # of values inside values
WINDOWS = os.name == "nt"

_umask = os.umask(0o022)  # the only way to read it is to change it
os.umask(_umask)
FILE_MODE = 0o666 & ~_umask

Kinds = Mapping[str, Any]  # of fields: a type, several, or the kinds of a section below
Source = str | os.PathLike[str]  # a name, a path, or a Run
Sources = Source | Iterable[Source]


def cache_home() -> Path:
    """Return $SMI_CACHE, or `smi` in $XDG_CACHE_HOME, or ~/.cache/smi."""
    if os.environ.get("SMI_CACHE"):
        return expand(os.environ["SMI_CACHE"])
    return expand(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "smi"


def data_home() -> Path:
    """Return the folder of named datasets, unless the user gives a root."""
    return cache_home() / "data"


def expand(path: Source) -> Path:
    """Replace ~ by the home folder."""
    if not os.fspath(path):
        raise UserError("a path is empty: name a file or a folder")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path} begins with a home folder that cannot be found") from error


def last_part(location: str) -> str:
    """Return the last part of a path or URL, without folders, users, passwords and queries."""
    scheme, is_url, rest = location.partition("://")
    if not is_url:
        windows = re.match(r"[A-Za-z]:\\|\\\\", location)  # also a path of another machine
        path = PureWindowsPath(location) if windows else Path(location)
        return path.name or location
    rest = re.sub(r"^[^/?#]*@", "", rest)
    # Elsewhere than on web servers, shards-?.tar is a pattern, and # a part of a name.
    if scheme in ("http", "https") or re.search(r"\?[\w.~%-]+=", rest):
        rest = re.split("[?#]", rest)[0]
    return rest.rstrip("/").rpartition("/")[2] or scheme


def as_list(sources: Sources) -> list[str | Path]:
    """Return one source or several as a list: names, paths or runs."""
    several = [sources] if isinstance(sources, str | os.PathLike) else sources
    return [source if isinstance(source, str) else Path(source) for source in several]


def free_bytes(folder: Path) -> int:
    """Return the free space on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


@contextlib.contextmanager
def lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which the system releases if the holder dies.

    If another process holds it, print `waiting` on stderr and wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = try_lock(path)
    if held is None:
        announce(waiting)
        held = _file_lock(path)
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def lock_or_fail(path: Path, refusal: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`, or raise a UserError if another process holds it."""
    held = try_lock(path)
    if held is None:
        raise UserError(refusal)
    try:
        yield
    finally:
        held.release()


def try_lock(path: Path) -> BaseFileLock | None:
    """Take an exclusive lock on `path` until it is released, or return None if it is taken."""
    held = _file_lock(path)
    try:
        held.acquire(blocking=False)
    except Timeout:
        return None
    return held


def _file_lock(path: Path) -> BaseFileLock:
    """Return a lock of the system, which any thread may release; its file stays."""
    return FileLock(path, thread_local=False)


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Report a full disk or a forbidden folder as a mistake the user can correct."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise DiskError(f"{doing} failed: {error.strerror or error}{where}") from error


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk; Windows cannot flush a folder."""
    if WINDOWS and path.is_dir():
        return
    fd = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # it flushes only for a writer
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_below(folder: Path) -> None:
    """Flush all files and folders below a folder, and the folder itself, to the disk."""
    os.sync()  # many files are flushed faster together than one by one
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and flush their names to the disk.

    Without their names, a power loss would take away what is inside them.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        with contextlib.suppress(PermissionError):  # a folder may be writable and not readable
            sync(place.parent)


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`: never half-written.

    A second process that writes the same file waits meanwhile.
    """
    partial = path.with_name(f"{path.name}.partial")
    with _locked(partial):
        try:
            write(partial)
            partial.chmod(FILE_MODE)  # some writers make files that only their owner can read
            sync(partial)
            partial.replace(path)
            sync(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Make a file and hold its lock; if another process holds it, wait.

    A link, or a second name of another file, is removed first: writing would change that file.
    """
    if WINDOWS:  # an open file cannot be renamed there
        yield
        return
    while True:
        if path.is_symlink():
            path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o666)
        try:
            with contextlib.suppress(OSError):  # some file systems have no locks
                _flock(descriptor)
            if os.fstat(descriptor).st_nlink > 1:
                path.unlink(missing_ok=True)
            elif _is_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _flock(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file or folder until it is closed; an OSError where that cannot be done."""
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise OSError("no locks of open files") from error
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has its name; another process may have renamed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder that is removed at the end, unless it has another name by then.

    Those that killed processes left are removed first: a folder in use is locked, and the system
    releases the lock if its holder dies.
    """
    remove_abandoned(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(".partial", prefix, parent))
        if WINDOWS:  # a folder cannot be opened there
            with contextlib.ExitStack() as stack:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                yield folder
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some file systems have no locks of folders
                _flock(descriptor)
            if _is_at(descriptor, folder):  # no other process has taken it for an unused one
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return
        finally:
            os.close(descriptor)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove temporary folders with this prefix that killed processes left."""
    for place in parent.iterdir():
        if re.fullmatch(rf"{re.escape(prefix)}[a-z0-9_]{{8}}\.partial", place.name):
            _remove_unused(place)


def _remove_unused(folder: Path) -> None:
    """Remove a temporary folder that no process has locked."""
    with contextlib.suppress(OSError):  # in use, removed meanwhile, or no locks here
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _flock(descriptor, wait=False)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def exchange(a: Path, b: Path) -> bool:
    """Give two folders each other's name in one step; return False if the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError, OSError):  # not Linux
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(a), here, os.fsencode(b), swap) == 0)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 whole or not at all; bytes of a file name that are not text are escaped."""

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")

    write_whole(path, write)


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Write indented JSON whole or not at all, with null for NaN and infinity."""
    write_text(path, json.dumps(finite(value), indent=2) + "\n")


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None in nested values: JSON has neither."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------- reading


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise a UserError that says what is wrong with the file."""
    return parse_json(read_text(path, MAX_TEXT_BYTES), path)


def parse_json(text: str | bytes, path: object) -> dict[str, Any]:
    """Parse a JSON object; one with numbers or depths that no writer of ours makes is refused."""
    try:
        value = json.loads(text)
        reason = _excess(value)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if reason:
        raise damaged(path, reason)
    if not isinstance(value, dict):
        raise damaged(path, f"it holds a {type(value).__name__}, not an object")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, or raise a UserError that says what is wrong with the file."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), path)


def parse_yaml(text: str, path: object) -> dict[str, Any]:
    """Parse a YAML mapping; one that aliases make larger than memory is refused."""
    value = parse_yaml_value(text, path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise damaged(path, "it has no settings (name: value)")
    return value


def parse_yaml_value(text: str, path: object) -> Any:
    """Parse YAML that may be one value only; it can name no code."""
    try:
        if _num_values(yaml.compose(text, yaml.SafeLoader)) > MAX_YAML_VALUES:
            raise damaged(path, f"it has more than {MAX_YAML_VALUES:,} values")
        value = yaml.safe_load(text)
        reason = _excess(value)
    except UserError:
        raise
    except Exception as error:  # wrong tags and dates fail in many ways
        raise damaged(path, error) from error
    if reason:
        raise damaged(path, reason)
    return value


def _excess(value: Any) -> str:
    """Say which number or depth of nested values is too large; nothing if none is."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(v, int) and v.bit_length() > MAX_NUMBER_BITS for v in level):
            return f"it has a number of more than {MAX_NUMBER_BITS} bits"
        level = [
            child
            for v in level
            if isinstance(v, dict | list)
            for child in ([*v, *v.values()] if isinstance(v, dict) else v)
        ]
        if not level:
            return ""
    return f"it is more than {MAX_DEPTH} levels deep"


def _num_values(node: yaml.Node | None) -> int:
    """Count the values of a YAML document, also those that aliases repeat."""
    counts: dict[int, int] = {}

    def count(node: Any) -> int:
        if id(node) not in counts:
            counts[id(node)] = MAX_YAML_VALUES + 1  # of a node inside itself
            values = node.value if isinstance(node.value, list) else []
            children = [child for v in values for child in (v if isinstance(v, tuple) else (v,))]
            counts[id(node)] = 1 + sum(map(count, children))
        return counts[id(node)]

    return 0 if node is None else count(node)


def read_text(path: Path, max_bytes: int) -> str:
    """Read UTF-8, or raise a UserError for a file that is too large or not text."""
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise damaged(path, f"it has more than {max_bytes / 1e6:g} MB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise damaged(path, "it is not UTF-8") from error


def check_fields(values: Mapping[str, Any], kinds: Kinds, path: object, section: str = "") -> None:
    """Raise a UserError for a field that is missing or not of its kind.

    A name that ends with ? may be missing or null. True and false are not numbers.
    """
    for key, kind in kinds.items():
        name = key.removesuffix("?")
        value = values.get(name)
        if value is None and key != name:
            continue
        if isinstance(kind, Mapping):
            if not isinstance(value, Mapping):
                raise damaged(path, f"it has no section {section + name!r}")
            check_fields(value, kind, path, f"{section}{name}.")
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            shown = "missing" if value is None else f"{str(value)[:40]!r}"
            raise damaged(path, f"{section}{name} is {shown}")
        elif isinstance(value, int | float) and kind is not bool and not is_finite(value):
            raise damaged(path, f"{section}{name} is out of range")


def check_all(values: Iterable[Any], kinds: Kinds, path: object, section: str) -> None:
    """Raise a UserError unless all values of a list are objects with these fields."""
    for value in values:
        if not isinstance(value, Mapping):
            raise damaged(path, f"{section.rstrip('.')} is not a list of objects")
        check_fields(value, kinds, path, section)


def check_numbers(values: Mapping[str, Any], path: object, section: str) -> None:
    """Raise a UserError unless all values are finite numbers."""
    for name, value in values.items():
        if not is_finite(value):
            raise damaged(path, f"{section}.{name} is not a number")


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a float can hold, neither NaN nor infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MAX_FLOAT < value < MAX_FLOAT


def damaged(path: object, reason: object) -> UserError:
    """Return the error for a file with a wrong content."""
    text = " ".join(str(reason).split()) or type(reason).__name__
    return UserError(f"{printable(str(path))} is damaged: {printable(text)[:200]}")
