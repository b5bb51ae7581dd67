"""Let the disk, the clock, workers, compilers and networks fail under commands of smi.

python campaign/faults.py           all cases; --quick tries a few calls of some

A command that meets a fault must either succeed, or end with exit code 2 and one sentence. It must
leave no half-written file, and no process. Repeated without the fault, it must end as one that was
never disturbed.
"""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial import (
    CREATE,
    NAME,
    ORPHAN_SECONDS,
    READ,
    SYNC,
    WRITE,
    Case,
    Shim,
    Trials,
    finish,
    prepare_process,
    scratch_folder,
    shared,
    start_with_shim,
)

NUM_SPREAD = 2  # calls of a case and fault, at even distances with a random start
NUM_DISKS = 3  # sizes of a small disk for each command
# The fault, its error, the calls it hits, and whether it lasts.
DISK_FAULTS = {
    "disk full": (errno.ENOSPC, WRITE | CREATE, True),
    "quota exceeded": (errno.EDQUOT, WRITE | CREATE, True),
    "folder becomes read-only": (errno.EROFS, WRITE | CREATE | NAME, True),
    "permission lost": (errno.EACCES, CREATE | NAME, True),
    "I/O error of one write": (errno.EIO, WRITE | SYNC | NAME | CREATE, False),
    "I/O errors from a write on": (errno.EIO, WRITE | SYNC | NAME | CREATE, True),
    "I/O error of one read": (errno.EIO, READ, False),
}


