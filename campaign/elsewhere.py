"""Run the short path as on macOS and Windows: names that only Linux has are taken away.

    python campaign/elsewhere.py             all systems
    python campaign/elsewhere.py --quick     Windows only, which lacks the most

A folder on PYTHONPATH holds a sitecustomize.py, so every process (also each worker) loses the names
before it imports anything of smi. The modules fcntl and resource are lost for all, names of os and
signal for the code of smi: other libraries are built for Linux here. So this does not replace a run
on the system itself.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

SYSTEMS = ("Windows", "macOS")
VARIABLE = "SMI_CAMPAIGN_SYSTEM"
NOT_ON_MACOS = (
    "fdatasync",
    "memfd_create",
    "posix_fadvise",
    "posix_fallocate",
    "sched_getaffinity",
    "sched_setaffinity",
    "preadv",  # since macOS 11
    "pwritev",
)
NOT_ON_WINDOWS = (
    *NOT_ON_MACOS,
    "chown",
    "fork",
    "forkpty",
    "getegid",
    "geteuid",
    "getgid",
    "getloadavg",
    "getpgid",
    "getuid",
    "killpg",
    "lchown",
    "link",  # not on all of its file systems
    "mkfifo",
    "mknod",
    "nice",
    "pread",
    "pwrite",
    "sendfile",
    "setsid",
    "statvfs",
    "sysconf",
    "uname",
)
SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGALRM", "SIGSTOP", "SIGCONT")
MODULES = ("fcntl", "resource")


# ------ in every process, before smi is imported


def take_away(system: str) -> None:
    """Remove from this process what the system does not have."""
    if system == "macOS":
        names, signals, modules = NOT_ON_MACOS, (), ()
    else:
        names, signals, modules = NOT_ON_WINDOWS, SIGNALS, MODULES
    _hide_linux_files()
    for module in modules:
        sys.modules[module] = None  # an import fails
    if modules:
        _refuse_inherited_files()
        _refuse_open_folders()
        import warnings

        # On Windows filelock has locks of the system.
        warnings.filterwarnings("ignore", "only soft file lock is available")
    import signal

    _remove(os, names)
    _remove(signal, signals)


def _remove(module: ModuleType, names: tuple[str, ...]) -> None:
    """Remove names of a module, for smi and for the code of trials.

    The rest of the standard library and torch have ways of their own on each system. Their builds
    for Linux, which run here, keep what they need.
    """
    removed = {name: module.__dict__.pop(name) for name in names if name in module.__dict__}

    def ask(name: str) -> object:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if name in removed and caller.partition(".")[0] not in ("smi", "__main__"):
            return removed[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = ask


def _hide_linux_files() -> None:
    """Let /proc and /dev/shm seem to be missing."""
    import builtins
    import io

    plain_open, plain_isdir = builtins.open, os.path.isdir

    def is_hidden(path: object) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(("/proc", "/dev/shm"))

    def checked(path, *arguments, **options):
        if is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return plain_open(path, *arguments, **options)

    builtins.open = io.open = checked
    os.path.isdir = lambda path: not is_hidden(path) and plain_isdir(path)


def _refuse_inherited_files() -> None:
    """Let no process inherit a file, as on Windows."""

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            assert not options.get("pass_fds"), "pass_fds not supported on Windows."
            super().__init__(*arguments, **options)

    subprocess.Popen = Popen


def _refuse_open_folders() -> None:
    """Let no folder be opened to flush it, as on Windows."""
    plain_open = os.open

    def checked(path, flags, *arguments, **options):
        # Removing folders needs it on Linux, relative to other folders.
        if not options.get("dir_fd") and not flags & os.O_DIRECTORY and os.path.isdir(path):
            if sys._getframe(1).f_code.co_filename.endswith(("shutil.py", "os.py")):
                return plain_open(path, flags, *arguments, **options)
            raise PermissionError(13, "Permission denied", str(path))
        return plain_open(path, flags, *arguments, **options)

    os.open = checked
    os.supports_dir_fd.add(checked)


# ------ trials


class Elsewhere:
    """Start processes as on a system.

    resident: run everything in one process, which imports torch once, until it is closed.
    """

    def __init__(self, system: str, scratch: Path, *, resident: bool = False):
        self.system = system
        self.scratch = scratch
        self._resident = resident
        self._process: subprocess.Popen[str] | None = None
        site = scratch / "site"
        site.mkdir(parents=True, exist_ok=True)
        (site / "sitecustomize.py").write_text(
            f"import os, sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
            f"if os.environ.get({VARIABLE!r}):\n"
            f"    import elsewhere\n    elsewhere.take_away(os.environ[{VARIABLE!r}])\n"
        )
        paths = [str(site), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            "SMI_CACHE": str(scratch / "cache"),
            "CXX": "no-compiler",  # Windows rarely has one
            VARIABLE: system,
        }

    def smi(self, *words: object) -> str:
        """Run a command of smi; return what it printed."""
        return self.python("from smi.cli import main; main()", *words)

    def python(self, code: str, *words: object) -> str:
        """Run Python code in which smi behaves as on Windows where it asks for the system."""
        flag = "" if self.system in ("", "macOS") else "import smi.files; smi.files.WINDOWS = True"
        run = self._ask if self._resident else self._run
        return run("-c", f"{flag}\n{code}", *map(str, words))

    def close(self) -> None:
        """End the resident process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _ask(self, *words: str) -> str:
        """Run code in the resident process."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        said = []
        for line in process.stdout:
            if line.startswith(ANSWER):
                if error := json.loads(line.removeprefix(ANSWER)):
                    raise RuntimeError(error)
                return "".join(said)
            said.append(line)
        raise RuntimeError(f"exit code {process.wait()}: {''.join(said[-12:])}")

    def _run(self, *words: str) -> str:
        ran = subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if ran.returncode != 0:
            last = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[-12:])
            raise RuntimeError(f"exit code {ran.returncode}: {last}")
        return ran.stdout


ANSWER = "answer of a resident process: "
SERVE = f"""
import json, sys, traceback
for line in sys.stdin:
    _, code, *words = json.loads(line)
    sys.argv = ["-c", *words]
    error = ""
    try:
        exec(code, {{"__name__": "__main__"}})
    except SystemExit as end:
        error = f"exit code {{end.code}}" if end.code else ""
    except BaseException:
        error = traceback.format_exc()
    print(flush=True)
    print({ANSWER!r} + json.dumps(error), flush=True)
