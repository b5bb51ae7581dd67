"""Print to the terminal: sentences, progress bars, names and durations; callers can silence it.

with quietly(True):
    say("printed on stdout")          # nothing is printed here
"""

import contextlib
import difflib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO

from smi.errors import printable as printable

if TYPE_CHECKING:
    from rich.console import Console

_silent: ContextVar[bool] = ContextVar("silent", default=False)
_aside: ContextVar[bool] = ContextVar("aside", default=False)
_announced: set[str] = set()
SECONDS_BEFORE_LINE, SECONDS_BETWEEN_LINES = 2, 10  # of progress, without a terminal


@contextlib.contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Silence `say`, `announce` and progress bars inside the block; quiet=False changes nothing."""
    token = _silent.set(quiet or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def is_quiet() -> bool:
    """Return whether a caller silenced the output."""
    return _silent.get()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Print on stderr what `say` prints inside the block: stdout is for JSON then."""
    token = _aside.set(True)
    try:
        yield
    finally:
        _aside.reset(token)


def is_aside() -> bool:
    """Return whether `say` prints on stderr."""
    return _aside.get()


def say(text: str = "") -> None:
    """Print a result on stdout, with colours if that is a terminal."""
    if not _silent.get():
        stream = sys.stderr if _aside.get() else sys.stdout
        text = printable_lines(text)
        print(highlight(text) if has_colours(stream) else text, file=stream, flush=True)


def announce(sentence: str) -> None:
    """Print a warning or a status on stderr."""
    if not _silent.get():
        text = printable_lines(sentence)
        _console().print(text, highlight=False, soft_wrap=True, markup=False)


def announce_once(sentence: str) -> None:
    """Print a status on stderr, unless this process has printed it before."""
    if sentence not in _announced and not _silent.get():
        _announced.add(sentence)
        announce(sentence)


STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
HIGHLIGHTS = {  # what stands out in printed text
    r"^ok(?= {2,})": "green",
    r"^warning(?= {2,}|:)": "yellow",
    r"^stop(?= {2,})": "red",
    r"^.+(?=\n[-━][-━╋ ]+$)": "bold",  # the header of a table
    r"^(?:done|next|chose)(?=:? )": "cyan",
}


def highlight(text: str) -> str:
    """Colour the levels of findings, headers of tables and the first words of a plan's end."""
    for pattern, style in HIGHLIGHTS.items():
        text = re.sub(pattern, paint(r"\g<0>", style), text, flags=re.MULTILINE)
    return text


def paint(text: str, style: str) -> str:
    """Return text in a colour of the terminal."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours that the user did not turn off."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() and (os.name != "nt" or "WT_SESSION" in os.environ)


def printable_lines(text: str) -> str:
    """Escape what cannot be printed, except line breaks: names may hold any characters."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Escape what cannot be printed in JSON text, so that it still means the same."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def duration(seconds: float) -> str:
    """Format a duration: 42 s, 7 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun: "1 image", "1,614 images", "2.5 epochs"."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:,g}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"


def epochs_text(number: float) -> str:
    """Return a number of epochs in words: "1 epoch", "2.5 epochs"."""
    return counted(float(f"{number:.4g}"), "epoch")


def suggest(name: str, options: Iterable[str], prefix: str = "") -> str:
    """Return "did you mean X?" for the option closest to `name`, or list all options."""
    options = list(options)
    close = difflib.get_close_matches(name, options, 1)
    if not close:  # the case of letters is a common mistake
        lowered = {option.lower(): option for option in options}
        close = [lowered[key] for key in difflib.get_close_matches(name.lower(), lowered, 1)]
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"choose one of {', '.join(options)}" if options else "there are none"


class Progress:
    """Show a progress bar on stderr; a line every ten seconds if that is not a terminal.

    with Progress("decoding", 4000, "images") as progress:
        progress.advance(16)
    """

    def __init__(
        self,
        doing: str,
        total: int | None,
        unit: Literal["images", "bytes", "shards"],
        done: int = 0,
    ):
        from rich import progress
        from rich.markup import escape

        console = _console()
        is_terminal = console.file.isatty()  # FORCE_COLOR makes no terminal of a file
        if unit == "bytes":
            counts: tuple[progress.ProgressColumn, ...] = (
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
            )
        else:
            counts = (progress.MofNCompleteColumn(), progress.TextColumn(unit))
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            *counts,
            progress.TimeRemainingColumn(),
            console=console,
            disable=_silent.get() or not is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(escape(printable(doing)), total=total, completed=done)
        self._says_lines = not is_terminal
        self._doing, self._total, self._unit = printable(doing), total, unit
        self._done = done
        self._next_line = time.monotonic() + SECONDS_BEFORE_LINE

    def advance(self, amount: int) -> None:
        """Count `amount` more units as done."""
        self._bar.advance(self._task, amount)
        self._done += amount
        if self._says_lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            whole = "" if self._total is None else f" of {self._total:,}"
            announce(f"{self._doing}: {self._done:,}{whole} {self._unit}")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._bar.disable:  # older versions of rich print an empty line
            self._bar.stop()


def _console() -> "Console":
    from rich.console import Console  # slow to import, and not every command speaks

    return Console(stderr=True)
