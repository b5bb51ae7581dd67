"""Write the API reference: a page for each package with public names, from their docstrings."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

MODULES = ("smi", "smi.losses", "smi.methods", "smi.nn", "smi.views", "smi.data", "smi.optim")
MODULES += ("smi.evaluation", "smi.health")
FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.*)")
ARGUMENT_INSIDE = re.compile(r"(?<=\.) (?=[a-z_]\w*: )")  # a sentence begins with a capital


def write_pages(folder: Path) -> list[str]:
    """Write a page for each module; return the names of the pages."""
    folder.mkdir(parents=True)
    names = []
    for module in MODULES:
        (folder / f"{module}.rst").write_text(page(module), encoding="utf-8")
        names.append(f"api/{module}")
    return names


def page(name: str) -> str:
    """Return the page of a module: its docstring, then its public names."""
    module = import_module(name)
    parts = [name, "=" * len(name), "", f".. automodule:: {name}", ""]
    for public in sorted(module.__all__, key=str.lower):
        value = getattr(module, public)
        full = f"{name}.{public}"
        if inspect.ismodule(value) or public.startswith("__"):
            continue
        if home := described_in(public, name):
            parts += [f":py:obj:`smi.{public} <{home}.{public}>` is on the page of {home}.", ""]
        elif inspect.isclass(value):
            parts += [f".. autoclass:: {full}", "   :members:", ""]
        elif inspect.isfunction(value):
            parts += [f".. autofunction:: {full}", ""]
        else:
            parts += [f".. py:data:: {full}", f"   :value: {value!r}"[:160], ""]
    return "\n".join(parts)


def described_in(public: str, name: str) -> str | None:
    """Return the package that describes a name of `smi` already: links need one place."""
    others = [other for other in MODULES if other != "smi"] if name == "smi" else []
    return next((o for o in others if public in import_module(o).__all__), None)


def as_rst(docstring: list[str]) -> list[str]:
    """Turn a docstring of this package into reStructuredText.

    Lines such as `eps: keeps it finite` become a list of arguments, and code becomes a block.
    """
    lines = []
    for paragraph in paragraphs(docstring):
        if is_code(paragraph):
            lines += [".. code-block:: python", "", *("   " + line for line in paragraph), ""]
        else:
            lines += [*prose(paragraph), ""]
    return lines


def paragraphs(docstring: list[str]) -> Iterator[list[str]]:
    """Yield the parts between empty lines; the indentation of code is kept."""
    part: list[str] = []
    for line in [*docstring, ""]:
        if line.strip():
            part.append(line.rstrip())
        elif part:
            yield part
            part = []


def is_code(paragraph: list[str]) -> bool:
    """Return whether a paragraph is an example or a formula, not sentences."""
    if all(line.startswith("    ") for line in paragraph):
        return True
    first = paragraph[0]
    if FIELD.match(first) or first[:1].isupper():
        return False
    text = "\n".join(paragraph)
    try:
        compile(text, "docstring", "exec")
    except SyntaxError:
        return "<" in first and "/" in first
    return bool(re.search(r"[=(]", text))


def prose(paragraph: list[str]) -> list[str]:
    """Return sentences, with arguments as a list."""
    lines: list[str] = []
    in_list = False
    split = [part for line in paragraph for part in ARGUMENT_INSIDE.split(line)]
    for before, line in pairwise([".", *split]):
        field = FIELD.match(line) if before.endswith(".") else None  # not inside a sentence
        if field:
            if not in_list and lines:
                lines.append("")
            names = ", ".join(f"``{name}``" for name in field[1].split(", "))
            lines.append(f"- {names}: {escaped(field[2])}")
            in_list = True
        elif in_list:
            lines.append("  " + escaped(line.strip()))
        else:
            lines.append(escaped(line.strip()))
    return lines


def escaped(text: str) -> str:
    """Return a line in which only backticks mean something."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([*_|\\`])", r"\\\1", text)
    marked = [
        f"``{part}``" if i % 2 else re.sub(r"([*_|\\])", r"\\\1", part)
        for i, part in enumerate(parts)
    ]
    return "".join(marked).replace("````", "")
