"""What every benchmark shares: its command line, and the statement of when, which commit, on what, with which versions."""

import argparse
import datetime
import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results"


def main(
    parser: argparse.ArgumentParser,
    name: str,
    run: Callable[[argparse.Namespace], dict],
    table: Callable[[dict], str],
) -> None:
    """Run and write results/benchmark-NAME.json, or --show it; print its table."""
    parser.add_argument(
        "--show", action="store_true", help="print the table of the last run instead of running"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / f"benchmark-{name}.json")
    arguments = parser.parse_args()
    if not arguments.show:
        results = run(arguments)
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(table(json.loads(arguments.out.read_text())))


def command(doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def stamp(hardware: str, **versions: str) -> dict[str, object]:
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "hardware": f"{processor()}, {hardware}",
        "versions": {"python": platform.python_version()} | versions,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def footer(results: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"{results['date']}, commit {results['commit']}, {results['hardware']}, {versions}."
