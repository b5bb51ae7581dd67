"""Send metrics to TensorBoard or W&B. Each needs an extra of the package."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from smi.errors import UserError
from smi.files import write_text
from smi.terminal import suggest

LOGGER_NAMES = ("tensorboard", "wandb")


class Logger(Protocol):
    """Receive each line of metrics.jsonl."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Log one line."""

    def close(self) -> None:
        """Finish the log."""


def create_loggers(
    names: Sequence[str], folder: Path, config: Mapping[str, Any], *, start: int
) -> list[Logger]:
    """Create loggers by name; `start` is the number of steps done before."""
    check_loggers(names)
    return [
        TensorBoard(folder, start) if name == "tensorboard" else WandB(folder, config)
        for name in names
    ]


def check_loggers(names: Sequence[str]) -> None:
    """Raise a UserError for an unknown name."""
    for name in names:
        if name not in LOGGER_NAMES:
            raise UserError(f"there is no logger {name!r}: {suggest(name, LOGGER_NAMES)}")


def flat_numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Flatten the numbers of a line: terms/alignment, timing/images_per_second, probe/knn."""
    numbers: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            numbers |= {f"{name}/{inner}": number for inner, number in flat_numbers(value).items()}
        elif isinstance(value, int | float) and name != "step":
            numbers[name] = value
    return numbers


class TensorBoard:
    """Write event files to the folder of the run: `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, start: int):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "TensorBoard is not installed: pip install 'smi-ssl[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def log(self, line: Mapping[str, Any]) -> None:
        """Log one line."""
        for name, value in flat_numbers(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandB:
    """Log to one W&B run per folder, which is continued when training is resumed."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise UserError("W&B is not installed: pip install 'smi-ssl[wandb]'") from error
        id_file = folder / "wandb-id"
        run_id = id_file.read_text() if id_file.is_file() else secrets.token_hex(4)
        write_text(id_file, run_id)
        self._run = wandb.init(
            id=run_id, resume="allow", name=folder.name, dir=str(folder), config=dict(config)
        )

    def log(self, line: Mapping[str, Any]) -> None:
        """Log one line."""
        self._run.log(flat_numbers(line), step=line["step"])

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()
