"""Find folders of this machine, lock files, read small files with checks, write them whole."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from smi.errors import UserError
from smi.terminal import announce, printable

MAX_TEXT_BYTES = 200_000_000  # of JSON; the largest are the points of figures
MAX_YAML_BYTES = 1_000_000
MAX_YAML_VALUES = 10_000  # with those that aliases repeat
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
        raise UserError(f"{doing} failed: {error.strerror or error}{where}") from error


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk; Windows cannot flush a folder."""
    if WINDOWS and path.is_dir():
        return
    fd = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # it flushes only for a writer
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`: never half-written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        write(partial)
        partial.chmod(FILE_MODE)  # safetensors writes files that only their owner can read
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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
    try:
        value = json.loads(read_text(path, MAX_TEXT_BYTES))
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(path, error) from error
    if not isinstance(value, dict):
        raise damaged(path, f"it holds a {type(value).__name__}, not an object")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, or raise a UserError that says what is wrong with the file."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), path)


def parse_yaml(text: str, path: object) -> dict[str, Any]:
    """Parse a YAML mapping; one that aliases make larger than memory is refused."""
    try:
        if _num_values(yaml.compose(text, yaml.SafeLoader)) > MAX_YAML_VALUES:
            raise damaged(path, f"it has more than {MAX_YAML_VALUES:,} values")
        value = yaml.safe_load(text)
    except UserError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise damaged(path, error) from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise damaged(path, "it has no settings (name: value)")
    return value


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


def damaged(path: object, reason: object) -> UserError:
    """Return the error for a file with a wrong content."""
    text = " ".join(str(reason).split()) or type(reason).__name__
    return UserError(f"{printable(str(path))} is damaged: {printable(text)[:200]}")
