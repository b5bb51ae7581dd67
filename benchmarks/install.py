"""Install smi into an empty environment, and print the size of each package.

    python benchmarks/install.py                            the versions of constraints.txt
    python benchmarks/install.py --show                     the table of the last run

It downloads everything. The seconds depend on the network, the disk and what else the machine does,
so they are rounded.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import machine

ROOT = Path(__file__).parent.parent
LIST_SIZES = """
import importlib.metadata, json, pathlib
sizes = {}
for package in importlib.metadata.distributions():
    paths = (pathlib.Path(package.locate_file(file)) for file in package.files or [])
    sizes[package.name] = sum(path.stat().st_size for path in paths if path.is_file())
print(json.dumps(sizes))
"""


def run(arguments: argparse.Namespace) -> dict:
    """Install smi, and return the bytes of each package and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python"))
        tools = _sizes(python)  # pip and setuptools
        pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        start = time.perf_counter()
        subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", ROOT], check=True)
        seconds = time.perf_counter() - start
        sizes = {name: size for name, size in _sizes(python).items() if name not in tools}
    return machine.stamp(platform.system()) | {"sizes": sizes, "seconds": seconds}


def _sizes(python: str) -> dict[str, int]:
    listed = subprocess.run([python, "-c", LIST_SIZES], capture_output=True, text=True, check=True)
    return json.loads(listed.stdout)


def table(results: dict) -> str:
    """Format the sizes in megabytes: those of NVIDIA together, and small ones together."""
    sizes: dict[str, float] = {}
    for name, size in results["sizes"].items():
        if name.startswith(("nvidia", "cuda", "triton")):
            name = "CUDA and triton, which PyTorch's default build for Linux needs"
        elif size < 5e6 and name != "smi-ssl":
            name = "packages below 5 MB, together"
        sizes[name] = sizes.get(name, 0) + size / 1e6
    rows = sorted(sizes.items(), key=lambda row: -row[1])
    minutes = max(1, round(results["seconds"] / 60))
    lines = [f"| {name} | {size:,.1f} |" for name, size in rows]
    count = len(results["sizes"])
    return "\n".join(
        [
            "| package | MB |",
            "|---|---:|",
            *lines,
            f"| *all {count} packages* | {sum(sizes.values()):,.1f} |",
            "",
            f"Downloading and installing took about {minutes} min.",
            "",
            machine.footer(results),
        ]
    )


if __name__ == "__main__":
    machine.main(machine.command(__doc__), "install", run, table)