def fail_calls(trials: Trials, record: Any, draws: random.Random, *, quick: bool) -> None:
    """Let calls fail with each error."""
    for fault, (error, kinds, sticky) in DISK_FAULTS.items():
        trials.renew()
        trials.shim.set(trials.folder, kinds=kinds)
        trials.run()
        count = trials.shim.get("count")
        step = max(1, count // (1 if quick else NUM_SPREAD))
        for number in range(1 + draws.randrange(step), count + 1, step):
            trials.renew()
            trials.shim.set(trials.folder, kinds=kinds, at=number, error=error, sticky=int(sticky))
            ended = trials.run()
            call = trials.shim.what.replace(str(trials.folder), "")
            problems = [ended.trouble(), trials.judge(ended)]
            lost = "; ".join(filter(None, problems))
            record.add(fault, ok=not lost, detail=f"{trials.case.name}, {call}: {lost}")


# --------------------------------------------------------------------------------- a small disk


def fill_disk(trials: Trials, record: Any, draws: random.Random, *, quick: bool) -> None:
    """Run a command on small disks of different sizes, then on a larger one."""
    trials.renew()
    trials.run()
    used = sum(path.stat().st_size for path in trials.folder.rglob("*") if path.is_file())
    sizes = [draws.randrange(used // 4, 2 * used) for _ in range(1 if quick else NUM_DISKS)]
    for size in sizes:
        pid = os.fork()
        if pid == 0:
            os._exit(_on_small_disk(trials, size))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 77:
            print("skipped: this machine allows no mounts", flush=True)
            return
        detail = trials.folder.with_name("lost.txt")
        lost = detail.read_text() if code else ""
        lost = f"{trials.case.name}, {size:,} bytes: {lost}"
        record.add("small tmpfs", ok=code == 0, detail=lost)


def _on_small_disk(trials: Trials, size: int) -> int:
    """Run the command in a folder on a small disk that only this process sees."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        trials.renew()
        content = trials.folder.with_name("content")
        shutil.rmtree(content, ignore_errors=True)
        shutil.copytree(trials.folder, content)
        place = os.fsencode(trials.folder)
        if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None):
            return 77
        options = f"size={size // 4096 * 4096}".encode()
        if libc.mount(b"none", place, b"tmpfs", 0, options):
            return 77
        try:
            shutil.copytree(content, trials.folder, dirs_exist_ok=True)
        except (OSError, shutil.Error):
            return 0  # the inputs alone fill it
        ended = trials.run()
        problem = ended.trouble()
        libc.mount(b"none", place, b"tmpfs", 0x20, b"size=1g")  # MS_REMOUNT
        lost = "; ".join(filter(None, [problem, trials.judge(ended)]))
    except BaseException as error:
        lost = f"the trial failed: {error!r}"
    trials.folder.with_name("lost.txt").write_text(lost)
    return 1 if lost else 0


# --------------------------------------------------------------------------------- single faults

Check = Callable[[Trials], str]  # returns what was lost


def clock_goes_back(trials: Trials) -> str:
    """Let the wall clock go back a second with every question for the time."""
    trials.shim.set(trials.folder, clock_step=10**9)
    ended = trials.run()
    return ended.trouble() or _must_succeed(ended.code, ended.said) or trials.judge(ended)


def two_on_one_folder(trials: Trials) -> str:
    """Start the same command twice at once: one wins or both succeed, nothing breaks."""
    first = os.fork()
    if first == 0:
        log = os.open(trials.folder.with_name("first.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        trials._said = trials.folder.with_name("said-first.txt")
        ended = trials.run()
        os.write(log, ended.trouble().encode())
        os._exit(0 if ended.code in (0, 2) else 1)
    ended = trials.run()
    os.waitpid(first, 0)
    other = trials.folder.with_name("first.txt").read_text()
    return "; ".join(filter(None, [ended.trouble(), other, trials.judge(ended)]))


def image_changes(trials: Trials) -> str:
    """Change a picture while a command reads the folder."""
    return _touch_pictures(trials, lambda path: path.write_bytes(b"no picture any more"))


def image_vanishes(trials: Trials) -> str:
    """Remove a picture while a command reads the folder."""
    return _touch_pictures(trials, lambda path: path.unlink(missing_ok=True))


def _touch_pictures(trials: Trials, touch: Callable[[Path], object]) -> str:
    pictures = sorted(trials.folder.glob("input/pictures/*/*.png"))
    began = time.monotonic()
    done = []

    def meanwhile() -> None:
        if not done and time.monotonic() - began > 0.5 * trials.seconds:
            touch(pictures[3])
            done.append(True)

    ended = trials.run(meanwhile=meanwhile)
    problem = ended.trouble()
    trials.renew()
    return problem or trials.judge(ended)


def cache_truncated(trials: Trials) -> str:
    """Cut the cache of decoded images in half between two commands."""
    return _damage(trials, lambda content: content[: len(content) // 2])


def cache_bit_flipped(trials: Trials) -> str:
    """Flip a bit in every file of the cache, one after another."""
    problems = []
    for name in ("images.u8", "images.npy", "sums.npy", "files.json"):
        trials.renew()
        problems.append(_damage(trials, _flip, name))
    return "; ".join(filter(None, problems))


def _flip(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


def _damage(trials: Trials, damage: Callable[[bytes], bytes], name: str = "images.u8") -> str:
    """Build the cache, damage a file of it, and train again: it is said, rebuilt, and the same."""
    ended = trials.run()
    shutil.rmtree(trials.folder / "run")
    files = sorted(trials.folder.glob(f"cache/images/*/*/{name}"))
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    again = trials.run()
    if again.code != 0:
        return f"{name}: it ends with {again.code}: {again.said[-300:]}"
    said = "" if "is damaged" in again.said else f"{name}: nobody says that the cache is damaged"
    return "; ".join(filter(None, [said if files else f"there is no {name}", trials.judge(ended)]))


def worker_dies(trials: Trials) -> str:
    """Kill the decoding workers while they work."""
    killed: list[int] = []

    def meanwhile() -> None:
        for pid in _workers():
            if len(killed) < 2:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    ended = trials.run(meanwhile=meanwhile)
    return _must_succeed(ended.code, ended.said) or ended.trouble() or trials.judge(ended)


def _workers() -> list[int]:
    """Return decoding workers of this campaign that have begun to work."""
    mine = os.environ["SMI_SHIM"].encode()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", entry, "cmdline").read_bytes()
            if (
                b"smi.data.decoder" in words
                and mine in Path("/proc", entry, "environ").read_bytes()
            ):
                found.append(int(entry))
        except OSError:
            pass
    return found


def worker_out_of_memory(trials: Trials) -> str:
    """Give the decoding workers too little memory for a large picture."""
    from PIL import Image

    place = trials.folder / "input" / "pictures" / "a" / "large.png"
    Image.new("RGB", (9000, 9000)).save(place)

    def limit() -> None:
        import smi.data.decoder_pool as pool

        start = pool.subprocess.Popen

        def limited(*words: Any, **options: Any) -> Any:
            size = 300 * 2**20  # the picture alone needs more
            return start(
                *words,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
                **options,
            )

        pool.subprocess.Popen = limited  # type: ignore[misc,assignment]

    ended = trials.run(before=limit)
    place.unlink()
    if ended.code == 0:
        return f"it succeeds without the picture: {ended.said[-300:]}"
    return ended.trouble() or trials.judge(ended)


def full_shared_memory(trials: Trials) -> str:
    """Decode on demand with a /dev/shm of a few kilobytes, and with one that fills up."""
    problems = []
    for space in (True, False):
        trials.renew()

        def small(space: bool = space) -> None:
            import ctypes

            import smi.data.store

            libc = ctypes.CDLL(None, use_errno=True)
            libc.unshare(0x00020000)
            libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
            libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=4096")
            if space:  # it looks large enough at the start
                smi.data.store._has_space = lambda folder: True

        ended = trials.run(before=small)
        problems.append(ended.trouble() or trials.judge(ended))
        if not space:
            problems.append(_must_succeed(ended.code, ended.said))
    return "; ".join(filter(None, problems))


def no_compiler(trials: Trials) -> str:
    """Have no compiler: views are made by PyTorch, and it is said."""
    return _with_compiler(trials, "there-is-no-such-compiler")


def broken_compiler(trials: Trials) -> str:
    """Have a compiler that fails, one that writes nonsense, and one that hangs."""
    problems = []
    for script in ("exit 1", 'for last; do :; done; echo nonsense > "$last"', "sleep 60"):
        trials.renew()
        path = trials.folder.with_name("compiler.sh")
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit 0\n{script}\n')
        path.chmod(0o755)
        problems.append(_with_compiler(trials, str(path)))
    return "; ".join(filter(None, problems))


def _with_compiler(trials: Trials, compiler: str) -> str:
    def use() -> None:
        from smi.views import compiled
        from smi.views import compiler as used

        compiled.find_kernel.cache_clear()
        used.TIMEOUT_SECONDS = compiled.TIMEOUT_SECONDS = 1
        os.environ["CXX"] = compiler

    ended = trials.run(before=use)
    if "slower on a CPU" not in ended.said:
        return f"nobody says that there is no kernel: {ended.said[-200:]}"
    return ended.trouble() or _must_succeed(ended.code, ended.said)


def nan_in_data(trials: Trials) -> str:
    """Train on an array with NaN: it is refused or trained, never a traceback."""
    import numpy as np

    pixels = np.random.default_rng(0).random((64, 8, 8, 3)).astype(np.float32)
    pixels[5] = np.nan
    np.save(trials.folder / "nan.npy", pixels)
    words = ["pretrain", "digits", "--data", "nan.npy", "--out", "nan", "--batch-size", "16"]
    ended = _run_words(trials, [*words, "--epochs", "1", "--method.widths", "[16,16]"])
    return ended.trouble() or ("" if "nan" in ended.said.lower() else "nobody says NaN")


def stalling_store(trials: Trials) -> str:
    """Read from a server that accepts a connection and never answers."""
    import socket

    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(16)
    url = f"http://127.0.0.1:{server.getsockname()[1]}/a.tar"

    def impatient() -> None:
        import smi.data.remote as remote

        remote.TIMEOUT_SECONDS = 0.3
        remote.FIRST_PAUSE_SECONDS = 0.01

    words = ["embed", "run", "--data", url, "--out", "x.npz"]
    ended = _run_words(trials, words, before=impatient, limit=30.0)
    server.close()
    return ended.trouble() or ("" if ended.code == 2 else f"it ends with {ended.code}")


def _run_words(trials: Trials, words: list[str], **options: Any) -> Any:
    """Run another command in the folder of these trials."""
    import dataclasses

    case = trials.case
    trials.case = dataclasses.replace(case, words=tuple(words))
    try:
        return trials.run(**options)
    finally:
        trials.case = case


def torchrun_is_killed(trials: Trials) -> str:
    """Kill torchrun itself: its processes end, and the run can be resumed."""
    folder = trials.folder
    words = ["pretrain", "digits", "--out", "run", "--epochs", "400", "--batch-size", "16"]
    words += ["--data.images", "64", "--method.widths", "[16,16]", "--device", "cpu"]
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "SMI_SHIM")
    }
    environment |= {"SMI_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    process = subprocess.Popen(
        [*torchrun, "--nproc-per-node=2", "-m", "smi", *words],
        cwd=folder,
        env=environment | {"PYTHONSAFEPATH": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    from trial import held_locks, orphans

    metrics = folder / "run" / "metrics.jsonl"
    end = time.monotonic() + 60
    while not (metrics.is_file() and metrics.stat().st_size) and time.monotonic() < end:
        time.sleep(0.1)
    if process.poll() is not None:
        return f"torchrun ended by itself ({process.returncode})"
    process.kill()
    process.wait()
    left = orphans([process.pid])
    end = time.monotonic() + ORPHAN_SECONDS  # its processes have sessions of their own
    while held_locks(folder) and time.monotonic() < end:
        time.sleep(0.1)
    return "; ".join([*left, *held_locks(folder)])


def main() -> None:
    """Make the trials, print what was lost, and write results/campaign-faults.json."""
    arguments = start_with_shim("faults", __doc__)
    import cases as campaign
    from record import Record

    prepare_process()
    import timm  # noqa: F401  most cases train, each in a fork of this process

    record = Record("faults", seed=arguments.seed)
    shim = Shim()
    by_name = {case.name: case for case in campaign.all_cases()}
    files = by_name["pretrain on files, with a cache"]
    streaming = Case(
        "pretrain on files, decoded on demand",
        (*files.words, "--data.cache_gb", "0"),
        campaign.write_pictures,
    )

    def trials_of(case: Case, function: Callable[[Trials], None]) -> None:
        with scratch_folder(arguments.work) as folder:
            function(Trials(case, Path(folder, "work"), shim))

    def disk(trials: Trials) -> None:
        draws = random.Random(f"{arguments.seed} {trials.case.name}")
        fail_calls(trials, record, draws, quick=arguments.quick)
        fill_disk(trials, record, draws, quick=arguments.quick)

    # The other methods write the same files as SMI.
    others = {f"pretrain, {name}" for name in campaign.METHODS} - {"pretrain, SMI"}
    names = [name for name, case in by_name.items() if case.ranks == 1 and name not in others]
    if arguments.quick and not arguments.only:
        names = ["embed to .npz"]
    names = [name for name in names if not arguments.only or _has(name, arguments.only)]
    singles: list[tuple[str, Case, Check]] = [
        ("clock goes back", by_name["pretrain, SMI"], clock_goes_back),
        ("two processes on one folder: pretrain", by_name["pretrain, SMI"], two_on_one_folder),
        ("two processes on one folder: embed", by_name["embed to .npz"], two_on_one_folder),
        ("two processes on one folder: shard", by_name["shard"], two_on_one_folder),
        ("two processes on one folder: export", by_name["export to timm"], two_on_one_folder),
        ("two processes on one folder: download", by_name["download"], two_on_one_folder),
        ("two processes on one folder: cache", files, two_on_one_folder),
        ("a file changes while training", streaming, image_changes),
        ("a file vanishes while training", streaming, image_vanishes),
        ("a file changes while it is cached", files, image_changes),
        ("a file vanishes while it is cached", files, image_vanishes),
        ("cache truncated", files, cache_truncated),
        ("cache with flipped bits", files, cache_bit_flipped),
        ("a worker dies: cache", files, worker_dies),
        ("a worker dies: decoded on demand", streaming, worker_dies),
        ("out of memory in a worker", files, worker_out_of_memory),
        ("full /dev/shm", streaming, full_shared_memory),
        ("no compiler", by_name["pretrain, SMI"], no_compiler),
        ("broken compiler", by_name["pretrain, SMI"], broken_compiler),
        ("NaN in data", by_name["pretrain, SMI"], nan_in_data),
        ("a network store that stalls", by_name["evaluate"], stalling_store),
        ("torchrun is killed", by_name["pretrain, SMI"], torchrun_is_killed),
    ]
    if arguments.quick and not arguments.only:
        singles = [single for single in singles if single[0].startswith(("cache", "two"))][-2:]
    singles = [one for one in singles if not arguments.only or _has(one[0], arguments.only)]
    for name, case, check in shared(singles, arguments):

        def single(trials: Trials, name: str = name, check: Check = check) -> None:
            trials.renew()
            lost = check(trials)
            record.add(name, ok=not lost, detail=lost)

        trials_of(case, single)
        print(f"{name}: tried", flush=True)
    for name in shared(names, arguments):
        trials_of(by_name[name], disk)
        print(f"{name}: tried", flush=True)
    finish(record, arguments)


def _has(name: str, words: list[str]) -> bool:
    return any(word in name for word in words)


def _must_succeed(code: int, said: str) -> str:
    return "" if code == 0 else f"it ends with {code}: {said.strip()[-300:]}"


if __name__ == "__main__":
    main()
