"""Turn views into a loss, with one small file per method.

    from smi.methods import SMI
    method = SMI(create_encoder("resnet50"), redundancy_weight=0.01)
    method = create_method("BarlowTwins", create_encoder("resnet50"))     # by name

A method of your own is a subclass of `Method`, named by its import path. Importing this package
does not import torch: classes are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smi.errors import UserError
from smi.imports import import_path
from smi.terminal import suggest

if TYPE_CHECKING:
    from smi.methods.barlow_twins import BarlowTwins as BarlowTwins
    from smi.methods.base import LossSetup, Method, Output, settings_of
    from smi.methods.byol import BYOL as BYOL
    from smi.methods.description import MethodDescription
    from smi.methods.dino import DINO as DINO
    from smi.methods.moco import MoCo as MoCo
    from smi.methods.moco import MoCoV2 as MoCoV2
    from smi.methods.modalities import Modalities
    from smi.methods.pirl import PIRL as PIRL
    from smi.methods.simclr import SimCLR as SimCLR
    from smi.methods.simsiam import SimSiam as SimSiam
    from smi.methods.smi import SMI as SMI
    from smi.methods.swav import SwAV as SwAV
    from smi.methods.vicreg import VICReg as VICReg
    from smi.nn import Encoder

# The built-in methods and their modules, in the order of the paper's Table 1. A new one needs a
# line here; the import above is for type checkers.
_METHODS = {
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
METHOD_NAMES = tuple(_METHODS)
_OTHERS = {
    "LossSetup": "base",
    "Method": "base",
    "MethodDescription": "description",
    "Modalities": "modalities",
    "Output": "base",
    "settings_of": "base",
}

__all__ = [
    "METHOD_NAMES",
    "LossSetup",
    "Method",
    "MethodDescription",
    "Modalities",
    "Output",
    "create_method",
    "find_method",
    "name_of",
    "settings_of",
    *_METHODS,
]


def __getattr__(name: str) -> Any:
    module = _METHODS.get(name) or _OTHERS.get(name)
    if module is None:
        raise AttributeError(f"module 'smi.methods' has no attribute {name!r}")
    return getattr(import_module(f"smi.methods.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def find_method(name: str) -> "type[Method]":
    """Return a method by its class name, in upper or lower case, or by its import path."""
    from smi.methods.base import Method

    method = import_path(name) if "." in name else __getattr__(name_of(name))
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"{name} is not a subclass of smi.methods.Method")
    return method


def name_of(name: str) -> str:
    """Return the name of a method as its class spells it; an import path stays as it is."""
    if "." in name:
        return name
    spellings = {spelling.lower(): spelling for spelling in METHOD_NAMES}
    if name.lower() in spellings:
        return spellings[name.lower()]
    hint = suggest(name, METHOD_NAMES)
    raise UserError(f"there is no method {name!r}: {hint} (or give an import path)")


def create_method(
    name: str, encoder: "Encoder", *, num_images: int | None = None, **settings: Any
) -> "Method":
    """Create a method by name; `num_images` is passed on to a method with that setting."""
    from smi.methods.base import settings_of

    method = find_method(name)
    if num_images is not None and "num_images" in settings_of(method):
        settings["num_images"] = num_images
    return method(encoder, **settings)
