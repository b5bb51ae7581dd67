"""A progress bar on a terminal, or a plain line per epoch elsewhere."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from smi.terminal import duration


class Bar:
    """A progress bar on a terminal; elsewhere a plain line per epoch."""

    def __init__(self, total: int, steps_per_epoch: int, images_per_step: int, start: int):
        console = Console()
        self._terminal = console.is_terminal
        self._total, self._steps_per_epoch, self._images_per_step = (
            total,
            steps_per_epoch,
            images_per_step,
        )
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[facts]}"),
        )
        self._progress = Progress(*columns, console=console, disable=not self._terminal)
        self._task = self._progress.add_task(
            "", total=total, completed=start, epoch=self._epoch(start), facts=""
        )
        self._progress.start()

    def show(
        self, done: int, line: Mapping[str, Any] | None, probe: Mapping[str, Any] | None
    ) -> None:
        if self._terminal:
            self._progress.update(
                self._task, completed=done, epoch=self._epoch(done), facts=self._facts(line, probe)
            )
        elif done % self._steps_per_epoch == 0 or done == self._total:
            print(f"epoch {self._epoch(done)}  {self._facts(line, probe)}", flush=True)

    def close(self) -> None:
        self._progress.stop()

    def _facts(self, line: Mapping[str, Any] | None, probe: Mapping[str, Any] | None) -> str:
        if line is None:
            return ""
        speed = line["timing"]["images_per_second"]
        left = (self._total - line["step"]) * self._images_per_step / speed
        facts = [f"loss {line['loss']:.5g}", f"feature std {line['feature_std']:.4f}"]
        facts += [f"kNN {probe['knn']:.1%}"] if probe else []
        facts += [f"{speed:,.0f} images/s", f"ETA {duration(left)}" if left else "done"]
        return "  ".join(facts)

    def _epoch(self, done: int) -> str:
        return f"{-(-done // self._steps_per_epoch)}/{-(-self._total // self._steps_per_epoch)}"
