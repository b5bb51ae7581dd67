"""Run commands of smi in forked processes, disturb them, and judge what they leave behind.

Torch takes seconds to import, so it is imported once, and every trial is a fork. A trial works in a
copy of a prepared folder, always at the same path, so that all trials of a case see the same names.
The shim (shim.c) is compiled at the start, and this process starts itself again with it.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib
import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent
WRITE, NAME, SYNC, READ, CREATE = 1, 2, 4, 8, 16  # kinds of calls, as in shim.c
CHANGES = WRITE | NAME | SYNC | CREATE
FIELDS = [  # of the struct in shim.c
    "count", "at", "victim", "error", "sticky",
    "kinds", "clock_step", "clock_calls", "fired", "enabled",
]  # fmt: skip
PAGE_BYTES = 4096
ROOT_BYTES = 1024
ORPHAN_SECONDS = 20.0  # in which all processes of a killed command must end
MAX_SAME_STATE = 2  # repetitions from the same state; later ones count without a repetition
RUN_SECONDS = 300.0  # after which an undisturbed command counts as hung


# --------------------------------------------------------------------------------------- the start


def command_line(doc: str | None) -> argparse.Namespace:
    """Parse the options that all parts share."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="try a few trials of each case")
    parser.add_argument("--seed", type=int, default=0, help="seed of random moments")
    parser.add_argument("--only", nargs="+", default=[], help="run only cases with these words")
    parser.add_argument("--work", type=Path, help="folder of the trials (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="folder of the result (default: results/)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cases")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)
    return parser.parse_args()


def start_with_shim(part: str, doc: str | None) -> argparse.Namespace:
    """Start this script again with the shim loaded, unless it is; return its options."""
    arguments = command_line(doc)
    if "SMI_SHIM" in os.environ:
        return arguments
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(scratch_folder(None)) for _ in range(arguments.jobs)]
        if arguments.jobs == 1:
            sys.exit(_start(folders[0], sys.argv).wait())
        jobs = []
        for number, folder in enumerate(folders):
            share = ["--share", str(number), str(arguments.jobs), "--out", str(folder)]
            jobs.append(_start(folder, [*sys.argv, *share]))
        codes = [job.wait() for job in jobs]
        if not {*codes} <= {0, 1}:
            sys.exit("a job failed; see its message above")
        return _join(part, folders, arguments)


def _join(part: str, folders: Sequence[Path], arguments: argparse.Namespace) -> NoReturn:
    """Put the counts of several jobs together."""
    from record import Record

    record = Record(part, seed=arguments.seed)
    for folder in folders:
        cases = json.loads((folder / f"campaign-{part}.json").read_text())["cases"]
        for name, row in cases.items():
            whole = record.cases.setdefault(name, {"tried": 0, "survived": 0, "lost": []})
            for key in whole:
                whole[key] += row[key]
    finish(record, arguments)


