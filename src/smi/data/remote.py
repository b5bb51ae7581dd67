"""Read files by path or by URL through fsspec, with time-outs and retries.

read("s3://bucket/a.jpg"), read("http://host/a.tar", 512, 1024), fetch("gs://bucket/a.tar", path)

A failure is tried again after a pause, and again after a longer one. `LostError` says that all
attempts failed. A file that does not exist, or may not be read, is not tried again.
"""

import contextlib
import errno
import glob
import itertools
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from smi.errors import UserError

NUM_ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5  # doubled after every attempt
TIMEOUT_SECONDS = 60.0  # of an answer
SLOWEST_BYTES_PER_SECOND = 100_000  # a file may take longer than the time-out, but not than this
PACKAGES = {  # of protocols that fsspec does not read by itself
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "http": ("aiohttp", "http"),
    "https": ("aiohttp", "http"),
}

MAX_LOCATIONS = 1_000_000  # that a pattern stands for
VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "Last-Modified", "mtime")

T = TypeVar("T")

_servers: dict[str, bool] = {}  # whether they send ranges


class LostError(Exception):
    """Report that a file could not be read, after all attempts."""


@dataclass(frozen=True)
class File:
    """Describe a file: its path or URL, its size, and a text that changes with its content."""

    location: str
    num_bytes: int
    version: str


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URL."""
    return re.match(r"[a-z][a-z0-9+.-]+://", os.fspath(location)) is not None


def join(root: str, path: str) -> str:
    """Return the location of a path below a folder; an absolute path or URL stays as it is."""
    return path if path.startswith("/") or is_url(path) else f"{root}/{path}"


def common_folder(locations: Sequence[str]) -> str:
    """Return the innermost folder of all locations."""
    folders = [location.split("/")[:-1] for location in locations]
    shared = itertools.takewhile(lambda names: len({*names}) == 1, zip(*folders, strict=False))
    return "/".join(names[0] for names in shared)


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it."""
    import fsspec

    protocol = url.split("://", 1)[0]
    try:
        options: dict[str, Any] = {}
        if protocol in ("http", "https"):  # slow is not broken, silent is
            from aiohttp import ClientTimeout

            limit = ClientTimeout(total=None, sock_connect=30, sock_read=TIMEOUT_SECONDS)
            options["client_kwargs"] = {"timeout": limit}
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package, extra = PACKAGES.get(protocol, (protocol, ""))
        install = f"pip install 'smi-ssl[{extra}]'" if extra else f"install {package}"
        raise UserError(f"{protocol}:// needs the package {package}: {install}") from error
    except ValueError as error:
        raise UserError(f"{url}: there is no way to read {protocol}:// ({error})") from error
    return system, path


def read(location: str, start: int = 0, stop: int | None = None) -> bytes:
    """Return the bytes of a file, or of a range of it."""
    if not is_url(location):
        with open(location, "rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)
    system, path = open_filesystem(location)

    def get() -> bytes:
        data: bytes = system.cat_file(path, start=start or None, end=stop)
        if stop is not None and len(data) != stop - start:
            raise OSError(f"{len(data):,} bytes came instead of {stop - start:,}")
        return data

    size = (stop - start) if stop is not None else 0
    return _persist(location, get, size)


def fetch(file: File, target: Path, stopped: Callable[[], bool] = bool) -> None:
    """Copy a remote file to the disk, whole or not at all.

    stopped: when it returns True, nothing more is waited for.
    """
    system, path = open_filesystem(file.location)
    partials: list[Path] = []

    def get() -> Path:
        # An attempt that was given up may still write, so each has a file of its own.
        partial = target.with_name(f"{target.name}.{os.getpid()}-{len(partials)}.partial")
        partials.append(partial)
        system.get_file(path, str(partial))
        size = partial.stat().st_size
        if size != file.num_bytes:
            raise OSError(f"{size:,} bytes came instead of {file.num_bytes:,}")
        return partial

    try:
        _persist(file.location, get, file.num_bytes, stopped).replace(target)
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)


def _persist(
    location: str, act: Callable[[], T], num_bytes: int, stopped: Callable[[], bool] = bool
) -> T:
    """Call `act` until it succeeds; raise LostError when it has failed too often."""
    pause = FIRST_PAUSE_SECONDS
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            return _in_time(act, TIMEOUT_SECONDS + num_bytes / SLOWEST_BYTES_PER_SECOND, stopped)
        except UserError:
            raise
        except Exception as error:  # every protocol has errors of its own
            refuse_full_disk(error, location)
            reason = str(error) or type(error).__name__
            if attempt == NUM_ATTEMPTS or stopped() or not _may_pass(error):
                raise LostError(f"{location}: {reason}") from error
        time.sleep(pause)
        pause *= 2
    raise AssertionError("the last attempt returns or raises")


