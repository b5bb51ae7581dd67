"""Files that are there whole or not at all: checkpoints, and whatever else a run writes."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.data.places import sync
from smi.errors import UserError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """`write` fills a file beside `path`, which then takes its name at once; on the disk when this returns."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        write(partial)
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """As UTF-8; what of a file's name is no text stands there as its code, which in JSON means the same."""

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")

    write_whole(path, write)


def save(path: Path, state: Mapping[str, Any]) -> None:
    write_whole(path, lambda partial: torch.save(dict(state), partial))


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Nothing but tensors and plain values is read: a checkpoint cannot run code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): move it away, or start over with --fresh") from error
    return state


def save_encoder(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """As safetensors, with what is known of it in the header: one entry, for several would be in any order."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    write_whole(path, lambda partial: save_file(tensors, partial, {"smi": json.dumps(about)}))
