"""Run notebooks from top to bottom and store their output, without Jupyter.

python notebooks/run.py                    # all of them, at full size: minutes
python notebooks/run.py few_labels.ipynb   # one of them
python notebooks/run.py --links            # only renew the links to the repository

A code cell is plain Python, so that `exec` can run it: no magics. Its output is what it prints, and
its last expression. A small size for tests is `SMI_NOTEBOOK_SIZE=small`, which the cells read.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
COLAB = "https://colab.research.google.com/github/"
BRANCH = "main"

Cell = dict[str, Any]
Notebook = dict[str, Any]


def main(arguments: list[str]) -> None:
    names = [name for name in arguments if not name.startswith("--")]
    paths = [FOLDER / Path(name).name for name in names] or sorted(FOLDER.glob("*.ipynb"))
    if "--links" in arguments:
        for path in paths:
            write(path, with_links(read(path), path.name))
    elif "--here" in arguments:  # in the process and the folder that the lines below make
        for path in paths:
            write(path, execute(with_links(read(path), path.name)))
    else:
        for path in paths:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--here", path.name]
                subprocess.run(command, cwd=folder, check=True)


def read(path: Path) -> Notebook:
    """Read a notebook."""
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def write(path: Path, notebook: Notebook) -> None:
    """Write a notebook as Jupyter does."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def execute(notebook: Notebook) -> Notebook:
    """Run all code cells in this process and this folder; return the notebook with their output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = run_cell("".join(cell["source"]), names, f"<cell {count}>", count)
            cell = cell | {"execution_count": count, "outputs": outputs}
        cells.append(cell)
    return notebook | {"cells": cells}


def run_cell(source: str, names: dict[str, Any], title: str, count: int) -> list[dict[str, Any]]:
    """Run the code of a cell; return its printed text and its last expression, as Jupyter does."""
    tree = ast.parse(source, title)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(tree, title, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), title, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = as_on_screen(printed.getvalue())
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(text)})
    if value is not None:
        outputs.append(
            {
                "data": rendered(value),
                "execution_count": count,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def as_on_screen(text: str) -> str:
    """Keep what is left of lines that were overwritten, and drop this machine's folder."""
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(shown).replace(os.getcwd() + os.sep, "")


def rendered(value: object) -> dict[str, Any]:
    """Return a value as a picture, if it is one, and as text."""
    data: dict[str, Any] = {"text/plain": lines(repr(value))}
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode("ascii")
        data["text/plain"] = ["<PIL.Image.Image>"]  # its address in memory says nothing
    return data


def lines(text: str) -> list[str]:
    """Return a text as the lines that a notebook stores."""
    return text.splitlines(keepends=True)


def repository() -> str:
    """Return the address of the repository, which pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address: str = project["urls"]["Repository"]
    return address


def with_links(notebook: Notebook, name: str) -> Notebook:
    """Point the Colab link and the installation to the repository that pyproject.toml names."""
    address = repository()
    place = address.removeprefix("https://github.com/")
    colab = f"{COLAB}{place}/blob/{BRANCH}/notebooks/{name}"
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        text = re.sub(re.escape(COLAB) + r"[^)\s]*", colab, text)
        text = re.sub(r"git\+https://[^\"'\s]+", f"git+{address}", text)
        cells.append(cell | {"source": lines(text)})
    return notebook | {"cells": cells}


if __name__ == "__main__":
    main(sys.argv[1:])
