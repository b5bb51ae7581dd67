"""Stand in for Hugging Face's hub on this machine: the calls that uploads and downloads make.

with serving() as hub:                 # also tells huggingface_hub its address
    ...
    hub.files("org/name")              # {path: bytes} of the last commit

The owner `org` has the token `hf_write`; `hf_read` may only read.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

READ, WRITE = "hf_read", "hf_write"
OWNER = "org"
TEXT = (".json", ".py", ".md", ".yaml")


class Hub(ThreadingHTTPServer):
    """Keep repositories in memory.

    repositories: by name, their commits, each {path: bytes}. private: the names of private ones.
    requests: "METHOD PATH" of each call. faults: the status of calls whose path has a text in it.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.uploaded: dict[str, bytes] = {}  # large files, by digest
        self.requests: list[str] = []
        self.faults: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, name: str) -> dict[str, bytes]:
        """Return the files of the last commit."""
        return self.repositories[name][-1]

    def commit(self, name: str, revision: str) -> int | None:
        """Return the number of a commit; None if there is no such revision."""
        commits = range(len(self.repositories[name]))
        if revision == "main":
            return commits[-1]
        return next((i for i in commits if sha(name, i) == revision), None)


def sha(name: str, number: int) -> str:
    """Return the name of a commit."""
    return hashlib.sha1(f"{name} {number}".encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {path}")
        for text, status in self.server.faults.items():
            if text in path:
                self._refuse(status, "", "out of order")
                return
        for pattern, call in CALLS:
            if match := re.fullmatch(pattern, path):
                call(self, *match.groups(), body=body)
                return
        self._refuse(404, "", f"the stand-in has no {self.command} {path}")

    # ------------------------------------------------------------------------------- calls

    def _create(self, *, body: bytes) -> None:
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        if not self._may_write(name):
            return
        exists = name in self.server.repositories
        if not exists:
            self.server.repositories[name] = [{}]
            if wanted.get("private") or wanted.get("visibility") == "private":
                self.server.private.add(name)
        self._send({"url": f"{self.server.url}/{name}"}, 409 if exists else 200)

    def _info(self, name: str, *, body: bytes) -> None:
        if not self._may_read(name):
            return
        text = self.server.files(name).get("README.md", b"").decode()
        card = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
        last = sha(name, len(self.server.repositories[name]) - 1)
        private = name in self.server.private
        about = {"id": name, "sha": last, "private": private, "cardData": card, "tags": []}
        self._send(about | {"siblings": [{"rfilename": path} for path in self.server.files(name)]})

    def _tree(self, name: str, *, body: bytes) -> None:
        if self._may_read(name):
            self._send(
                [
                    {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
                    for path, content in self.server.files(name).items()
                ]
            )

    def _preupload(self, name: str, *, body: bytes) -> None:
        if not self._may_write(name):
            return
        now = self.server.files(name)
        files = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith(TEXT) else "lfs",
                "shouldIgnore": False,
                "oid": _oid(now[file["path"]]) if file["path"] in now else None,
            }
            for file in json.loads(body)["files"]
        ]
        self._send({"files": files})

    def _batch(self, name: str, *, body: bytes) -> None:
        if not self._may_write(name):
            return
        objects = [
            item | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{item['oid']}"}}}
            for item in json.loads(body)["objects"]
        ]
        self._send({"objects": objects, "transfer": "basic"})

    def _store(self, digest: str, *, body: bytes) -> None:
        assert hashlib.sha256(body).hexdigest() == digest
        self.server.uploaded[digest] = body
        self._send({})

    def _commit(self, name: str, *, body: bytes) -> None:
        if not self._may_write(name):
            return
        files = dict(self.server.files(name))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.uploaded[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        self.server.repositories[name].append(files)
        last = sha(name, len(self.server.repositories[name]) - 1)
        self._send({"commitUrl": f"{self.server.url}/{name}/commit/{last}", "commitOid": last})

    def _resolve(self, name: str, revision: str, path: str, *, body: bytes) -> None:
        if not self._may_read(name):
            return
        number = self.server.commit(name, revision)
        if number is None:
            self._refuse(404, "RevisionNotFound", "no such revision")
            return
        content = self.server.repositories[name][number].get(path)
        commit = {"X-Repo-Commit": sha(name, number)}
        if content is None:
            self._refuse(404, "EntryNotFound", "no such file", commit)
            return
        self._reply(200, content, commit | {"ETag": f'"{_oid(content)}"'})

    # ------------------------------------------------------------------------------ answers

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _may_read(self, name: str) -> bool:
        known = self._token() in (READ, WRITE)
        if self._token() and not known:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif name not in self.server.repositories or (name in self.server.private and not known):
            self._refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        else:
            return True
        return False

    def _may_write(self, name: str) -> bool:
        if self._token() not in (READ, WRITE):
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif self._token() == READ or not name.startswith(f"{OWNER}/"):
            self._refuse(403, "", "You don't have the rights to create a model there")
        else:
            return True
        return False

    def _send(self, value: object, status: int = 200) -> None:
        self._reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(
        self, status: int, code: str, message: str, more: dict[str, str] | None = None
    ) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message} | (more or {})
        body = json.dumps({"error": message}).encode()
        self._reply(status, body, {name: value for name, value in headers.items() if value})

    def _reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _oid(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


NAME = r"([^/]+/[^/]+)"
CALLS = (
    (r"/api/repos/create", _Handler._create),
    (r"/api/validate-yaml", lambda handler, body: handler._send({})),
    (rf"/api/models/{NAME}(?:/revision/main)?", _Handler._info),
    (rf"/api/models/{NAME}/tree/main", _Handler._tree),
    (rf"/api/models/{NAME}/preupload/main", _Handler._preupload),
    (rf"/api/models/{NAME}/commit/main", _Handler._commit),
    (rf"/{NAME}\.git/info/lfs/objects/batch", _Handler._batch),
    (r"/lfs/(\w+)", _Handler._store),
    (rf"/{NAME}/resolve/([^/]+)/(.+)", _Handler._resolve),
)


@contextmanager
def serving(cache: Path, token: str | None = WRITE) -> Iterator[Hub]:
    """Run a stand-in, and let huggingface_hub of this process use it, with an empty cache."""
    from huggingface_hub import constants

    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # needs a storage of its own
        patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        patch.delenv("HF_TOKEN", raising=False)
        if token is not None:
            patch.setenv("HF_TOKEN", token)
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
            hub.server_close()
