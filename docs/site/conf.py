"""Configure Sphinx: pages in Markdown, no file from a network."""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import api_pages

import smi

project = "smi"
release = smi.__version__
copyright = "the smi authors, MIT licence"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 6  # as GitHub names them
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"smi {release}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Register the converters of docstrings and formulas."""
    app.connect("autodoc-process-docstring", convert_docstring)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))


def convert_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring into reStructuredText."""
    lines[:] = api_pages.as_rst(lines)


def braced(tex: str) -> str:
    r"""Write out the braces that docutils needs: of \tfrac12, and around a \bar with an index."""
    tex = re.sub(r"(\\t?frac)(\d)(\d)", r"\1{\2}{\3}", tex)
    return re.sub(r"\\bar ([a-z])", r"{{}\\bar{\1}}", tex)


def visit_math(visitor: Any, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    visitor.body.append(latex2mathml.tex2mathml(braced(node.astext())))
    raise nodes.SkipNode


def visit_math_block(visitor: Any, node: nodes.Element) -> None:
    """Write a formula on a line of its own."""
    mathml = latex2mathml.tex2mathml(braced(node.astext()), as_block=True)
    visitor.body.append(f'<div class="math">{mathml}</div>')
    raise nodes.SkipNode
