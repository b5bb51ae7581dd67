"""The pages say what the commands print, their links lead somewhere, and their Python runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def test_quoted_output_is_what_the_commands_print():
    result = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}{result.stderr} Run `make docs`."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_python_in_the_readme_runs():
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert snippets
    names = {f"z{i}": torch.randn(8, 16, requires_grad=True) for i in range(3)}
    for snippet in snippets:
        exec(snippet, names)


@pytest.mark.parametrize("target", ["setup", "demo", "test", "format", "bench", "docs"])
def test_make_alone_lists_the_targets(target):
    listing = subprocess.run(
        ["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"make {target} " in listing
