"""A run's folder.

config.yaml           what was asked, complete: `smi pretrain DIR/config.yaml` repeats it
run.json              what was found: images, devices, versions, whether it is finished
metrics.jsonl         a line every few steps, and one for each probe
checkpoints/last.pt   everything to go on from
encoder.safetensors   what it was for, once it is finished
bad-files.txt         files that could not be read, if there were any
eval/, export/        what `smi evaluate` found, what `smi export` wrote
"""

import contextlib
import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from smi.errors import UserError

if TYPE_CHECKING:
    from smi.nn import Encoder


class Run:
    """run = Run("runs/mine"): its `config`, `metrics()`, `probes()` and, as a network in eval mode, `encoder()`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).expanduser()
        if not (self.folder / "config.yaml").is_file():
            raise UserError(f"{self.folder} is not a run: it has no config.yaml (`smi pretrain --data … --out {self.folder}` makes one)")

    @property
    def config(self) -> dict[str, Any]:
        path = self.folder / "config.yaml"
        about = path.stat()
        return copy.deepcopy(_parsed(path, about.st_mtime_ns, about.st_size))

    @property
    def about(self) -> dict[str, Any]:
        """What was found: run.json."""
        path = self.folder / "run.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}") from error
        return found

    @property
    def finished(self) -> bool:
        return self.about.get("status") == "finished"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "last.pt"

    @property
    def normalization(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Mean and std of each channel, of pixels between 0 and 1: what the encoder's input is normalised by."""
        from smi.views import policy

        found = policy(self.config["views"]["policy"])
        return found.mean, found.std

    def lines(self) -> list[dict[str, Any]]:
        """Of metrics.jsonl; one that is still being written is left out."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = []
        for line in text[: text.rfind("\n") + 1].splitlines():
            with contextlib.suppress(ValueError):  # cut short by a crash
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]

    def metrics(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("loss") is not None]

    def probes(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "probe" in line]

    def state(self) -> dict[str, Any]:
        """The last checkpoint: `step`, `method` and more."""
        from smi.runs.checkpoint import load

        if not self.checkpoint.is_file():
            raise UserError(f"{self.folder} has no checkpoint yet")
        return load(self.checkpoint)

    def epoch(self, step: int) -> float | None:
        """How many epochs that many steps were."""
        each = self.about.get("steps_per_epoch")
        return step / each if each else None

    def encoder(self, state: Mapping[str, Any] | None = None) -> "Encoder":
        """The network with the weights of the last checkpoint, in eval mode; its input is normalised as `normalization` says."""
        from smi.nn import create_encoder

        weights = (self.state() if state is None else state)["method"]
        config = self.config
        encoder = create_encoder(**config["encoder"], image_size=config["views"]["size"])
        encoder.load_state_dict({name.removeprefix("encoder."): w for name, w in weights.items() if name.startswith("encoder.")})
        return encoder.eval()

    def __repr__(self) -> str:
        probes = self.probes()
        probe = f", kNN {probes[-1]['probe']['knn']:.1%}" if probes else ""
        steps = self.metrics()[-1]["step"] if self.metrics() else 0
        return (
            f"Run({str(self.folder)!r}: {self.config['method']['name']}, {steps:,} steps{'' if self.finished else ', unfinished'}{probe})"
        )


@functools.lru_cache(maxsize=512)
def _parsed(path: Path, changed: int, size: int) -> dict[str, Any]:
    """Kept while the file is as it was: figures of many runs ask many times, and YAML is slow to read."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it has no settings")
    return found


def move_aside(folder: Path) -> Path:
    """To the first free name with a number behind it."""
    number = 1
    while (other := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return folder.rename(other)


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    from smi.files import write_text

    write_text(folder / "run.json", json.dumps(about, indent=2) + "\n")
