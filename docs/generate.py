"""Renew the command output that the pages quote, and the drawing of the method.

Run `python docs/generate.py`, or add `--check` to only name what is out of date. A page quotes a
command between `<!-- output of: COMMAND -->` and `<!-- end -->`. Markdown with tables is inserted
as it is, everything else as code.
"""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import draw_method

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
    program, *arguments = shlex.split(command)
    start = {"smi": [sys.executable, "-m", "smi"], "python": [sys.executable]}[program]
    output = subprocess.run(
        [*start, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.rstrip()
    return f"{output}\n" if "|---" in output else f"```\n{output}\n```\n"


if __name__ == "__main__":
    main()
