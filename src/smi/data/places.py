"""Where things lie on this machine, and the lock that lets one process at a time make them."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from smi.errors import UserError


def cache_home() -> Path:
    """$SMI_CACHE, or smi in $XDG_CACHE_HOME, or ~/.cache/smi."""
    if "SMI_CACHE" in os.environ:
        return expand(os.environ["SMI_CACHE"])
    return expand(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "smi"


def data_home() -> Path:
    """Where named sets are looked for and downloaded to unless a root is given."""
    return cache_home() / "data"


def expand(path: str | Path) -> Path:
    """With the home folder for ~."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path} begins with a home folder that cannot be found") from error


def printable(text: str) -> str:
    """A name on a disk need not be text, nor end where its line does."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


@contextlib.contextmanager
def lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold `path` alone; the system frees it if the holder dies. Says `waiting` on stderr if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    """What was written to this file or folder is on the disk when this returns."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(folder: Path) -> int:
    """On the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """A full disk or a forbidden folder is for the user to mend."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"{doing} failed: {error.strerror or error}{where}") from error


def announce(sentence: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(sentence, highlight=False, soft_wrap=True, markup=False)
