import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from smi.data.download import download, extract, fetch
from smi.data.sources import Archive
from smi.errors import UserError


def tar(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


GOOD = tar(("set/a.bin", bytes(range(256)) * 400), ("set/deep/b.bin", b"b"))


class Server(ThreadingHTTPServer):
    """Serve `content`; the first `breaks` answers end half-way; `ranges` allow to resume."""

    content = GOOD
    breaks = 0
    ranges = True
    status = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []

    @property
    def archive(self) -> Archive:
        return Archive(
            f"http://127.0.0.1:{self.server_port}/set.tgz", hashlib.md5(GOOD).hexdigest(), "set"
        )


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        if self.server.status:
            self.send_error(self.server.status)
            return
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and self.server.ranges else 0
        body = self.server.content[start:]
        if start and not body:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range",
                f"bytes {start}-{len(self.server.content) - 1}/{len(self.server.content)}",
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if len(self.server.requests) <= self.server.breaks:
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: Server, root: Path) -> Path:
    return fetch("set", server.archive, root, pause=0)


def test_downloads_verifies_and_extracts_once(server: Server, tmp_path: Path) -> None:
    folder = get(server, tmp_path / "new" / "root")
    assert (folder / "deep" / "b.bin").read_bytes() == b"b"
    assert get(server, tmp_path / "new" / "root") == folder
    assert len(server.requests) == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set", "set.tgz.lock"]


def test_a_broken_download_is_resumed(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.breaks = 2
    assert get(server, tmp_path).is_dir()
    half = len(GOOD) // 2
    assert server.requests == [None, f"bytes={half}-", f"bytes={half + (len(GOOD) - half) // 2}-"]
    assert "resuming" in capsys.readouterr().err


def test_a_server_that_cannot_resume_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.breaks, server.ranges = 1, False
    assert get(server, tmp_path).is_dir()
    assert len(server.requests) == 2


def test_a_download_that_keeps_breaking_is_kept_for_the_next_command(
    server: Server, tmp_path: Path
) -> None:
    server.breaks = 5
    with pytest.raises(
        UserError, match=r"the connection broke after .* the same command resumes the download"
    ):
        get(server, tmp_path)
    assert not (tmp_path / "set").exists()
    server.requests.clear()
    server.breaks = 0
    assert get(server, tmp_path).is_dir()
    assert server.requests[0] is not None


def test_a_part_of_another_file_is_discarded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.tgz.part").write_bytes(b"another file")
    assert get(server, tmp_path).is_dir()
    assert server.requests == ["bytes=12-", None]


def test_a_part_that_was_complete(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.tgz.part").write_bytes(GOOD)
    assert get(server, tmp_path).is_dir()
    assert server.requests == []  # a command was killed while it extracted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.tgz.lock"]


def test_what_a_command_left_that_was_killed_at_its_end_is_removed(
    server: Server, tmp_path: Path
) -> None:
    folder = get(server, tmp_path)
    (tmp_path / "set.tgz.part").write_bytes(GOOD)
    (tmp_path / ".set-abcd1234.partial").mkdir()
    assert get(server, tmp_path) == folder
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.tgz.lock"]


def test_a_wrong_checksum_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = tar(("set/a.bin", b"not what was published"))
    with pytest.raises(UserError, match="does not have the MD5"):
        get(server, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set.tgz.lock"]
    assert len(server.requests) == 1


def test_without_a_connection_the_error_says_where_to_put_the_file(tmp_path: Path) -> None:
    archive = Archive("http://127.0.0.1:9/set.tgz", "0" * 32, "set")
    with pytest.raises(UserError) as error:
        fetch("cifar10", archive, tmp_path, pause=60)
    sentence = str(error.value)
    assert "Connection refused" in sentence
    assert "fetch http://127.0.0.1:9/set.tgz elsewhere" in sentence
    assert (
        f"save it as {tmp_path}/set.tgz, and run `smi data cifar10 --root {tmp_path}` again"
        in sentence
    )


def test_a_missing_file_on_the_server_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(UserError, match="the server answers 404 Not Found"):
        get(server, tmp_path)
    assert len(server.requests) == 1


def test_an_archive_brought_by_hand_is_used_and_left(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.tgz").write_bytes(GOOD)
    assert get(server, tmp_path).is_dir()
    assert server.requests == []
    assert (tmp_path / "set.tgz").is_file()


def test_a_wrong_archive_brought_by_hand_is_a_user_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.tgz").write_bytes(GOOD[:-1])
    with pytest.raises(UserError, match="is not the complete official archive"):
        get(server, tmp_path)


@pytest.mark.parametrize("name", ["../escaped.bin", "set/../../escaped.bin", "/escaped.bin"])
def test_no_member_is_extracted_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "bad.tgz").write_bytes(tar(("set/a.bin", b"a"), (name, b"escaped")))
    if name.startswith("/"):
        extract(tmp_path / "root" / "bad.tgz", tmp_path / "root" / "set")
    else:
        with pytest.raises(UserError, match="not safe to extract"):
            extract(tmp_path / "root" / "bad.tgz", tmp_path / "root" / "set")
        assert not (tmp_path / "root" / "set").exists()
    assert not list(tmp_path.rglob("escaped.bin"))
    assert not Path("/escaped.bin").exists()


def test_no_link_may_point_outside(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("set/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
        archive.addfile(link)
    with pytest.raises(UserError, match="not safe to extract"):
        extract(tmp_path / "bad.tgz", tmp_path / "set")


def test_a_damaged_or_wrong_archive_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "text.tgz").write_text("hello")
    with pytest.raises(UserError, match="cannot be extracted"):
        extract(tmp_path / "text.tgz", tmp_path / "set")
    (tmp_path / "cut.tgz").write_bytes(GOOD[: len(GOOD) // 2])
    with pytest.raises(UserError, match="cannot be extracted"):
        extract(tmp_path / "cut.tgz", tmp_path / "set")
    (tmp_path / "other.tgz").write_bytes(tar(("other/a.bin", b"a")))
    with pytest.raises(UserError, match="does not hold a folder set"):
        extract(tmp_path / "other.tgz", tmp_path / "set")


def test_a_root_that_is_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert (
        download("cifar10", tmp_path / "cifar-10-batches-bin") == tmp_path / "cifar-10-batches-bin"
    )
    assert download("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
