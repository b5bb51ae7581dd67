"""Find folders of this machine, lock files, and write files whole or not at all."""

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.terminal import announce

Source = str | os.PathLike[str]  # a name, a path, or a Run
Sources = Source | Iterable[Source]


def cache_home() -> Path:
    """Return $SMI_CACHE, or `smi` in $XDG_CACHE_HOME, or ~/.cache/smi."""
    if "SMI_CACHE" in os.environ:
        return expand(os.environ["SMI_CACHE"])
    return expand(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "smi"


def data_home() -> Path:
    """Return the folder of named datasets, unless the user gives a root."""
    return cache_home() / "data"


def expand(path: Source) -> Path:
    """Replace ~ by the home folder."""
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
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def lock_or_fail(path: Path, refusal: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`, or raise a UserError if another process holds it."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(refusal) from error
        yield


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Report a full disk or a forbidden folder as a mistake the user can correct."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"{doing} failed: {error.strerror or error}{where}") from error


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then rename it to `path`: never half-written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        write(partial)
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
