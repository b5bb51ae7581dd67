"""Say where the repository is: on this machine, and in public."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def repository() -> str:
    """Return the address of the repository, which pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address: str = project["urls"]["Repository"]
    return address
