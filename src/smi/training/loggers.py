"""Where else metrics go: TensorBoard and W&B, each an extra."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from smi.errors import UserError

NAMES = ("tensorboard", "wandb")


class Logger(Protocol):
    def log(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def create_loggers(
    names: Sequence[str], folder: Path, config: Mapping[str, Any], *, start: int
) -> list[Logger]:
    check_loggers(names)
    return [
        TensorBoard(folder, start) if name == "tensorboard" else WandB(folder, config)
        for name in names
    ]


def check_loggers(names: Sequence[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise UserError(f"there is no logger {name!r}: choose {' or '.join(NAMES)}")


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """A line's numbers, flat: terms/alignment, timing/images_per_second, probe/knn."""
    flat: dict[str, float] = {}
    for name, value in line.items():
        if name in ("terms", "timing", "probe"):
            flat |= {
                f"{name}/{inner}": number
                for inner, number in value.items()
                if isinstance(number, int | float)
            }
        elif isinstance(value, int | float) and name != "step":
            flat[name] = value
    return flat


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, start: int):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "TensorBoard is not installed: pip install 'smi-ssl[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def log(self, line: Mapping[str, Any]) -> None:
        for name, value in numbers(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        self._writer.close()


class WandB:
    """One W&B run for each folder, continued when the folder's training is."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise UserError("W&B is not installed: pip install 'smi-ssl[wandb]'") from error
        kept = folder / "wandb-id"
        name = kept.read_text() if kept.is_file() else secrets.token_hex(4)
        kept.write_text(name)
        self._run = wandb.init(
            id=name, resume="allow", name=folder.name, dir=str(folder), config=dict(config)
        )

    def log(self, line: Mapping[str, Any]) -> None:
        self._run.log(numbers(line), step=line["step"])

    def close(self) -> None:
        self._run.finish()
