"""Find a user's own encoder or method by its import path."""

import importlib
import os
import sys
from typing import Any

from smi.errors import UserError


def import_path(path: str) -> Any:
    """Import `package.module.Name`, also from the working directory."""
    module, _, name = path.rpartition(".")
    if not module or not name or path.startswith("."):
        raise UserError(f"{path} is not an import path: write it as package.module.Name")
    if os.getcwd() not in sys.path:  # `python -m` has it there; the installed command does not
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} cannot be imported: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise UserError(f"{path} cannot be imported: {module} has no {name!r}") from error


def refused(error: Exception, subject: str) -> UserError:
    """Turn an error of a constructor or a first pass into one sentence about `subject`."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{subject} failed: {reason[:300]}")
