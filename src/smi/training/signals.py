"""Stop a run after a checkpoint when SIGINT or SIGTERM arrives."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smi.distributed import rank
from smi.training.journal import Journal


class Interrupted(KeyboardInterrupt):
    """Report that a signal stopped the run after a checkpoint."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped after step {step:,}")
        self.step = step
        self.exit_code = 128 + number


class Stop:
    """Hold the signal that arrived, and whether this process must act on it."""

    requested = False
    signal = 0


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Note SIGINT and SIGTERM, so that the current step is finished first.

    A second Ctrl-C interrupts at once. Only rank 0 acts on the signal: it needs the other ranks
    for its current step, and its checkpoint holds their state too.
    """
    stop = Stop()
    previous: dict[int, Any] = {}

    def note(number: int, frame: object) -> None:
        if stop.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number
        stop.requested = rank() == 0

    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for earlier, handler in previous.items():
            signal.signal(earlier, handler)


@contextmanager
def follow_rank_0(stop: Stop, journal: Journal) -> Iterator[None]:
    """End other ranks without an error when rank 0 left after a signal.

    Their next collective fails, because rank 0 is gone.
    """
    try:
        yield
    except RuntimeError:
        if rank() == 0 or not stop.signal:
            raise
        raise Interrupted(journal.done, stop.signal) from None