"""
IMPORTS = """
import importlib, pkgutil, smi
for module in pkgutil.walk_packages(smi.__path__, "smi."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
PRETRAIN = """
import sys, smi
smi.pretrain("digits", out=sys.argv[1], overrides={
    "epochs": 1, "batch_size": 256, "method.widths": [16, 16], "log.probe_images": 200,
    "log.keep_every": 1.0, "encoder.channels": [8, 8, 8, 8],
})
"""
RESUME = """
import os, signal, sys, smi
from smi.training import journal
record, count = journal.Journal.record, 0
def stop(self, done, *words, **options):
    record(self, done, *words, **options)
    if done == 3:
        signal.raise_signal(signal.SIGTERM)
journal.Journal.record = stop
overrides = {"epochs": 1, "batch_size": 256, "method.widths": [16, 16],
             "log.probe_images": 200, "log.keep_every": 1.0, "encoder.channels": [8, 8, 8, 8]}
try:
    smi.pretrain("digits", out=sys.argv[1], overrides=overrides)
    sys.exit("it did not stop")
except KeyboardInterrupt:
    pass
journal.Journal.record = record
smi.pretrain("digits", out=sys.argv[1], overrides=overrides)
"""
LOCKS = """
import subprocess, sys
from pathlib import Path
from smi.files import lock_or_fail
TRY = '''
import sys
from pathlib import Path
from smi.errors import UserError
from smi.files import lock_or_fail
try:
    with lock_or_fail(Path(sys.argv[1]), "it is taken"):
        print("free")
except UserError as error:
    print(error)
'''
def ask():
    command = [sys.executable, "-c", TRY, sys.argv[1]]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
with lock_or_fail(Path(sys.argv[1]), "it is taken"):
    assert ask() == "it is taken"
assert ask() == "free"
"""
IMAGES = """
import sys
import numpy as np
from pathlib import Path
from PIL import Image
folder = Path(sys.argv[1])
draw = np.random.default_rng(0)
for i in range(40):
    (folder / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
    pixels = draw.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"class{i % 2}" / f"{i}.png")
"""
STORES = """
import sys, torch
from smi.data import load
images = {}
for name, most in (("cached", 10**9), ("streamed", 0)):
    store = load(sys.argv[1], "pretrain", resolution=16, num_workers=2, max_cache_bytes=most)
    pictures, _ = store.start(torch.arange(len(store)))()
    images[name] = pictures.pixels
    images[name + " squares"] = store[:]
    store.close()
assert torch.equal(images["cached"], images["streamed"])
assert torch.equal(images["cached squares"], images["streamed squares"])
"""
SHARDS = """
import io, sys, torch
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from smi.data.ring import Ring
from smi.data.shard_index import read_index
folder = Path(sys.argv[1])
folder.mkdir(parents=True)
def png(i):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), i, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()
table = pa.table({"image": [{"bytes": png(i), "path": None} for i in range(3)]})
pq.write_table(table, folder / "a.parquet")
shards = read_index([str(folder / "a.parquet")])
first, second = (Ring(shards, folder / "ring" / "a") for _ in range(2))
opened = first.get(0)
second.get(0)
second.close()
assert opened.path.read_bytes()[: opened.size[0]] == png(0)
first.close()
assert not opened.path.exists() and not (folder / "ring" / "a").exists()
"""


def trials(place: Elsewhere, reference: str) -> dict[str, Callable[[], object]]:
    """Return what is tried on a system: each raises an error if it does not work."""
    scratch = place.scratch
    run = scratch / "run"

    def pretrain() -> None:
        place.python(PRETRAIN, run)
        if digest(run) != reference:
            raise RuntimeError("the weights are not those of this system")

    def resume() -> None:
        place.python(RESUME, scratch / "resumed")
        if digest(scratch / "resumed") != reference:
            raise RuntimeError("the weights of a resumed run are not those of this system")

    def embed() -> None:
        place.python(IMAGES, scratch / "images")
        place.smi("embed", run, "--data", scratch / "images", "--out", scratch / "features.npz")

    return {
        "import every module": lambda: place.python(IMPORTS),
        "pretrain": pretrain,
        "stop by a signal and resume": resume,
        "evaluate": lambda: place.smi("evaluate", run, "--protocol", "knn"),
        "embed a folder": embed,
        "images from a cache and from files": lambda: place.python(STORES, scratch / "images"),
        "shards": lambda: place.python(SHARDS, scratch / "shards"),
        "a lock": lambda: place.python(LOCKS, scratch / ".lock"),
        "doctor": lambda: place.smi("doctor", run),
    }


def digest(run: Path) -> str:
    """Return the SHA-256 of the trained encoder."""
    return hashlib.sha256((run / "encoder.safetensors").read_bytes()).hexdigest()


def make_reference(scratch: Path) -> str:
    """Return the digest of the run with nothing taken away."""
    place = Elsewhere("", scratch / "here")
    place.python(PRETRAIN, scratch / "here" / "run")
    return digest(scratch / "here" / "run")


def main() -> None:
    """Run all trials and write results/campaign-elsewhere.json."""
    from record import RESULTS, Record

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="named in the result; nothing is drawn")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    record = Record("elsewhere", seed=arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        reference = make_reference(Path(folder))
        for system in SYSTEMS[:1] if arguments.quick else SYSTEMS:
            place = Elsewhere(system, Path(folder) / system.replace(" ", "-"))
            for name, trial in trials(place, reference).items():
                try:
                    trial()
                except RuntimeError as error:
                    record.add(f"as on {system}: {name}", ok=False, detail=str(error))
                else:
                    record.add(f"as on {system}: {name}", ok=True)
                print(f"{system}: {name}", flush=True)
    print(record.write(arguments.out))
    sys.exit(record.lost > 0)


if __name__ == "__main__":
    main()
