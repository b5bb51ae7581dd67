"""List the methods, or one method with its settings, for `smi list methods`.

print(describe_methods().text())
print(describe_methods("MoCoV2").text())
"""

import inspect
from dataclasses import dataclass
from typing import Any

from smi.methods import METHOD_NAMES, find_method
from smi.methods.base import Method, settings_of
from smi.tables import Table

HEADERS = (
    "Method",
    "Shared network",
    "Momentum encoder",
    "Stored",
    "Gather",
    "Multi-crop",
    "Paper",
)
NOTES = (
    "Shared network    both views go through the same weights",
    "Momentum encoder  a teacher that follows the weights slowly",
    "Stored            state made of earlier samples",
    "Gather            devices exchange embeddings, not only gradients (DINO: one mean)",
    "Multi-crop        small views beside the large ones, by default",
    "",
    "smi list methods NAME lists the settings of a method.",
)


@dataclass(frozen=True)
class MethodList:
    """Hold the properties of all built-in methods."""

    rows: list[dict[str, Any]]

    def text(self) -> str:
        """Return a table for a terminal."""
        cells = [[_cell(value) for value in row.values()] for row in self.rows]
        return Table.of(HEADERS, cells, notes=NOTES).text()

    def plain(self) -> list[dict[str, Any]]:
        """Return one dictionary per method."""
        return self.rows


@dataclass(frozen=True)
class MethodDetails:
    """Hold one method with its settings."""

    properties: dict[str, Any]
    about: str  # the docstring of the class
    settings: list[dict[str, Any]]

    def text(self) -> str:
        """Return the title, the docstring and a table of settings."""
        name, paper = self.properties["method"], self.properties["paper"]
        parts = [f"{name} ({paper})" if paper else name]
        if self.about:
            parts.append(self.about)
        if self.settings:
            cells = [[str(value) for value in row.values()] for row in self.settings]
            parts.append(Table.of(["Setting", "Type", "Default"], cells).text())
        return "\n\n".join(parts)

    def plain(self) -> dict[str, Any]:
        """Return the properties, the docstring and the settings."""
        return self.properties | {"about": self.about, "settings": self.settings}


def describe_methods(name: str | None = None) -> MethodList | MethodDetails:
    """Return all built-in methods, or one method with its settings."""
    return list_methods() if name is None else describe_method(name)


def list_methods() -> MethodList:
    """Return the built-in methods with the properties of each."""
    return MethodList([_properties(find_method(name)) for name in METHOD_NAMES])


def describe_method(name: str) -> MethodDetails:
    """Return a method, by class name or import path, with its settings."""
    method = find_method(name)
    settings = [
        {
            "setting": setting,
            "type": inspect.formatannotation(parameter.annotation),
            "default": None if parameter.default is parameter.empty else parameter.default,
        }
        for setting, parameter in settings_of(method).items()
    ]
    return MethodDetails(_properties(method), inspect.cleandoc(method.__doc__ or ""), settings)


def _properties(method: type[Method]) -> dict[str, Any]:
    return {
        "method": method.__name__,
        "shared_network": method.shared_network,
        "momentum_encoder": method.momentum_encoder,
        "stored": method.stored,
        "gathers": method.gathers,
        "multicrop": method.multicrop,
        "paper": method.paper,
    }


def _cell(value: bool | str) -> str:
    """Return a value as text, with a dash for an empty one."""
    return {True: "yes", False: "no", "": "-"}.get(value, str(value))
