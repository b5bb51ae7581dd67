"""Stop a run behind a checkpoint when it is told to."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smi.distributed import rank
from smi.training.journal import Journal


@contextmanager
def quiet_end(stop: "Stop", journal: Journal) -> Iterator[None]:
    """When the first process was asked to stop and left, what the others then meet is no error of theirs."""
    try:
        yield
    except RuntimeError:
        if rank() == 0 or not stop.signal:
            raise
        raise Interrupted(journal.done, stop.signal) from None


class Interrupted(KeyboardInterrupt):
    """Asked to stop, and stopped behind a checkpoint."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped after step {step:,}")
        self.step, self.exit_code = step, 128 + number


class Stop:
    asked = False
    signal = 0


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """SIGINT and SIGTERM are noted; the step that runs is finished first. A second Ctrl-C interrupts at once.

    Other processes than the first go on: it needs them for the step it is in, and leaves behind a checkpoint that is theirs too.
    """
    stop = Stop()
    before: dict[int, Any] = {}

    def note(number: int, frame: object) -> None:
        if stop.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number
        stop.asked = rank() == 0

    if (
        threading.current_thread() is threading.main_thread()
    ):  # no other may; signals are then whoever's that is
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for earlier, handler in before.items():
            signal.signal(earlier, handler)
