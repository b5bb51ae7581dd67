"""Stop a run after a checkpoint when SIGINT, SIGTERM or SIGUSR1 arrives."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smi.distributed import world_size

SIGNALS = tuple(  # Windows has no SIGUSR1
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)
)
# Of SIGTERM and SIGUSR1, by which schedulers end a job that they may start again.
START_AGAIN = 128 + signal.SIGTERM


class Interrupted(KeyboardInterrupt):
    """Report that a signal stopped the run after a checkpoint."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped after step {step:,}")
        self.step = step
        self.exit_code = 130 if number == signal.SIGINT else START_AGAIN


class Stop:
    """Hold the signal that arrived in this process, and whether all processes stop now."""

    signal = 0
    requested = False

    def agree(self) -> None:
        """Stop after the current step, because a signal arrived in one of the processes."""
        self.signal = self.signal or signal.SIGTERM
        self.requested = True


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Note SIGINT, SIGTERM and SIGUSR1, so that the current step is finished first.

    A second Ctrl-C interrupts at once. Several processes need one another for every step, so they
    agree on the last one: the next that writes a line of metrics (see `Journal`).
    """
    stop = Stop()
    previous: dict[int, Any] = {}

    def note(number: int, frame: object) -> None:
        if stop.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number
        if world_size() == 1:
            stop.agree()

    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        for number in SIGNALS:
            previous[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for earlier, handler in previous.items():
            signal.signal(earlier, handler)
