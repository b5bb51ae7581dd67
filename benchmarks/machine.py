"""What every benchmark states: when, which commit, on what, with which versions."""

import datetime
import platform
import subprocess
from pathlib import Path


def stamp(hardware: str, **versions: str) -> dict[str, object]:
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
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
