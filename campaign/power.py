"""Cut the power at every sync of a command: drop what is not synced, then repeat the command.

python campaign/power.py            all cases; --quick tries two of them

A file system may keep less or more than what was synced, so there are two models of a lost machine:

strict      a file has the content of its last sync, a folder the names of its last sync
names kept  a file has the content of its last sync, a folder all its names: those of files that
            were never synced name empty files, as after a power loss on many file systems

Both are tried at every sync and after the end. What is left must hold no half-written file, and the
repeated command must end as one that was never disturbed. After its own sync, a file that was
written must be there (work is not lost); after the end of a command, all its output.
"""

import atexit
import os
import pickle
import random
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trial import (
    Case,
    Outcome,
    Shim,
    Trials,
    finish,
    half_written,
    is_temporary,
    prepare_process,
    scratch_folder,
    shared,
    snapshot,
    start_with_shim,
)

Names = dict[str, tuple[int, bool]]  # of a folder: inode, and whether it is a folder


@dataclass
class Disk:
    """Hold what a disk surely has: contents of files and names of folders, by inode."""

    root: int
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, Names] = field(default_factory=dict)

    def write(self, folder: Path, names: dict[int, Names]) -> None:
        """Write the files to a folder, with the names of `names`."""
        self._write(folder, self.root, names)

    def _write(self, folder: Path, inode: int, names: dict[int, Names]) -> None:
        folder.mkdir(exist_ok=True)
        for name, (child, is_folder) in names.get(inode, {}).items():
            if is_folder:
                self._write(folder / name, child, names)
            else:
                (folder / name).write_bytes(self.contents.get(child, b""))

    def reaches(self, inode: int) -> bool:
        """Return whether a folder can be found from the root."""
        waiting = [self.root]
        while waiting:
            found = waiting.pop()
            if found == inode:
                return True
            below = self.names.get(found, {}).values()
            waiting += [child for child, is_folder in below if is_folder]
        return False


@dataclass
class Moment:
    """Hold the state of the disk at a sync, before it, and the names that the system shows."""

    disk: Disk
    names: dict[int, Names]
    what: str
    lost: list[str] = field(default_factory=list)  # promises that were broken before


class Recorder:
    """Follow the syncs of this process in a folder."""

    def __init__(self, folder: Path, out: Path):
        self._folder = folder
        self._out = out
        self._held: dict[int, int] = {}  # open files, so that no inode is used again
        self._fsync = os.fsync
        self._sync = os.sync
        self._disk = Disk(os.stat(folder).st_ino)
        self._lost: list[str] = []
        self._moments: list[Moment] = []
        self._keep_all()

    def install(self) -> None:
        """Replace the functions that sync."""
        os.fsync = self.fsync  # type: ignore[assignment]
        os.fdatasync = self.fsync  # type: ignore[assignment]
        os.sync = self.sync
        atexit.register(self.finish)

    def fsync(self, fd: int) -> None:
        """Sync one file or folder."""
        if not isinstance(fd, int):
            fd = fd.fileno()
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not path.startswith(f"{self._folder}"):
            self._fsync(fd)
            return
        self._note(path)
        found = os.fstat(fd)
        self._hold(found.st_ino, f"/proc/self/fd/{fd}")
        if stat.S_ISDIR(found.st_mode):
            self._disk.names[found.st_ino] = _names(Path(path))
            self._require_kept(Path(path), found.st_ino)
        else:
            self._disk.contents[found.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync(self) -> None:
        """Sync everything."""
        self._note("everything")
        self._keep_all()

    def finish(self) -> None:
        """Write all moments to a file."""
        self._note("the end")
        self._out.write_bytes(pickle.dumps(self._moments))

    def _keep_all(self) -> None:
        for path in [self._folder, *self._folder.rglob("*")]:
            found = os.stat(path)
            self._hold(found.st_ino, str(path))
            if path.is_dir():
                self._disk.names[found.st_ino] = _names(path)
            elif path.name != "said.txt":
                self._disk.contents[found.st_ino] = path.read_bytes()

    def _hold(self, inode: int, path: str) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def _note(self, what: str) -> None:
        shown = {}
        for path in [self._folder, *self._folder.rglob("*")]:
            if path.is_dir():
                shown[os.stat(path).st_ino] = _names(path)
        disk = Disk(self._disk.root, dict(self._disk.contents), dict(self._disk.names))
        what = what.removeprefix(str(self._folder))
        self._moments.append(Moment(disk, shown, what, self._lost))
        self._lost = []

    def _require_kept(self, folder: Path, inode: int) -> None:
        """Note files with final names that this sync should have made safe, and did not."""
        for name, (child, is_folder) in self._disk.names[inode].items():
            path = folder / name
            relative = str(path.relative_to(self._folder))
            if is_folder or is_temporary(relative):
                continue
            if not self._disk.reaches(inode):
                self._lost.append(f"{relative}: its folder is not synced")
            elif self._disk.contents.get(child) != path.read_bytes():
                self._lost.append(f"{relative}: its content is not synced")


def _names(folder: Path) -> Names:
    return {
        entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False))
        for entry in os.scandir(folder)
    }


