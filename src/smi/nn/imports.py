"""Things by import path: how a user's own encoder or method is found."""

import importlib
import os
import sys
from typing import Any

from smi.errors import UserError


def import_path(path: str) -> Any:
    """`package.module.Name`, also from the folder one works in."""
    module, _, name = path.rpartition(".")
    if not module or not name or path.startswith("."):
        raise UserError(f"{path} is no import path: it is package.module.Name")
    if os.getcwd() not in sys.path:  # as `python -m` has it; the installed command does not
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} cannot be imported: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise UserError(f"{path} cannot be imported: {module} has no {name!r}") from error


def refused(error: Exception, what: str) -> UserError:
    """What a constructor or a first pass says of arguments that do not suit it, as a sentence."""
    said = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{what} does not work like this: {said[:300]}")
