"""Files that are there whole or not at all: checkpoints, and whatever else a run writes."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.files import write_whole
from smi.errors import UserError


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
