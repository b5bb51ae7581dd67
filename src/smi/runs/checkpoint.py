"""Save and load checkpoints and encoder files, each written whole or not at all."""

import copy
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from smi.errors import DiskError, UserError
from smi.files import write_whole
from smi.nn.weights import digest_of

MAX_STEPS = 10**15


def save(path: Path, state: Mapping[str, Any], keep_as: Path | None = None) -> None:
    """Save a checkpoint; under the name `keep_as` it stays when the next one replaces it.

    That name comes first: a run that is killed in between repeats the steps, and both files.
    """
    written = keep_as or path
    write_whole(written, lambda partial: _write(partial, state))

    def link(partial: Path) -> None:
        partial.unlink(missing_ok=True)
        try:
            os.link(written, partial)
        except (OSError, AttributeError):  # some file systems and systems have no hard links
            shutil.copyfile(written, partial)

    if keep_as is not None:
        write_whole(path, link)


def _write(path: Path, state: Mapping[str, Any]) -> None:
    """Write with torch.save, whose own errors do not say what the system said."""
    with path.open("wb") as file:
        recorder = _Recorder(file)
        try:
            torch.save(dict(state), recorder)  # type: ignore[arg-type]
        except RuntimeError as error:
            if recorder.error is not None:
                raise recorder.error from error
            raise


class _Recorder:
    """Write to a file, and keep the error of the system."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Write all of the content."""
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Pass on what is still in memory."""
        self._file.flush()


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
    """Load a checkpoint to the CPU, after its checksums and its parts are checked.

    Only tensors and plain values are read: it cannot run code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.save neither compresses parts nor lets them share bytes: both could be bombs.
            sizes = [item.file_size for item in archive.infolist()]
            strange = any(item.compress_type for item in archive.infolist())
            strange = strange or sum(sizes) > path.stat().st_size
            part = None if strange else archive.testzip()  # torch.load ignores the checksums
        reason = "it is not a checkpoint of a run" if strange else ""
        reason = reason if part is None else f"{part} has changed since it was written"
        state = None if reason else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        reason = _why(error)
    if not reason:
        reason = _misfit(state)
    if reason:
        raise UserError(
            f"{path} cannot be read ({reason}): move it away, or start over with --fresh"
        )
    assert isinstance(state, dict)
    return state


def does_not_fit(path: Path, error: Exception) -> UserError:
    """Return the error for a checkpoint of another method or network."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(
        f"{path} does not fit this run ({reason[:200]}): move it away, or start over with --fresh"
    )


def _why(error: Exception) -> str:
    """Return the reason in a few words; torch's own advises to read the file without safety."""
    if isinstance(error, zipfile.BadZipFile | EOFError):
        return "it is incomplete, or not a checkpoint"
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors and plain values"
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _misfit(state: Any) -> str:
    """Return what is wrong with the parts of a checkpoint; empty if nothing is."""
    if not isinstance(state, dict):
        return "it is not a checkpoint of a run"
    step = state.get("step")
    if not isinstance(step, int) or not 0 <= step <= MAX_STEPS:
        return "it does not say at which step it was written"
    weights = state.get("method")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        return "it has no weights of a method"
    if weights and not any(isinstance(value, Tensor) for value in weights.values()):
        return "it has no weights of a method"
    return ""


def save_encoder(path: Path, weights: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Save the weights of an encoder as safetensors, with `header` as JSON metadata.

    The header is a single entry, because safetensors does not keep the order of several. The bytes
    are written here: safetensors would write a file of its own first, which a kill leaves behind.
    """
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    text = json.dumps({**header, "digest": digest_of(tensors)})
    content = to_bytes(tensors, {"smi": text})

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_whole(path, write)
