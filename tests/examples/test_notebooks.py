"""Run the code of the notebooks at a small size, and check what is stored in them."""

import importlib.util
from pathlib import Path

import pytest

from support.quick import make_quick

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def load_runner():
    spec = importlib.util.spec_from_file_location("run_notebook", ROOT / "notebooks" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = load_runner()


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_three():
    assert {path.stem for path in NOTEBOOKS} == {"few_labels", "only_the_loss", "fair_comparison"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_at_a_small_size(path, tmp_path, monkeypatch):
    make_quick(monkeypatch)
    monkeypatch.setenv("SMI_NOTEBOOK_SIZE", "small")
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    stored = runner.read(path)
    again = runner.execute(stored)
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in code_cells(stored)]
    assert [[o["output_type"] for o in cell["outputs"]] for cell in code_cells(again)] == kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_output_is_stored_in_order(path):
    cells = code_cells(runner.read(path))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
    assert "/tmp" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_to_the_repository(path):
    notebook = runner.read(path)
    assert notebook == runner.with_links(notebook, path.name), "Run `make notebooks`."
    text = path.read_text(encoding="utf-8")
    assert f"/notebooks/{path.name})" in text  # the Colab link
    assert f"git+{runner.repository()}" in text


def test_overwritten_lines_are_dropped():
    assert runner.as_on_screen("step 1\rstep 2\rdone\nnext") == "done\nnext"


def test_the_last_expression_is_shown():
    (output,) = runner.run_cell("x = 2\nx + 1", {}, "<cell>", 1)
    assert output["data"]["text/plain"] == ["3"]