def refuse_full_disk(error: Exception, location: str) -> None:
    """Raise a UserError if the disk is full: no other attempt would succeed, and no other file."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(
            f"there is no space left to copy {location}: free some, or move smi's cache folder "
            "with SMI_CACHE"
        ) from error


def _may_pass(error: Exception) -> bool:
    """Return whether another attempt may succeed."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return False
    status = getattr(error, "status", None)
    return not (isinstance(status, int) and 400 <= status < 500 and status not in (408, 429))


def _in_time(act: Callable[[], T], seconds: float, stopped: Callable[[], bool]) -> T:
    """Call `act` in a thread, and stop to wait for it after some seconds."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="smi-remote", daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end and not stopped():
        thread.join(min(0.2, seconds))
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError("stopped" if stopped() else f"no answer in {seconds:.0f} s")
    return results[0]


def describe(location: str) -> File:
    """Return the size and version of one file."""
    if not is_url(location):
        info = os.stat(location)
        return File(location, info.st_size, str(info.st_mtime_ns))
    system, path = open_filesystem(location)
    return _described(location, _persist(location, lambda: system.info(path), 0))


def _described(location: str, info: dict[str, Any]) -> File:
    size = info.get("size")
    if size is None:
        raise LostError(f"{location}: the server does not say how large it is")
    versions = (info.get(name) for name in VERSIONS)
    version = next((str(value) for value in versions if value), "")
    return File(location, int(size), version)


def has_ranges(file: File) -> bool:
    """Return whether parts of a file can be read; some web servers send files whole."""
    if not file.location.startswith("http") or file.num_bytes < 2:
        return True
    server = "/".join(file.location.split("/")[:3])
    if server not in _servers:
        system, path = open_filesystem(file.location)
        first = _persist(file.location, lambda: system.cat_file(path, start=0, end=1), 0)
        _servers[server] = len(first) == 1
    return _servers[server]


def list_files(folder: str) -> Iterator[tuple[str, File]]:
    """Yield all files below a URL, sorted by path: the path relative to it, and the file."""
    system, path = open_filesystem(folder)
    found = _persist(folder, lambda: system.find(path, detail=True), 0)
    base = path.rstrip("/") + "/"
    for name, info in sorted(found.items()):
        relative = name.removeprefix(base)
        with contextlib.suppress(LostError):
            yield relative, _described(f"{folder.rstrip('/')}/{relative}", info)


def is_folder(location: str) -> bool:
    """Return whether a location is a folder."""
    if not is_url(location):
        return os.path.isdir(location)
    system, path = open_filesystem(location)
    try:
        return bool(_persist(location, lambda: system.isdir(path), 0))
    except LostError:
        return False


# ------ patterns


def expand_pattern(text: str) -> list[str]:
    """Return the locations of a pattern: {a,b}, {000..099}, * and ?; a path that exists is one."""
    if not is_url(text) and os.path.exists(text):
        return [text]
    found: list[str] = []
    for location in expand_braces(text):
        is_pattern = re.search(r"[*?\[]", location)
        if not is_pattern or (not is_url(location) and os.path.exists(location)):
            found.append(location)
            continue
        matches = _expand_stars(location)
        if not matches:
            raise UserError(f"nothing is called like {location}")
        found += matches
    return found


def expand_braces(text: str) -> list[str]:
    """Return all texts that a pattern with {a,b} or {000..099} stands for."""
    parts = re.split(r"\{([^{}]*)\}", text)  # text and content of braces in turn
    choices = [[part] if i % 2 == 0 else _choices(part) for i, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MAX_LOCATIONS:
        raise UserError(f"{text[:100]!r} stands for more than {MAX_LOCATIONS:,} names")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(content: str) -> list[str]:
    numbers = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", content)
    if numbers is None:
        return content.split(",")
    first, last = numbers.groups()
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    if int(last) - int(first) >= MAX_LOCATIONS:
        raise UserError(f"{{{content}}} stands for more than {MAX_LOCATIONS:,} names")
    return [str(i).zfill(width) for i in range(int(first), int(last) + 1)]


def _expand_stars(pattern: str) -> list[str]:
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    system, path = open_filesystem(pattern)
    protocol = pattern.split("://", 1)[0]
    found = _persist(pattern, lambda: system.glob(path), 0)
    return sorted(name if is_url(name) else f"{protocol}://{name.lstrip('/')}" for name in found)
