"""Archives from the net: resumed where they broke, verified, and extracted without a way out of their folder.

<root>/<archive>.part      what has arrived so far
<root>/<archive>           the whole of it, once its checksum is right; removed when extracted, unless the user put it there
<root>/<folder>            appears when all of it is extracted
"""

import errno
import hashlib
import http.client
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from smi.data.sources import ARCHIVES, Archive
from smi.errors import UserError
from smi.files import data_home, disk_errors, expand, lock
from smi.terminal import Progress, announce

ATTEMPTS = 5
PATIENCE = 30.0  # seconds without a byte
BLOCK = 1 << 20


class _BrokenError(Exception):
    """The connection ended early: what has arrived is kept."""


def download(name: str, root: Path | None = None) -> Path:
    """The folder of a named set that has an archive: found, or downloaded and extracted."""
    root = expand(root or data_home())
    archive = ARCHIVES[name]
    return root if root.name == archive.folder and root.is_dir() else fetch(name, archive, root)


def fetch(name: str, archive: Archive, root: Path, *, pause: float = 1.0) -> Path:
    """The extracted folder; at once if it is there already. `pause` seconds, doubled each time, lie between attempts."""
    folder = root / archive.folder
    if folder.is_dir():  # it appears whole; and a place that holds it need not be writable
        return folder
    with (
        disk_errors(f"downloading {name} to {root}"),
        lock(root / f"{archive.file}.lock", f"waiting for another download of {name}"),
    ):
        if folder.is_dir():
            return folder
        path = root / archive.file
        brought = path.is_file()
        if not brought:
            _download(name, archive, path, pause)
        elif _md5(path) != archive.md5:
            raise UserError(
                f"{path} is not the whole official archive (its MD5 is not {archive.md5}): remove it, or bring it again"
            )
        announce(f"extracting {path}")
        extract(path, folder)
        if not brought:
            path.unlink()
    return folder


def _download(name: str, archive: Archive, path: Path, pause: float) -> None:
    part = path.with_name(f"{path.name}.part")
    for attempt in range(ATTEMPTS):
        resumed = part.is_file() and part.stat().st_size > 0
        try:
            _receive(name, archive.url, part)
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise UserError(
                    _by_hand(name, archive, path, f"the server answers {error.code} {error.reason}")
                ) from error
            reason = f"the server answers {error.code} {error.reason}"
        except _BrokenError as error:
            reason = str(error)
        except (OSError, http.client.HTTPException) as error:
            if _of_the_disk(error):
                raise
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            if (
                isinstance(error, urllib.error.URLError) and attempt == 0
            ):  # no connection at all: waiting seconds will not bring one
                break
        else:
            if _md5(part) == archive.md5:
                part.rename(path)
                return
            part.unlink()
            reason = f"what arrived does not have the MD5 {archive.md5}"
            if not resumed:  # whole and fresh, yet wrong: the next one would be too
                break
        if attempt + 1 < ATTEMPTS:
            time.sleep(pause * 2**attempt)
    kept = (
        f"; {part.stat().st_size / 1e6:,.0f} MB of it are kept, and the same command goes on from there"
        if part.is_file()
        else ""
    )
    raise UserError(_by_hand(name, archive, path, reason) + kept)


def _by_hand(name: str, archive: Archive, path: Path, reason: str) -> str:
    return (
        f"{name} could not be downloaded ({reason}): without a connection, fetch {archive.url} elsewhere, "
        f"put it here as {path}, and run `smi data {name} --root {path.parent}` again"
    )


def _receive(name: str, url: str, part: Path) -> None:
    """Append to what has arrived, or start over where the server cannot resume."""
    done = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "smi", **({"Range": f"bytes={done}-"} if done else {})}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=PATIENCE
        )
    except urllib.error.HTTPError as error:
        if (
            error.code == 416
        ):  # nothing after what we have: all of it, or of something else; the checksum decides
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
            while block := response.read(BLOCK):
                file.write(block)
                progress.advance(len(block))
        arrived = part.stat().st_size
        if total is not None and arrived < total:
            raise _BrokenError(f"the connection broke after {arrived:,} of {total:,} bytes")


def _of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and bool(
        error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)
    )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def extract(path: Path, folder: Path) -> None:
    """The one folder of this name in the archive. It is refused if any member would land outside, and appears whole or not at all."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(scratch, filter="data")
        except tarfile.FilterError as error:
            raise UserError(f"{path} is not safe to extract: {error}") from error
        except (tarfile.TarError, EOFError, OSError) as error:
            if _of_the_disk(error):
                raise
            raise UserError(f"{path} cannot be extracted: {error}") from error
        inner = Path(scratch) / folder.name
        if not inner.is_dir():
            raise UserError(f"{path} does not hold a folder {folder.name}")
        inner.rename(folder)
