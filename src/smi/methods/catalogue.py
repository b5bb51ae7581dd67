"""What `smi methods` prints: every method and what it needs, or one of them with its settings."""

import inspect
import json
from typing import Any

from smi.methods import HOMES, Method, find_method, settings_of
from smi.tables import Table


def describe(method: type[Method]) -> dict[str, Any]:
    return {
        "method": method.__name__,
        "shared_network": method.shared_network,
        "momentum_encoder": method.momentum_encoder,
        "stored": method.stored,
        "gathers": method.gathers,
        "multicrop": method.multicrop,
        "paper": method.paper,
    }


def print_methods(*, as_json: bool) -> None:
    rows = [describe(find_method(name)) for name in HOMES]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    headers = [
        "Method",
        "Shared network",
        "Momentum encoder",
        "Stored",
        "Gather",
        "Multi-crop",
        "Paper",
    ]
    print(Table.of(headers, [[_word(value) for value in row.values()] for row in rows]).text())
    print(f"\n{NOTES}")


def print_method(name: str, *, as_json: bool) -> None:
    """By class name or import path."""
    method = find_method(name)
    about = inspect.cleandoc(method.__doc__ or "")
    settings = [
        {
            "setting": setting,
            "type": inspect.formatannotation(parameter.annotation),
            "default": None if parameter.default is parameter.empty else parameter.default,
        }
        for setting, parameter in settings_of(method).items()
    ]
    if as_json:
        print(json.dumps(describe(method) | {"about": about, "settings": settings}, indent=2))
        return
    print(method.__name__ + (f" ({method.paper})" if method.paper else ""))
    if about:
        print(f"\n{about}")
    if settings:
        print()
        print(
            Table.of(
                ["Setting", "Type", "Default"],
                [[str(cell) for cell in row.values()] for row in settings],
            ).text()
        )


def _word(value: bool | str) -> str:
    return {True: "yes", False: "no", "": "-"}.get(value, str(value))


NOTES = """\
Shared network    both views go through the same weights
Momentum encoder  a teacher whose weights slowly follow
Stored            what is kept of earlier samples
Gather            devices exchange embeddings, not only gradients (of DINO's, one mean)
Multi-crop        small views beside the large ones, by default

smi methods NAME: what can be set."""
