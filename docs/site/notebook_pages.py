"""Write pages of the examples and of the notebooks, with their stored output."""

import base64
import json
from pathlib import Path
from typing import Any

from places import ROOT, repository

EXAMPLES = ROOT / "examples"
NOTEBOOKS = ROOT / "notebooks"


def write_pages(folder: Path) -> list[str]:
    """Write a page of all examples and one of each notebook; return their names."""
    (folder / "examples.md").write_text(examples(), encoding="utf-8")
    names = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        (folder / "notebooks").mkdir(exist_ok=True)
        notebook = json.loads(path.read_text(encoding="utf-8"))
        page = folder / "notebooks" / f"{path.stem}.md"
        page.write_text(page_text(notebook, page), encoding="utf-8")
        names.append(f"notebooks/{path.stem}")
    return ["examples", *names]


def page_of(path: Path) -> str | None:
    """Return the page on which the site shows an example or a notebook."""
    if path.parent == EXAMPLES and path.suffix == ".py":
        return f"examples.md#{anchor(path)}"
    if path.parent == NOTEBOOKS and path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    return None


def anchor(path: Path) -> str:
    return path.name.replace(".", "")


def examples() -> str:
    """Return a page with the code of every example."""
    parts = ["# Examples\n\nSmall scripts, which the tests run.\n"]
    for path in sorted(EXAMPLES.glob("*.py")):
        code = path.read_text(encoding="utf-8").rstrip()
        parts.append(f"## {path.name}\n\n```python\n{code}\n```\n")
    templates = sorted(p.name for p in EXAMPLES.iterdir() if p.is_dir() and p.name[0].isalpha())
    if templates:
        address = f"{repository()}/tree/main/examples"
        links = ", ".join(f"[{name}]({address}/{name})" for name in templates)
        parts.append(f"## Templates for clusters\n\n{links}\n")
    return "\n".join(parts)


def page_text(notebook: dict[str, Any], page: Path) -> str:
    """Return a notebook as Markdown, and write its pictures beside the page."""
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            parts.append(output_text(output, page.with_name(f"{page.stem}-{number}.png")))
    return "\n\n".join(parts) + "\n"


def output_text(output: dict[str, Any], picture: Path) -> str:
    """Return the stored output of a cell as Markdown."""
    if output["output_type"] == "stream":
        return f"```\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![Output of the cell above]({picture.name})"
    return f"```\n{''.join(data['text/plain'])}\n```"
