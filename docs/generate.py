"""Renew the command output that the pages quote, and the drawing of the method.

Run `python docs/generate.py`, or add `--check` to only name what is out of date. A page quotes a
command between `<!-- output of: COMMAND -->` and `<!-- end -->`. Markdown with tables is inserted
as it is, everything else as code.
"""

import functools
import multiprocessing
import os
import re
import runpy
import shlex
import sys
import tempfile
from pathlib import Path

import draw_method
import torch  # noqa: F401  for the commands, which are forked: each would take seconds for it

FORK = multiprocessing.get_context("fork")
ROOT = Path(__file__).parent.parent
QUOTE = re.compile(r"(<!-- output of: (?P<command>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    check_only = "--check" in sys.argv
    stale = []
    for path, text in renewed_files():
        if not path.exists() or text != path.read_text(encoding="utf-8"):
            stale.append(str(path.relative_to(ROOT)))
            if not check_only:
                path.write_text(text, encoding="utf-8")
    if stale:
        print("Out of date:" if check_only else "Renewed:", ", ".join(stale))
        sys.exit(check_only)


def renewed_files() -> list[tuple[Path, str]]:
    """Return every generated file with the text it should have."""
    files = [(draw_method.OUT, draw_method.draw())]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        renewed = QUOTE.sub(lambda match: match[1] + quoted(match["command"]) + match[3], text)
        files.append((page, renewed))
    return files


@functools.cache
def quoted(command: str) -> str:
    """Run a command and return its output as Markdown."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        process = FORK.Process(target=become, args=(shlex.split(command), file.fileno()))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{command} ended with {process.exitcode}")
        file.seek(0)
        output = file.read().rstrip()
    return f"{output}\n" if "|---" in output else f"```\n{output}\n```\n"


def become(words: list[str], output: int) -> None:
    """Run a command in this process, which has imported torch already, and write to a file."""
    os.dup2(output, 1)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  until the end
    os.chdir(ROOT)
    program, *rest = words
    if program == "smi":
        sys.argv = words
        runpy.run_module("smi", run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path[0] = str((ROOT / rest[0]).parent)
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()
