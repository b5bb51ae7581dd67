"""Serve the files of a folder, with ranges, and with faults on demand."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Web(ThreadingHTTPServer):
    """Serve a folder.

    faults: of a name, the kinds of its next failures: a status, "cut" or "hang".
    gets: how often each file was sent, whole or in part; bytes_sent: of each file.
    """

    daemon_threads = True

    def __init__(self, folder: Path, *, ranges: bool = True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.ranges = ranges
        self.faults: dict[str, list[int | str]] = {}
        self.gets: Counter[str] = Counter()
        self.bytes_sent: Counter[str] = Counter()

    def url(self, name: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, *details: object) -> None:
        """Say nothing about clients that leave early."""


class Handler(BaseHTTPRequestHandler):
    server: Web

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        name = self.path.lstrip("/")
        path = self.server.folder / name
        fault = None
        if with_body and self.server.faults.get(name):
            fault = self.server.faults[name].pop(0)
        if isinstance(fault, int) or not path.is_file():
            self.send_error(fault if isinstance(fault, int) else 404)
            return
        content = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start, stop = 0, len(content)
        if wanted and self.server.ranges:
            start = int(wanted[1])
            stop = min(stop, int(wanted[2]) + 1 if wanted[2] else stop)
        self.send_response(206 if wanted and self.server.ranges else 200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if not with_body:
            return
        if fault == "hang":
            time.sleep(3)
        body = content[start:stop]
        body = body[: len(body) // 2] if fault == "cut" else body
        self.server.gets[name] += 1
        self.server.bytes_sent[name] += len(body)
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving(folder: Path, *, ranges: bool = True) -> Iterator[Web]:
    """Serve a folder while the block runs."""
    web = Web(folder, ranges=ranges)
    thread = threading.Thread(target=web.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield web
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