def try_case(case: Case, work: Path, shim: Shim, record: Any, draws: Any, *, quick: bool) -> None:
    """Record the syncs of one command, and try all states that a power loss could leave."""
    trials = Trials(case, work, shim)
    shim.set()
    trials.renew()
    out = work / "moments"

    def record_syncs() -> None:
        Recorder(trials.folder, out).install()

    ended = trials.run(before=record_syncs)
    assert ended.code == 0, ended.said
    moments: list[Moment] = pickle.loads(out.read_bytes())
    for number, moment in enumerate(moments):
        record.add(
            f"{case.name}: files stay after their sync",
            ok=not moment.lost,
            detail=f"before sync {number} ({moment.what}): {'; '.join(moment.lost)}",
        )
    chosen = range(len(moments))
    if quick:
        chosen = sorted(draws.sample(chosen, min(4, len(moments))))
    for number in chosen:
        moment = moments[number]
        is_end = number == len(moments) - 1
        for model, names in (("strict", moment.disk.names), ("names kept", moment.names)):
            _rebuild(trials, moment.disk, names)
            lost = [*half_written(trials.folder)]
            if is_end:
                lost += _missing_output(trials)
            rest = trials.judge(Outcome(0, "", 0.0, []))
            lost += [rest] if rest else []
            detail = f"at sync {number} ({moment.what}): {'; '.join(lost)}"
            record.add(f"{case.name}: {model}", ok=not lost, detail=detail)


def _rebuild(trials: Trials, disk: Disk, names: dict[int, Names]) -> None:
    """Make the trial's folder as the disk has it; inputs are older, and whole."""
    trials.renew()
    kept = trials.folder.with_name("kept")
    shutil.rmtree(kept, ignore_errors=True)
    trials.folder.rename(kept)
    disk.write(trials.folder, names)
    (trials.folder / "tmp").mkdir(exist_ok=True)
    if (kept / "input").exists():
        shutil.rmtree(trials.folder / "input", ignore_errors=True)
        (kept / "input").rename(trials.folder / "input")
    shutil.rmtree(kept)


def _missing_output(trials: Trials) -> list[str]:
    """Name output of a finished command that a power loss takes away."""
    try:
        found = snapshot(trials.folder)
    except Exception:
        return []  # named as half-written
    return [
        f"{name} was written, and is lost"
        for name, digest in trials.reference.items()
        if found.get(name) != digest
        and name.split("/")[0] not in ("cache", "tmp")
        and not is_temporary(name)
    ]


def main() -> None:
    """Make the trials, print what was lost, and write results/campaign-power.json."""
    arguments = start_with_shim("power", __doc__)
    from cases import all_cases, selected
    from record import Record

    prepare_process()
    cases = [case for case in all_cases() if case.ranks == 1]
    if arguments.quick and not arguments.only:
        cases = selected(cases, ["SMI", "shard"])
    record = Record("power", seed=arguments.seed)
    shim = Shim()
    for case in shared(selected(cases, arguments.only), arguments):
        draws = random.Random(f"{arguments.seed} {case.name}")
        with scratch_folder(arguments.work) as folder:
            try_case(case, Path(folder, "work"), shim, record, draws, quick=arguments.quick)
    finish(record, arguments)


if __name__ == "__main__":
    main()
