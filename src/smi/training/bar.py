"""Show the progress of training: a bar on a terminal, or one plain line per epoch elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from smi.runs.names import probe_text
from smi.terminal import duration, is_aside, is_quiet, say


@dataclass(frozen=True)
class Length:
    """Hold the length of a run, in steps and images."""

    steps: int
    steps_per_epoch: int
    images_per_step: int  # on all devices together

    def epoch(self, done: int) -> float:
        """Convert a number of steps to epochs."""
        return done / self.steps_per_epoch


class Bar:
    """Show a progress bar on a terminal, or plain lines elsewhere; print nothing if quiet."""

    def __init__(self, length: Length, start: int):
        console = Console(stderr=is_aside())
        self._length = length
        self._is_terminal = console.file.isatty()  # FORCE_COLOR makes no terminal of a file
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[facts]}"),
        )
        disabled = is_quiet() or not self._is_terminal
        self._progress = Progress(*columns, console=console, disable=disabled)
        self._task = self._progress.add_task(
            "", total=length.steps, completed=start, epoch=self._epoch(start), facts=""
        )
        self._progress.start()

    def show(
        self, done: int, line: Mapping[str, Any] | None, probe: Mapping[str, Any] | None
    ) -> None:
        """Show the state after `done` steps, with the last line of metrics and the last probe."""
        if self._is_terminal:
            self._progress.update(
                self._task, completed=done, epoch=self._epoch(done), facts=self._facts(line, probe)
            )
        elif done % self._length.steps_per_epoch == 0 or done == self._length.steps:
            say(f"epoch {self._epoch(done)}  {self._facts(line, probe)}")

    def close(self) -> None:
        """Leave the bar as it is and release the terminal."""
        if not self._progress.disable:  # older versions of rich print an empty line
            self._progress.stop()

    def _facts(self, line: Mapping[str, Any] | None, probe: Mapping[str, Any] | None) -> str:
        """Format loss, feature std, kNN accuracy, speed and remaining time."""
        if line is None:
            return ""
        speed = line["timing"]["images_per_second"]
        left = (self._length.steps - line["step"]) * self._length.images_per_step / speed
        facts = [f"loss {line['loss']:.5g}", f"feature std {line['feature_std']:.4f}"]
        if probe:
            facts.append(probe_text(probe))
        facts.append(f"{speed:,.0f} images/s")
        facts.append(f"ETA {duration(left)}" if left else "done")
        return "  ".join(facts)

    def _epoch(self, done: int) -> str:
        """Return the current epoch and the number of epochs."""
        last = math.ceil(self._length.epoch(self._length.steps))
        return f"{math.ceil(self._length.epoch(done))}/{last}"
