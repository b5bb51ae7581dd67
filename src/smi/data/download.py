"""Download archives: resume after a broken connection, verify the checksum, extract safely.

<root>/<archive>.part      the bytes received so far; removed after extraction
<root>/<archive>           the same archive, if you put it there; it stays
<root>/<folder>            the extracted folder; appears when it is complete
"""

import contextlib
import errno
import hashlib
import http.client
import tarfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from smi.data.sources import ARCHIVES, Archive
from smi.errors import UserError
from smi.files import (
    data_home,
    disk_errors,
    expand,
    lock,
    make_folder,
    remove_abandoned,
    sync,
    sync_below,
    temporary_folder,
)
from smi.terminal import Progress, announce

NUM_ATTEMPTS = 5
TIMEOUT_SECONDS = 30.0  # without a byte
BLOCK_BYTES = 1 << 20


class _BrokenError(Exception):
    """Report that the connection ended early; the received bytes are kept."""


@dataclass(frozen=True)
class _Failure:
    """Describe a failed attempt to download."""

    reason: str
    retry: bool = True  # another attempt may succeed


def download(name: str, root: Path | None = None) -> Path:
    """Return the folder of a named dataset with an archive; download and extract it if missing."""
    root = expand(root or data_home())
    archive = ARCHIVES[name]
    return root if root.name == archive.folder and root.is_dir() else fetch(name, archive, root)


def fetch(name: str, archive: Archive, root: Path, *, pause: float = 1.0) -> Path:
    """Return the extracted folder; download and extract the archive if it is missing.

    The pause between attempts is `pause` seconds, doubled each time.
    """
    folder = root / archive.folder
    if folder.is_dir():  # complete: no lock is needed, and the disk may be read-only
        with contextlib.suppress(OSError):  # what a command left that was killed at its very end
            (root / f"{archive.file}.part").unlink(missing_ok=True)
            remove_abandoned(root, f".{folder.name}-")
        return folder
    with disk_errors(f"downloading {name} to {root}"):
        make_folder(root)
    with (
        disk_errors(f"downloading {name} to {root}"),
        lock(root / f"{archive.file}.lock", f"waiting for another download of {name}"),
    ):
        if folder.is_dir():
            return folder
        path = root / archive.file
        put_by_user = path.is_file()
        if not put_by_user:
            path = _download(name, archive, path, pause)
        elif _md5(path) != archive.md5:
            raise UserError(
                f"{path} is not the complete official archive (its MD5 is not {archive.md5}): "
                "remove it, or replace it"
            )
        announce(f"extracting {path}")
        extract(path, folder)
        if not put_by_user:
            path.unlink(missing_ok=True)
    return folder


def _download(name: str, archive: Archive, path: Path, pause: float) -> Path:
    """Download an archive, in several attempts if necessary, and return the verified file."""
    part = path.with_name(f"{path.name}.part")
    if part.is_file() and _md5(part) == archive.md5:  # a command was killed while it extracted
        return part
    reason = ""
    for attempt in range(NUM_ATTEMPTS):
        failure = _attempt(name, archive, part, first=attempt == 0)
        if failure is None:
            return part
        reason = failure.reason
        if not failure.retry:
            break
        if attempt + 1 < NUM_ATTEMPTS:
            time.sleep(pause * 2**attempt)
    received = ""
    if part.is_file():
        megabytes = part.stat().st_size / 1e6
        received = f"; {megabytes:,.0f} MB are kept, and the same command resumes the download"
    raise UserError(
        f"{name} could not be downloaded ({reason}): without a connection, fetch "
        f"{archive.url} elsewhere, save it as {path}, and run "
        f"`smi data {name} --root {path.parent}` again{received}"
    )


def _attempt(name: str, archive: Archive, part: Path, *, first: bool) -> _Failure | None:
    """Try to complete `part` and verify it; return None, or the failure."""
    resumed = part.is_file() and part.stat().st_size > 0
    try:
        _receive(name, archive.url, part)
    except urllib.error.HTTPError as error:
        error.close()
        return _Failure(f"the server answers {error.code} {error.reason}", retry=error.code >= 500)
    except _BrokenError as error:
        return _Failure(str(error))
    except (OSError, http.client.HTTPException) as error:
        if _is_disk_error(error):
            raise
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        # Without any connection at first, a retry after some seconds would fail too.
        return _Failure(reason, retry=not (first and isinstance(error, urllib.error.URLError)))
    if _md5(part) == archive.md5:
        return None
    part.unlink()
    # A complete new download with a wrong checksum would be wrong again.
    return _Failure(f"the received file does not have the MD5 {archive.md5}", retry=resumed)


def _receive(name: str, url: str, part: Path) -> None:
    """Append to the received bytes, or start over if the server cannot resume."""
    done = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "smi", **({"Range": f"bytes={done}-"} if done else {})}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing follows our bytes: the checksum will be checked next
            error.close()
            return
        raise
    with response:
        if done and response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            announce(f"resuming {url} after {done / 1e6:,.0f} MB")
        else:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with (
            part.open("ab" if done else "wb") as file,
            Progress(name, total, "bytes", done) as progress,
        ):
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                progress.advance(len(block))
        received = part.stat().st_size
        if total is not None and received < total:
            raise _BrokenError(f"the connection broke after {received:,} of {total:,} bytes")


def _is_disk_error(error: Exception) -> bool:
    return isinstance(error, OSError) and bool(
        error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)
    )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def extract(path: Path, folder: Path) -> None:
    """Extract the folder of this name from an archive, whole or not at all.

    An archive with a member that would land outside the folder is refused.
    """
    with temporary_folder(folder.parent, f".{folder.name}-") as scratch:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(scratch, filter="data")
        except tarfile.FilterError as error:
            raise UserError(f"{path} is not safe to extract: {error}") from error
        except (tarfile.TarError, EOFError, OSError) as error:
            if _is_disk_error(error):
                raise
            raise UserError(f"{path} cannot be extracted: {error}") from error
        inner = scratch / folder.name
        if not inner.is_dir():
            raise UserError(f"{path} does not hold a folder {folder.name}")
        sync_below(inner)
        inner.rename(folder)
        sync(folder.parent)
