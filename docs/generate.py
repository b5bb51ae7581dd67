"""Renew what the pages quote from commands: python docs/generate.py [--check]

A page quotes a command between `<!-- output of: COMMAND -->` and `<!-- end -->`: Markdown with tables as it is, all else as code.
"""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUOTE = re.compile(r"(<!-- output of: (?P<command>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        renewed = QUOTE.sub(lambda match: match[1] + quoted(match["command"]) + match[3], text)
        if renewed != text:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in sys.argv:
                page.write_text(renewed)
    if stale:
        print("Stale:" if "--check" in sys.argv else "Renewed:", ", ".join(stale))
        sys.exit("--check" in sys.argv)


@functools.cache
def quoted(command: str) -> str:
    program, *arguments = shlex.split(command)
    start = {"smi": [sys.executable, "-m", "smi"], "python": [sys.executable]}[program]
    output = subprocess.run(
        [*start, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.rstrip()
    return f"{output}\n" if "|---" in output else f"```\n{output}\n```\n"


if __name__ == "__main__":
    main()
