"""Try an action in a process of its own, with little memory and time, and judge how it ended.

outcome = attempt(lambda: smi.load(path), folder)
outcome.ok, outcome.text          an action survives if it works, or is refused by one sentence
"""

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from smi.errors import TrainingError, UserError

MAX_SECONDS = 30  # of the processor, for each action
MAX_WAIT_SECONDS = 300  # on a busy machine
MAX_MEGABYTES = 1500  # beside those of this process
MAX_SENTENCE = 600  # characters

Action = tuple[str, Callable[[], object]]


@dataclass(frozen=True)
class Outcome:
    """Say whether an action survived, and how it ended."""

    name: str
    ok: bool
    text: str


def attempt(actions: Iterable[Action], *, marker: Path | None = None) -> list[Outcome]:
    """Run actions one after another in one forked process; the last may have killed it.

    marker: a file that code of a hostile file would write.
    """
    actions = list(actions)
    reading, writing = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run(actions, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode(errors="replace").splitlines()
    _, status, usage = os.wait4(child, 0)
    outcomes = [Outcome(*json.loads(line)) for line in lines]
    if len(outcomes) < len(actions):
        name = actions[len(outcomes)][0]
        code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start
        outcomes.append(Outcome(name, False, f"ended with {code} after {seconds:.0f} s"))
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (usage.ru_maxrss - own) / 1024
    if grown > MAX_MEGABYTES:
        outcomes.append(Outcome("memory", False, f"{grown:.0f} MB"))
    if marker is not None and marker.exists():
        marker.unlink()
        outcomes.append(Outcome("marker", False, "code of a file was run"))
    return outcomes


def _run(actions: list[Action], pipe: int) -> None:
    """Run actions, write a line for each, and leave the process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    limit = _virtual_bytes() + 4 * 10**9  # threads and maps reserve more than they use
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for name, action in actions:
        signal.alarm(MAX_WAIT_SECONDS)
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        ok, text = judge(action)
        os.write(pipe, (json.dumps([name, ok, text[:2000]]) + "\n").encode())
    os._exit(0)


def judge(action: Callable[[], object]) -> tuple[bool, str]:
    """Run an action; it survives if it works, or ends with one sentence for the user."""
    try:
        action()
    except (UserError, TrainingError) as error:
        fault = fault_of(str(error))
        return not fault, fault or f"refused: {error}"
    except SystemExit as error:
        return error.code in (0, 2), f"exit {error.code}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/smi/" in f.filename]
        place = ours[-1] if ours else last
        where = f"{Path(place.filename).name}:{place.lineno}"
        return False, f"{type(error).__name__}: {str(error)[:200]} ({where})"
    return True, "worked"


def fault_of(sentence: str) -> str:
    """Return what is wrong with a sentence for the user; nothing if it is good."""
    if len(sentence) > MAX_SENTENCE:
        return f"a sentence of {len(sentence)} characters: {sentence[:100]}"
    if not sentence.isprintable():
        return f"a sentence that cannot be printed: {sentence[:100]!r}"
    if not sentence.strip():
        return "an empty sentence"
    if "weights_only" in sentence:
        return f"a sentence that advises to run code: {sentence[:100]}"
    return ""


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    return pages * os.sysconf("SC_PAGE_SIZE")