def _start(folder: Path, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the script with the shim."""
    library = folder / "shim.so"
    source = HERE / "shim.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    state = folder / "state"
    state.write_bytes(bytes(PAGE_BYTES))
    search = os.pathsep.join(
        filter(None, (str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH")))
    )
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "SMI_SHIM": str(state),
        "SMI_CAMPAIGN": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": search,
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.Popen([sys.executable, "-P", *words], env=environment)


MODULES = (
    "smi.cli", "smi.comparison.compare", "smi.data.describe", "smi.data.shard_writer",
    "smi.evaluation.evaluate", "smi.inference.embed", "smi.inference.export",
    "smi.reporting.report", "smi.training.pretrain",
)  # fmt: skip


def prepare_process() -> None:
    """Import what all trials need, without starting a thread."""
    import torch

    torch.set_num_threads(1)
    for name in MODULES:
        importlib.import_module(name)
    from smi.views.compiled import find_kernel

    find_kernel()  # compiled once, not in every trial


class Shim:
    """Give orders to the shim in this process and all that it starts."""

    def __init__(self) -> None:
        with open(os.environ["SMI_SHIM"], "r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)

    def set(self, root: Path | str = "", **values: int) -> None:
        """Replace all orders; calls are counted from now on."""
        self._page[: 8 * len(FIELDS)] = bytes(8 * len(FIELDS))
        start = 8 * len(FIELDS)
        self._page[start : start + 2 * ROOT_BYTES] = bytes(2 * ROOT_BYTES)
        path = os.fsencode(os.path.realpath(root)) if root else b""
        self._page[start : start + len(path)] = path
        for name, value in values.items():
            position = 8 * FIELDS.index(name)
            self._page[position : position + 8] = struct.pack("q", value)
        position = 8 * FIELDS.index("enabled")
        self._page[position : position + 8] = struct.pack("q", 1 if values else 0)

    def victim(self, pid: int) -> None:
        """Name the process to kill."""
        position = 8 * FIELDS.index("victim")
        self._page[position : position + 8] = struct.pack("q", pid)

    def get(self, name: str) -> int:
        """Return a number of the shim: count, fired."""
        position = 8 * FIELDS.index(name)
        return int(struct.unpack("q", self._page[position : position + 8])[0])

    @property
    def what(self) -> str:
        """Return the call that was hit, with its path."""
        start = 8 * len(FIELDS) + ROOT_BYTES
        return bytes(self._page[start : start + ROOT_BYTES]).split(b"\0")[0].decode()


# ----------------------------------------------------------------------------------------- the run


@dataclass
class Outcome:
    """Hold how a command ended, and what it printed."""

    code: int  # negative: the signal that killed it
    said: str
    seconds: float
    pids: list[int]
    hung: bool = False

    def trouble(self) -> str:
        """Return what is wrong with a command that was refused or failed by itself."""
        if self.hung:
            return "it hung"
        if "Traceback (most recent call last)" in self.said:
            lines = [line for line in self.said.splitlines() if line.strip()]
            return f"a traceback: {lines[-1][:200]}"
        if self.code not in (0, 2):
            return f"exit code {self.code}: {self.said.strip()[-200:]}"
        if self.code == 2 and not any(line.startswith("smi: ") for line in self.said.splitlines()):
            return f"exit code 2 without a sentence: {self.said.strip()[-200:]}"
        return ""


@dataclass(frozen=True)
class Case:
    """Describe a command to disturb.

    prepare: fills the folder that the command starts in.
    ranks: processes, started as torchrun does.
    before: called in the forked process before the command.
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    ranks: int = 1
    before: Callable[[], None] = lambda: None
    environment: dict[str, str] = field(default_factory=dict)


class Trials:
    """Make trials of one case in one folder."""

    def __init__(self, case: Case, work: Path, shim: Shim):
        self.case = case
        self.shim = shim
        self.folder = work / "trial"
        self._template = work / "template"
        work.mkdir(parents=True, exist_ok=True)
        self._said = work / "said.txt"
        self._modules = work / "modules.txt"
        self._num_judged: Counter[str] = Counter()
        self._template.mkdir()
        (self._template / "tmp").mkdir()
        case.prepare(self._template)
        self.renew()
        ended = self.run()
        if ended.code != 0:
            raise RuntimeError(f"{case.name} fails undisturbed ({ended.code}): {ended.said}")
        self._import_what_it_imported()
        self.renew()
        self.shim.set(self.folder, kinds=CHANGES)
        self.seconds = self.run().seconds
        self.num_calls = self.shim.get("count")
        self.reference = snapshot(self.folder)

    def _import_what_it_imported(self) -> None:
        """Import all modules that the command needed, so that the next trials need not."""
        for name in self._modules.read_text().splitlines():
            if name not in sys.modules and not name.startswith("pyarrow"):  # it starts a thread
                with contextlib.suppress(BaseException), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    importlib.import_module(name)
        num_threads = len(os.listdir("/proc/self/task"))
        # The thread of pyarrow's allocator is prepared for forks.
        expected = 2 if "pyarrow" in sys.modules else 1
        assert num_threads <= expected, f"{num_threads} threads: a fork of them may hang"

    def renew(self) -> None:
        """Start over with a copy of the prepared folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._template, self.folder, symlinks=True)

    def run(
        self,
        *,
        kill_after: float | None = None,
        kill_at: int = 0,
        victim: int = 0,
        limit: float = RUN_SECONDS,
        before: Callable[[], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Outcome:
        """Run the command, and kill a process of it after some seconds or at a call.

        victim: the rank to kill. before: called in the forked process. meanwhile: called in this
        process while the command runs.
        """
        began = time.perf_counter()
        port = _free_port() if self.case.ranks > 1 else 0
        gate_in, gate_out = os.pipe()
        pids = []
        self._said.write_bytes(b"")
        for rank in range(self.case.ranks):
            pid = os.fork()
            if pid == 0:
                os.close(gate_out)
                os.read(gate_in, 1)  # until the shim knows whom to kill
                os.close(gate_in)
                self._be_child(rank, port, before)
            pids.append(pid)
        os.close(gate_in)
        if kill_at:
            self.shim.set(self.folder, kinds=CHANGES, at=kill_at)
            self.shim.victim(pids[victim])
        os.close(gate_out)
        codes: dict[int, int] = {}
        hung = False
        while len(codes) < len(pids):
            spent = time.perf_counter() - began
            if kill_after is not None and spent >= kill_after:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[victim], signal.SIGKILL)
                kill_after = None
            if spent > limit and not hung:
                hung = True
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if meanwhile is not None:
                meanwhile()
            for pid in pids:
                if pid in codes:
                    continue
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            # As torchrun does: if one process fails, the others are ended.
            if any(code != 0 for code in codes.values()):
                for pid in pids:
                    if pid not in codes:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        worst = next((code for code in codes.values() if code != 0), 0)
        said = self._said.read_text(errors="replace")
        return Outcome(worst, said, time.perf_counter() - began, pids, hung)

    def _be_child(self, rank: int, port: int, before: Callable[[], None] | None) -> None:
        """Run the command in this forked process, which ends with it."""
        code = 70
        try:
            os.setsid()
            out = os.open(self._said, os.O_WRONLY | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(out, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self.folder)
            tempfile.tempdir = str(self.folder / "tmp")  # without the trial file of Python
            os.environ["SMI_CACHE"] = str(self.folder / "cache")
            os.environ["TMPDIR"] = str(self.folder / "tmp")
            os.environ |= self.case.environment
            if self.case.ranks > 1:
                os.environ |= {
                    "WORLD_SIZE": str(self.case.ranks),
                    "LOCAL_WORLD_SIZE": str(self.case.ranks),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
            self.case.before()
            if before is not None:
                before()
            code = call_command(self.case.words)
            if rank == 0 and not self._modules.exists():
                self._modules.write_text("\n".join(sys.modules))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # ------------------------------------------------------------------------------- the judgement

    def judge(self, ended: Outcome) -> str:
        """Return what a disturbed command has lost, after it is repeated undisturbed."""
        self.shim.set()
        problems = [
            *orphans(ended.pids),
            *held_locks(self.folder),
            *half_written(self.folder),
        ]
        if problems:
            return "; ".join(problems)
        state = state_key(self.folder)
        if self._num_judged[state] >= MAX_SAME_STATE:  # it was left before, and all was well
            return ""
        again = self.run()
        if again.code != 0:
            return f"repeated, it ends with {again.code}: {again.said.strip()[-300:]}"
        problems += differences(self.reference, snapshot(self.folder))
        self._num_judged[state] += not problems
        return "; ".join(problems)


def call_command(words: Sequence[str]) -> int:
    """Call smi's command line in this process, and return its exit code."""
    import smi.cli

    sys.argv = ["smi", *words]
    try:
        smi.cli.main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    # Threads and finalizers end as they do at the end of Python.
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return 0


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# --------------------------------------------------------------------------------------- judgement

TIMES = {
    "made", "started", "timing", "seconds", "step_ms", "loss_ms", "peak_memory_mb", "loss_share",
    "images_per_second", "waiting", "versions", "date", "minutes", "peak_mb", "memory_mb",
}  # fmt: skip


def snapshot(folder: Path) -> dict[str, str]:
    """Return a digest of every file by its path, without times; of a folder the word folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/")[0] == "input" or "__pycache__" in name:
            continue
        found[name] = "folder" if path.is_dir() else content_digest(path)
    return found


def content_digest(path: Path) -> str:
    """Return the digest of a file without times; raise an error if it is not whole."""
    suffix = path.suffix
    content = path.read_bytes()
    if path.name == "metrics.jsonl":
        lines = map(json.loads, content.splitlines())
        content = json.dumps([_timeless(line) for line in lines]).encode()
    elif suffix == ".json":
        content = json.dumps(_timeless(json.loads(content))).encode()
    elif suffix == ".pt":
        content = _checkpoint_bytes(path)
    elif suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is not a dictionary)
                file.get_tensor(name)
    elif suffix in (".npz", ".parquet", ".tar", ".html"):
        _require_whole(path, suffix)
        if suffix == ".html":
            content = b"a page"  # it shows times
    elif suffix in (".md", ".csv"):
        content = b"a table"  # it shows times
    return hashlib.sha256(content).hexdigest()[:16]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in TIMES}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _checkpoint_bytes(path: Path) -> bytes:
    import torch

    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state.get("journal"), dict):
        state["journal"].pop("position")  # the lengths of lines differ with their times
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {list(value.shape)}".encode())
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                digest.update(repr(key).encode())
                add(item)
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            digest.update(repr(value).encode())

    add(state)
    return digest.digest()


def _require_whole(path: Path, suffix: str) -> None:
    if suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    elif suffix == ".parquet":  # pyarrow would start threads
        content = path.read_bytes()
        assert content[:4] == content[-4:] == b"PAR1"
    elif suffix == ".tar":
        import tarfile

        with tarfile.open(path) as archive:
            archive.getmembers()
    else:
        assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def is_temporary(name: str) -> bool:
    """Return whether a path names something that is not finished, and says so."""
    parts = name.split("/")
    return (
        name.endswith((".partial", ".part", ".lock"))
        or parts[-1] == "metrics.jsonl"
        or any(part.startswith(("partial-", "shards-", ".")) for part in parts)
        or parts[0] in ("tmp", "input")
    )


def state_key(folder: Path) -> str:
    """Return a digest of what a command left: of unfinished files only the names.

    Commands write those anew, whatever is in them.
    """
    parts = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/")[0] == "input":
            continue
        content = ""
        if path.name == "metrics.jsonl":
            whole, _, torn = path.read_bytes().rpartition(b"\n")
            lines = [_timeless(json.loads(line)) for line in whole.splitlines()]
            content = json.dumps([lines, bool(torn)])
        elif path.is_file() and not is_temporary(name):
            content = content_digest(path)
        parts.append(re.sub(r"-[a-z0-9_]{8}(?=\.|/|$)", "-X", name) + content)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def half_written(folder: Path) -> list[str]:
    """Name files that have their final name and cannot be read."""
    problems = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or is_temporary(name):
            continue
        try:
            content_digest(path)
        except Exception as error:
            problems.append(f"{name} is half-written ({type(error).__name__}: {str(error)[:80]})")
    return problems


def held_locks(folder: Path) -> list[str]:
    """Name files whose lock somebody holds."""
    held = []
    for path in folder.rglob("*.lock"):
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(f"{path.relative_to(folder)} is still locked")
    return held


def orphans(sessions: Sequence[int]) -> list[str]:
    """Wait for all processes of a trial, and name those that do not end."""
    end = time.monotonic() + ORPHAN_SECONDS
    while (alive := _members(sessions)) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in alive:  # ours: they belong to the sessions of this trial
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid} is left" for pid in alive]


def _members(sessions: Sequence[int]) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def differences(reference: dict[str, str], found: dict[str, str]) -> list[str]:
    """Name files that an undisturbed run does not leave, or leaves otherwise."""
    return [
        *(f"{name} is missing" for name in reference if name not in found),
        *(f"{name} is left" for name in found if name not in reference),
        *(
            f"{name} differs"
            for name in reference
            if found.get(name, reference[name]) != reference[name]
        ),
    ]


def finish(record: Any, arguments: argparse.Namespace) -> NoReturn:
    """Write the result, unless it is that of a quick form, and say how much was lost."""
    if arguments.out is not None:
        record.write(arguments.out)
    elif not arguments.quick and not arguments.only:
        record.write()
    tried = sum(row["tried"] for row in record.cases.values())
    print(f"{record.part}: {tried:,} tried, {record.lost:,} lost")
    sys.exit(1 if record.lost else 0)


@contextlib.contextmanager
def scratch_folder(parent: Path | None) -> Iterator[Path]:
    """Make a folder for the trials of one case; forked processes must not remove it at their end.

    tempfile.TemporaryDirectory would let them.
    """
    folder = Path(tempfile.mkdtemp(prefix="smi-trials-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shared(cases: Sequence[Any], arguments: argparse.Namespace) -> Sequence[Any]:
    """Return the cases of this job."""
    number, count = arguments.share
    return cases[number::count]
