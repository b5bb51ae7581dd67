"""Things by import path: how a user's own encoder or method is found."""

import importlib
import os
import sys
from typing import Any

from smi.errors import UserError


def import_path(path: str) -> Any:
    """`package.module.Name`, also from the folder one works in."""
    module, _, name = path.rpartition(".")
    if os.getcwd() not in sys.path:  # as `python -m` has it; the installed command does not
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} cannot be imported: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise UserError(f"{path} cannot be imported: {module} has no {name!r}") from error
