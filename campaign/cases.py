"""Describe the commands that the campaign disturbs, each with a folder of small inputs."""

import functools
import hashlib
import http.server
import os
import shutil
import tarfile
import tempfile
import threading
from pathlib import Path

import numpy as np
from PIL import Image
from trial import Case, call_command

NETWORK = ("--encoder.channels", "[8,8,8,8]", "--encoder.stem_width", "4")
# Eight steps on 64 digits, with two checkpoints and two probes.
SHORT = (
    *NETWORK,
    "--data.images", "64", "--batch-size", "16", "--epochs", "2", "--log.every", "2",
    "--log.keep_every", "1", "--log.probe_images", "64", "--num-workers", "1", "--device", "cpu",
)  # fmt: skip
METHODS: dict[str, tuple[str, ...]] = {
    "SMI": ("--method.widths", "[16,16]"),
    "MoCo": ("--method.widths", "[16]", "--method.queue_size", "64"),
    "DINO": ("--method.widths", "[16,16]", "--method.num_outputs", "32"),
    "SwAV": ("--method.widths", "[16,16]", "--method.queue_size", "32",
             "--method.queue_from_epoch", "1"),
    "PIRL": ("--method.dim", "16", "--method.num_negatives", "32"),
}  # fmt: skip
NUM_PICTURES = 24
FILE_WORDS = (
    *NETWORK,
    "--data", "input/pictures", "--batch-size", "8", "--epochs", "1", "--log.every", "2",
    "--num-workers", "1", "--device", "cpu", "--data.resolution", "16", "--views.size", "16",
    "--method.widths", "[16,16]", "--log.probe_images", "16",
)  # fmt: skip


def write_pictures(folder: Path) -> None:
    """Write pictures of two classes and different shapes, and one file that is not a picture."""
    numbers = np.random.default_rng(0)
    for i in range(NUM_PICTURES):
        place = folder / "input" / "pictures" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = numbers.integers(0, 256, (16 + i % 5, 18, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{i:02d}.png")


@functools.cache
def _made_run() -> Path:
    """Pretrain one run that other commands read, in a process of its own."""
    folder = Path(os.environ["SMI_CAMPAIGN"], "made")
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.chdir(folder)
            os.environ["SMI_CACHE"] = str(folder / "cache")
            out = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(out, 1)
            os.dup2(out, 2)
            words = ("pretrain", "digits", "--out", "run", *SHORT, *METHODS["SMI"])
            code = call_command(words)
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, (folder / "said.txt").read_text()
    return folder / "run"


def copy_run(folder: Path) -> None:
    """Copy a finished run."""
    shutil.copytree(_made_run(), folder / "run")


def copy_run_and_write_pictures(folder: Path) -> None:
    """Copy a finished run, and write pictures."""
    copy_run(folder)
    write_pictures(folder)


def copy_exported_run(folder: Path) -> None:
    """Copy a finished run that was exported before."""
    copy_run(folder)
    old = folder / "run" / "export" / "safetensors"
    (old / "eval").mkdir(parents=True)
    (old / "preprocessing.json").write_text("{}\n")
    (old / "eval" / "old.json").write_text("{}\n")


# ---------------------------------------------------------------------------------------- download


@functools.cache
def _server() -> tuple[str, str]:
    """Serve an archive of pictures on this machine; return its URL and MD5."""
    folder = Path(tempfile.mkdtemp(prefix="served-", dir=os.environ["SMI_CAMPAIGN"]))
    write_pictures(folder)
    with tarfile.open(folder / "small.tar", "w") as archive:
        archive.add(folder / "input" / "pictures", "small/train")
        archive.add(folder / "input" / "pictures", "small/val")
    md5 = hashlib.md5((folder / "small.tar").read_bytes()).hexdigest()
    handler = functools.partial(RangeHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    pid = os.fork()
    if pid == 0:
        parent = os.getppid()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:  # until the campaign ends
            threading.Event().wait(0.5)
        os._exit(0)
    server.socket.close()
    return f"http://127.0.0.1:{server.server_port}/small.tar", md5


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files, and parts of them."""

    def do_GET(self) -> None:
        """Send a file from the byte on that is asked for."""
        content = Path(self.directory, self.path.lstrip("/")).read_bytes()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def start_server(folder: Path) -> None:
    """Start the server in this process, so that all trials find it."""
    _server()


def serve_imagenette() -> None:
    """Let the name imagenette stand for the small archive, in this process."""
    import smi.data.download
    from smi.data.sources import ARCHIVES, Archive

    url, md5 = _server()
    ARCHIVES["imagenette"] = Archive(url, md5, "small")
    smi.data.download.BLOCK_BYTES = 4096


# ------------------------------------------------------------------------------------------- cases


def pretrain(method: str, ranks: int = 1) -> Case:
    """Pretrain with a method on digits."""
    words = ("pretrain", "digits", "--method", method, "--out", "run", *SHORT, *METHODS[method])
    processes = ", two processes" if ranks == 2 else ""
    return Case(f"pretrain, {method}{processes}", words, ranks=ranks)


def all_cases() -> list[Case]:
    """Return all commands to disturb."""
    protocols = ("--protocol", "knn", "linear-cached")
    embed = ("embed", "run", "--data", "input/pictures", "--num-workers", "1", "--out")
    return [
        *map(pretrain, METHODS),
        pretrain("SMI", ranks=2),
        pretrain("MoCo", ranks=2),
        Case(
            "pretrain on files, with a cache",
            ("pretrain", "digits", "--out", "run", *FILE_WORDS),
            write_pictures,
        ),
        Case(
            "evaluate",
            ("evaluate", "run", *protocols, "--images", "64", "--device", "cpu"),
            copy_run,
        ),
        Case(
            "embed to .npz",
            (*embed, "x.npz"),
            copy_run_and_write_pictures,
        ),
        Case(
            "embed to .parquet",
            (*embed, "x.parquet"),
            copy_run_and_write_pictures,
        ),
        Case(
            "shard",
            ("shard", "input/pictures", "--out", "shards", "--size", "8KB"),
            write_pictures,
        ),
        Case(
            "export over an older export",
            ("export", "run", "--to", "safetensors"),
            copy_exported_run,
        ),
        Case("export to timm", ("export", "run", "--to", "timm"), copy_run),
        Case(
            "download",
            ("data", "imagenette", "--root", "data"),
            start_server,
            before=serve_imagenette,
        ),
        Case("report", ("report", "run", "--out", "page.html"), copy_run),
    ]


def compare_case() -> Case:
    """Compare two methods; each run is a process that imports torch, which takes seconds."""
    words = (
        "compare", "digits", "--methods", "SMI", "MoCo", "--seeds", "1", "--out", "compared",
        "--protocol", "knn", "--images", "64", *SHORT,
        "--methods.SMI.widths", "[16,16]", "--methods.MoCo.queue_size", "64",
    )  # fmt: skip
    return Case("compare", words)


def selected(cases: list[Case], words: list[str]) -> list[Case]:
    """Return the cases whose name has one of the words; all if there are none."""
    return [case for case in cases if not words or any(word in case.name for word in words)]
