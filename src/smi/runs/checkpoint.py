"""Save and load checkpoints and encoder files, each written whole or not at all."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.errors import UserError
from smi.files import write_whole


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Save a checkpoint."""
    write_whole(path, lambda partial: torch.save(dict(state), partial))


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Load a checkpoint. Only tensors and plain values are read, so it cannot run code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} cannot be read ({reason}): move it away, or start over with --fresh"
        ) from error
    return state


def save_encoder(path: Path, weights: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Save the weights of an encoder as safetensors, with `header` as JSON metadata.

    The header is a single entry, because safetensors does not keep the order of several.
    """
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    write_whole(path, lambda partial: save_file(tensors, partial, {"smi": json.dumps(header)}))
