"""Check that pages are current: quoted output, links, Python code, the drawing and the map."""

import importlib.util
import re
import shlex
import subprocess
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

import smi
from smi.cli import parser
from support.digits import run_script

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]


def test_quoted_output_is_what_the_commands_print():
    result = run_script(ROOT / "docs" / "generate.py", "--check", cwd=ROOT)
    assert result.returncode == 0, f"{result.stdout}{result.stderr} Run `make docs`."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        target, _, anchor = link.partition("#")
        if target.startswith("https://"):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), link
        if anchor:
            assert anchor in anchors(linked), link


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_pages_exist(page):
    """Flags that the parser does not know must be dotted settings."""
    blocks = re.findall(r"^```(?:bash|sh)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        if found := re.search(r"(?:^|-m )smi ([a-z][^#|>]*)", line):
            _, rest = parser().parse_known_args(shlex.split(found[1]))
            assert all(word.startswith("--") is False or "." in word for word in rest), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_the_pages_compiles(page):
    for snippet in python_snippets(page):
        compile(snippet, page.name, "exec")


def test_python_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretrain = smi.pretrain

    def on_few_images(*words, overrides, **options):
        return pretrain(*words, overrides=overrides | {"data.images": 256}, **options)

    monkeypatch.setattr(smi, "pretrain", on_few_images)
    snippets = python_snippets(ROOT / "README.md")
    assert snippets
    names = {f"z{i}": torch.randn(8, 16, requires_grad=True) for i in range(3)}
    for snippet in snippets:
        exec(snippet, names)


def test_python_of_works_with_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.compiler.reset()
    names = {}
    for snippet in python_snippets(ROOT / "docs" / "works-with.md"):
        if "lightning" in snippet:
            names |= {"pl": pytest.importorskip("pytorch_lightning")}
        with warnings.catch_warnings():  # those of PyTorch and of Lightning about themselves
            warnings.simplefilter("ignore")
            exec(snippet, names)


def python_snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_drawing_is_what_its_script_draws():
    spec = importlib.util.spec_from_file_location("draw_method", ROOT / "docs" / "draw_method.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.OUT.read_text(encoding="utf-8") == script.draw(), "Run `make docs`."


def test_texts_of_the_drawing_are_large_enough_to_read():
    svg = ET.parse(ROOT / "docs" / "method.svg").getroot()
    style = svg.find("{http://www.w3.org/2000/svg}style").text
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", style)]
    assert sizes
    assert min(sizes) >= 12


def test_the_map_names_every_module_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text()
    (tree,) = re.findall(r"^## Map\n\n```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"\b\w+\.py\b", tree))
    folders = [ROOT / "src" / "smi", ROOT / "docs", ROOT / "campaign", ROOT / ".github"]
    existing = {path.name for folder in folders for path in folder.rglob("*.py")} | {"setup.py"}
    assert named - existing == set()
    unnamed = {"__init__.py", "__main__.py"}
    assert existing - named - unnamed == set()


@pytest.mark.parametrize(
    "target", ["setup", "demo", "test", "format", "bench", "docs", "notebooks", "site"]
)
def test_make_alone_lists_the_targets(target):
    listing = subprocess.run(
        ["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"make {target} " in listing
