"""Find a user's own encoder or method by its import path, and refuse those that a file names.

A file may come from anywhere, so it never makes code run by itself. A path that a file names is
imported only if the user named it, too, in a command or a call, or trusts files.
"""

import importlib
import os
import sys
from typing import Any

from smi.errors import UserError

_named: set[str] = set()  # import paths that the user gave to this process
_trusts_files = False


def import_path(path: str) -> Any:
    """Import `package.module.Name`, also from the working directory."""
    module, _, name = path.rpartition(".")
    if not module or not name or path.startswith("."):
        raise UserError(f"{path} is not an import path: write it as package.module.Name")
    if not {"", os.getcwd()} & set(sys.path):  # `python -m` has it; the installed command does not
        sys.path.append(os.getcwd())  # last, so that it does not hide installed packages
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} cannot be imported: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise UserError(f"{path} cannot be imported: {module} has no {name!r}") from error


def trust(*paths: str) -> None:
    """Let files name these import paths for the rest of this process; without any, all paths."""
    global _trusts_files
    _named.update(paths)
    _trusts_files = _trusts_files or not paths


def trusts_files() -> bool:
    """Return whether files may name any import path."""
    return _trusts_files


def is_trusted(path: str) -> bool:
    """Return whether a file may name this import path."""
    return _trusts_files or path in _named


def require_trust(path: str, file: object) -> None:
    """Raise a UserError if only a file, and not the user, names an import path."""
    if not is_trusted(path):
        raise UserError(
            f"{file} names code to run, {path}: if you trust this file, repeat the command with "
            "--trust (in Python: smi.trust())"
        )


def refused(error: Exception, subject: str) -> UserError:
    """Turn an error of a constructor or a first pass into one sentence about `subject`."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{subject} failed: {reason[:300]}")
