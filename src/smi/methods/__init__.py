"""How views become a loss, one small file per method. One of your own: a subclass of `Method`, named by its import path.

method = create_method("SMI", create_encoder("resnet50"), redundancy_weight=0.01)
"""

import difflib
import inspect
from importlib import import_module
from typing import Any

from smi.errors import UserError
from smi.imports import import_path
from smi.methods.base import Method, Output
from smi.methods.modalities import Modalities
from smi.nn import Encoder

# The order of the paper's Table 1. Loaded when first asked for.
HOMES = {
    "SMI": "smi",
    "BarlowTwins": "barlow_twins",
    "VICReg": "vicreg",
    "SimCLR": "simclr",
    "BYOL": "byol",
    "MoCo": "moco",
    "MoCoV2": "moco",
    "SimSiam": "simsiam",
    "SwAV": "swav",
    "DINO": "dino",
    "PIRL": "pirl",
}

__all__ = [
    "HOMES",
    "Method",
    "Modalities",
    "Output",
    "create_method",
    "find_method",
    "name_of",
    "settings_of",
]


def find_method(name: str) -> type[Method]:
    """By class name, whatever its case, or import path."""
    if "." in name:
        return _checked(import_path(name), name)
    known = name_of(name)
    return _checked(getattr(import_module(f"smi.methods.{HOMES[known]}"), known), name)


def name_of(name: str) -> str:
    """As the class spells it; an import path as it is."""
    if "." in name:
        return name
    spelt = {known.lower(): known for known in HOMES}
    if name.lower() in spelt:
        return spelt[name.lower()]
    close = difflib.get_close_matches(name.lower(), spelt, 1)
    hint = f"did you mean {spelt[close[0]]}?" if close else f"choose one of {', '.join(HOMES)}"
    raise UserError(f"there is no method {name!r}: {hint} (or give an import path)")


def _checked(found: object, name: str) -> type[Method]:
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{name} is not a subclass of smi.methods.Method")
    return found


def settings_of(method: type[Method]) -> dict[str, inspect.Parameter]:
    """What can be set: the keyword arguments of its __init__."""
    return {
        name: p
        for name, p in inspect.signature(method.__init__, eval_str=True).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }


def create_method(
    name: str, encoder: Encoder, *, num_images: int | None = None, **settings: Any
) -> Method:
    method = find_method(name)
    if num_images is not None and "num_images" in settings_of(method):
        settings["num_images"] = num_images
    return method(encoder, **settings)
