"""Provide the command line of all benchmarks, and the date, commit, hardware and versions."""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results"


def main(
    parser: argparse.ArgumentParser,
    name: str,
    run: Callable[[argparse.Namespace], dict],
    table: Callable[[dict], str],
) -> None:
    """Run a benchmark and write results/benchmark-NAME.json, or --show it; print its table."""
    parser.add_argument(
        "--show", action="store_true", help="print the table of the last run instead of running"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / f"benchmark-{name}.json")
    arguments = parser.parse_args()
    if not arguments.show:
        warn_if_dirty()
        results = run(arguments)
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(table(json.loads(arguments.out.read_text())))


def command(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the docstring of a script as its help."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def warn_if_dirty() -> None:
    """Warn at the start, because a published number needs a clean commit."""
    name = commit()
    if name.endswith("-dirty"):
        print(
            f"warning: there are uncommitted changes, so the results will name commit {name}; "
            "commit them before you publish a number",
            file=sys.stderr,
        )


def commit() -> str:
    """Return the commit of this repository, with -dirty if there are uncommitted changes."""
    git = ["git", "describe", "--always", "--dirty"]
    ran = subprocess.run(
        git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return ran.stdout.strip()


def stamp(hardware: str, **versions: str) -> dict[str, object]:
    """Return the date, commit, hardware and versions of a measurement."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "hardware": f"{processor()}, {hardware}",
        "versions": {"python": platform.python_version()} | versions,
    }


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def footer(results: dict) -> str:
    """Format the date, commit, hardware and versions as the line below a table."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"{results['date']}, commit {results['commit']}, {results['hardware']}, {versions}."
