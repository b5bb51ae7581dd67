"""A progress bar on stderr, where that is a terminal; nothing elsewhere."""

from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar


class Progress:
    """with Progress("decoding", 4000, "images") as progress: progress.advance(16)"""

    def __init__(self, doing: str, total: int | None, unit: Literal["images", "bytes"], done: int = 0):
        console = Console(stderr=True)
        counts = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))
        columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task(doing, total=total, completed=done)

    def advance(self, amount: int) -> None:
        self._bar.advance(self._task, amount)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
