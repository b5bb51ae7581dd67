"""Save and load checkpoints and encoder files, each written whole or not at all."""

import copy
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smi.errors import UserError
from smi.files import write_whole


def save(path: Path, state: Mapping[str, Any], keep_as: Path | None = None) -> None:
    """Save a checkpoint; under the name `keep_as` it stays when the next one replaces it."""
    write_whole(path, lambda partial: torch.save(dict(state), partial))

    def link(partial: Path) -> None:
        partial.unlink(missing_ok=True)
        try:
            os.link(path, partial)
        except OSError:  # some file systems have no hard links
            shutil.copyfile(path, partial)

    if keep_as is not None:
        write_whole(keep_as, link)


def snapshot(state: Any) -> Any:
    """Copy all tensors of nested values to the CPU, so that training can change the originals."""
    copied = _copy(state)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.current_stream().synchronize()  # once, not after each tensor
    return copied


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        on_cuda = value.device.type == "cuda"
        target = torch.empty_like(value, device="cpu", pin_memory=on_cuda, requires_grad=False)
        return target.copy_(value.detach(), non_blocking=on_cuda)
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the versions that state_dict() attaches to its dictionary
        for key in copied:
            copied[key] = _copy(copied[key])
        return copied
    return [_copy(item) for item in value] if isinstance(value, list) else value


class Writer:
    """Write checkpoints in a thread, one at a time, while training continues.

    An error of the thread is raised by the next call of `check`, `start` or `wait`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="smi-checkpoint")
        self._writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def start(self, path: Path, state: Mapping[str, Any], keep_as: Path | None = None) -> None:
        """Start to write a snapshot, after the one that is being written."""
        self.wait()
        self._writing = self._thread.submit(save, path, state, keep_as)

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """End the thread, after the checkpoint that it is writing."""
        self._thread.shutdown()


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint to the CPU. Only tensors and plain values are read: it cannot run code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
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
