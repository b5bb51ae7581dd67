"""Manage the folder of a run: create it, lock it, compare its configuration, read and write it.

config.yaml           the complete configuration: `smi pretrain DIR/config.yaml` repeats the run
run.json              facts about the run: images, device, versions, status (see `Facts`)
metrics.jsonl         one line every few steps, and one for each probe
checkpoints/last.pt   everything needed to resume; epoch-E.pt: the same after E epochs, if kept
encoder.safetensors   the trained encoder, once the run is finished
start.safetensors     the encoder before the first step, if it started from weights
best.safetensors      the encoder of the best probe so far, if `select` is best
bad-files.txt         files that could not be read, if there were any
eval/, export/        the output of `smi evaluate` and `smi export`
"""

import contextlib
import copy
import functools
import json
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from smi.config.schema import differences, plain
from smi.errors import UserError
from smi.files import (
    Source,
    check_fields,
    disk_errors,
    expand,
    is_finite,
    lock_or_fail,
    make_folder,
    read_json,
    read_yaml,
    sync,
    write_json,
    write_text,
)
from smi.terminal import announce

if TYPE_CHECKING:
    from torch import Tensor

    from smi.config.schema import Config
    from smi.data import BadFile
    from smi.nn import Encoder
    from smi.runs.encoder import Pretrained

CONFIG = "config.yaml"
START = "start.safetensors"
BEST = "best.safetensors"
# What readers of a run need of config.yaml; the command that trains it checks the rest.
CONFIG_KINDS = {
    "data": {"source": str, "resolution?": int},
    "views": {"policy": str, "size": int, "input_size?": int, "mean?": list, "std?": list},
    "encoder": {"name": str},
    "method": {"name": str},
    "optimizer?": {"name": str, "lr": (int, float)},
    "epochs": int,
    "batch_size": int,
    "seed": int,
    "accumulate?": int,
    "init?": {"source?": str},
}
# The header of the best encoder.
BEST_KINDS = {
    "about": {"step": int, "epoch": (int, float)},
    "selected": {"score": (int, float), "criterion": str, "images?": int},
}
MAX_COUNT = 10**15  # of images, steps and the like
BYTES_PER_READ = 65_536
MAX_LINE_CHARACTERS = 100_000_000
MAX_SUMMARISED_BYTES = 200_000_000  # of metrics files whose lines are kept in memory
MAX_HEADER_BYTES = 10_000_000  # of an encoder file; a damaged one may claim more
# Values of methods' settings in runs that were made before the setting existed.
EARLIER_SETTINGS: dict[str, dict[str, Any]] = {
    "MoCo": {"key_parts": 1},
    "MoCoV2": {"key_parts": 1},
    "PIRL": {"image_blur": True},
}


@dataclass(frozen=True)
class Facts:
    """Describe a run as run.json does; a field is None if the file does not have it."""

    smi: str | None = None  # version of this package
    started: str | None = None
    num_images: int | None = None
    resolution: int | None = None  # pixels per side of the stored images
    root: str | None = None  # folder of named datasets
    world_size: int | None = None
    batch_per_device: int | None = None
    steps: int | None = None
    steps_per_epoch: int | None = None
    num_views: int | None = None
    feature_dim: int | None = None
    parameters: int | None = None  # trained parameters
    encoder_parameters: int | None = None
    peak_lr: list[float] | None = None  # one per parameter group
    schedule: str | None = None
    precision: str | None = None
    compiled: bool | None = None
    views: str | None = None  # backend of the augmentations
    policy: str | None = None
    device: str | None = None
    versions: dict[str, str] | None = None
    embedding_dim: int | None = None  # known after the first step
    status: str | None = None  # "training", "finished" or "stopped: REASON"
    method: dict[str, Any] | None = None  # how the method describes itself
    requested_batch_size: int | None = None  # larger than that of config.yaml if it did not fit
    requested_seconds: float | None = None  # epochs and images of config.yaml fit into these
    value_range: list[float] | None = None  # what became 0 and 255 of more than 8 bits
    world_sizes: list[list[int]] | None = None  # [steps done, processes] at the start and changes
    commit: str | None = None  # of this package, if it runs from a checkout
    recipe: str | None = None  # its name; None for a file, and in earlier versions

    @property
    def epochs(self) -> float | None:
        """Return the length of the whole run in epochs; None if it is not known."""
        return self.steps / self.steps_per_epoch if self.steps and self.steps_per_epoch else None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Facts":
        """Read a run.json of any version; unknown keys and values of a wrong type are ignored."""
        values = {}
        for name, kind in typing.get_type_hints(cls).items():
            value = raw.get(name)
            if any(_is_of_kind(value, part) for part in typing.get_args(kind)):
                values[name] = value
        return cls(**values)


class Run:
    """Read and write the folder of one run.

    run = Run("runs/mine")
    run.config, run.facts, run.metrics(), run.probes()
    encoder = run.encoder()      # a network in eval mode, with encoder.transform
    """

    def __init__(self, folder: Source):
        self.folder = expand(folder)
        if not is_run(self.folder):
            raise UserError(
                f"{self.folder} is not a run: it has no {CONFIG} "
                f"(`smi pretrain --data … --out {self.folder}` makes one)"
            )

    def __fspath__(self) -> str:
        """Return the folder: functions that take the path of a run take a Run, too."""
        return str(self.folder)

    @classmethod
    @contextlib.contextmanager
    def claim(
        cls,
        folder: str | Path,
        config: "Config",
        *,
        num_images: int,
        fresh: bool = False,
    ) -> Iterator["Run"]:
        """Make the folder of a run, or reopen it to resume, and hold its lock inside the block.

        A folder that holds steps of a different configuration is refused. With `fresh` an
        existing folder is renamed first.
        """
        folder = expand(folder)
        with contextlib.ExitStack() as stack:
            with disk_errors(f"writing to {folder}"):
                _prepare_folder(folder, fresh)
                stack.enter_context(_lock(folder))
                if has_steps(folder):
                    run = cls(folder)
                    run.require_same(config, num_images=num_images)
                else:  # also replaces the configuration of a run that never took a step
                    write_text(folder / CONFIG, config.text())
                    for name in ("run.json", START, BEST):
                        (folder / name).unlink(missing_ok=True)
                    run = cls(folder)
            yield run

    # ------------------------------------------------------------------------------ configuration

    @property
    def config(self) -> dict[str, Any]:
        """Return config.yaml as plain dictionaries."""
        path = self.folder / CONFIG
        stat = path.stat()
        return copy.deepcopy(_parse_config(path, stat.st_mtime_ns, stat.st_size))

    def resolve(self) -> "Config":
        """Return the configuration with types and defaults."""
        from smi.config.resolve import resolve

        return resolve(self.folder / CONFIG, self.earlier_settings())

    def encoder_settings(self) -> dict[str, Any]:
        """Return the arguments of `create_encoder`, if they name no code that is not trusted."""
        from smi.nn.encoders import LOADER_SETTINGS, require_trusted_network

        settings = self.config["encoder"]
        require_trusted_network(settings, self.folder / CONFIG)
        return {key: value for key, value in settings.items() if key not in LOADER_SETTINGS}

    def earlier_settings(self) -> dict[str, Any]:
        """Return what this run did where config.yaml is of a version without the setting."""
        from smi.data.sources import ARRAY_DATASETS

        config = self.config
        overrides: dict[str, Any] = {}
        if "keep" not in config["data"] and config["data"]["source"] not in ARRAY_DATASETS:
            overrides["data.keep"] = "square"
        for name, value in EARLIER_SETTINGS.get(config["method"]["name"], {}).items():
            if name not in config["method"]:
                overrides[f"method.{name}"] = value
        if "sync_batch_norm" not in config and (self.facts.world_size or 1) > 1:
            overrides["sync_batch_norm"] = False
        return overrides

    def differences(self, config: "Config", *, num_images: int | None = None) -> list[str]:
        """Describe how a configuration and its images differ from those of this run."""
        changes = differences(
            {**plain(self.resolve()), "methods": {}},  # those of methods that it does not train
            {**plain(config), "methods": {}},
        )
        facts = self.facts
        if facts.requested_batch_size == config.batch_size:  # halved, because it did not fit
            changes = [change for change in changes if not change.startswith("batch_size ")]
        if facts.precision == config.precision:  # auto in the folder has chosen the requested one
            changes = [change for change in changes if not change.startswith("precision ")]
        if None not in (facts.num_images, num_images) and facts.num_images != num_images:
            changes.append(f"num_images is {facts.num_images} in the folder, {num_images} now")
        return changes

    def require_same(self, config: "Config", *, num_images: int) -> None:
        """Raise a UserError if the run was created with a different configuration."""
        changes = self.differences(config, num_images=num_images)
        if self.finished and changes and all(c.startswith(("epochs ", "steps ")) for c in changes):
            raise UserError(
                f"{self.folder} is finished, and its learning rate has fallen to its end "
                f"({'; '.join(changes)}). To train longer, start another run from its encoder, "
                f"with a warm-up and a schedule of its own: --init {self.folder} --out DIR"
            )
        if changes:
            raise UserError(
                f"{self.folder} was created with a different configuration "
                f"({'; '.join(changes)}). "
                "Use the same settings, another --out, or --fresh to start over."
            )

    @property
    def init_source(self) -> str | None:
        """Return the weights that the run started from, by name; None if from scratch."""
        source = (self.config.get("init") or {}).get("source")
        return None if source is None else str(source)

    @property
    def normalization(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return the mean and std per channel that normalise the encoder's input in [0, 1]."""
        from smi.views import policy

        views = self.config["views"]
        recipe = policy(views["policy"])
        return tuple(views.get("mean") or recipe.mean), tuple(views.get("std") or recipe.std)

    # -------------------------------------------------------------------------------------- facts

    @property
    def _raw_facts(self) -> dict[str, Any]:
        """Return run.json as a plain dictionary, empty if there is none."""
        path = self.folder / "run.json"
        return read_json(path) if path.is_file() else {}

    @property
    def facts(self) -> Facts:
        """Return run.json with types."""
        return Facts.parse(self._raw_facts)

    def fitting_batch_size(self, requested: int) -> int:
        """Return the batch size of this run if it was halved from the requested one."""
        halved = self.facts.requested_batch_size == requested
        return int(self.config["batch_size"]) if halved else requested

    @property
    def finished(self) -> bool:
        """Return whether the last step was taken."""
        return self.facts.status == "finished"

    def write_facts(self, facts: Facts) -> None:
        """Write run.json."""
        write_json(self.folder / "run.json", asdict(facts))

    def set_status(self, status: str) -> None:
        """Change the status in run.json and keep the other facts."""
        self.write_facts(replace(self.facts, status=status))

    def epoch(self, step: int) -> float | None:
        """Convert a number of steps to epochs; None if run.json does not say how."""
        steps_per_epoch = self.facts.steps_per_epoch
        return step / steps_per_epoch if steps_per_epoch else None

    # ------------------------------------------------------------------------------------ metrics

    def lines(self) -> list[dict[str, Any]]:
        """Parse metrics.jsonl, skipping a last line that is still being written."""
        return list(self.iterate_lines())

    def iterate_lines(self) -> Iterator[dict[str, Any]]:
        """Parse metrics.jsonl line by line, so that a long run does not fill the memory."""
        if not self._metrics.is_file():
            return
        with self._metrics.open(encoding="utf-8", errors="replace") as file:
            while text := file.readline(MAX_LINE_CHARACTERS):
                if not text.endswith("\n"):  # still being written, or too long
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):  # cut short, or damaged
                    continue
                if _is_line(line):
                    yield line

    def metrics(self, *, per_step: bool = True) -> list[dict[str, Any]]:
        """Return the lines of training steps.

        per_step: with the values of every step. Without them, lines are parsed once for many calls.
        """
        lines = self.iterate_lines() if per_step else self._summaries()
        return [line for line in lines if line.get("loss") is not None]

    def probes(self) -> list[dict[str, Any]]:
        """Return the lines of probes."""
        return [line for line in self._summaries() if "probe" in line]

    def _summaries(self) -> list[dict[str, Any]]:
        """Return all lines without the values of every step: a report asks for them often."""
        if not self._metrics.is_file():
            return []
        stat = self._metrics.stat()
        version = stat.st_mtime_ns, stat.st_size
        path = self._metrics.absolute()
        if path in _summaries and _summaries[path][0] == version:
            return _summaries[path][1]
        lines = [
            {name: value for name, value in line.items() if name != "per_step"}
            for line in self.iterate_lines()
        ]
        _summaries.pop(path, None)
        _summaries[path] = version, lines
        while sum(size for (_, size), _ in _summaries.values()) > MAX_SUMMARISED_BYTES:
            del _summaries[next(iter(_summaries))]  # the oldest
        return lines

    def open_metrics(self) -> TextIO:
        """Open metrics.jsonl to append lines."""
        return self._metrics.open("a", encoding="utf-8")

    def cut_metrics(self, position: int) -> None:
        """Drop the metrics after byte `position`: the steps after a checkpoint are repeated."""
        if not self._metrics.is_file():
            return
        with self._metrics.open("r+b") as file:
            # A crash of the machine may have left less than `position`, and half a line.
            end = min(position, file.seek(0, os.SEEK_END))
            while end > 0:
                start = max(0, end - BYTES_PER_READ)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            file.truncate(end)

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    # ------------------------------------------------------------------------------------ weights

    @property
    def checkpoint(self) -> Path:
        """Return the path of the last checkpoint."""
        return self.folder / "checkpoints" / "last.pt"

    @property
    def best(self) -> Path:
        """Return the path of the encoder of the best probe; only runs that select it have it."""
        return self.folder / BEST

    def best_header(self) -> dict[str, Any] | None:
        """Return the header of the best encoder, with its step and score; None if there is none.

        It is JSON after eight bytes with the length, so reading it needs no torch.
        """
        try:
            with self.best.open("rb") as file:
                num_bytes = min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES)
                header = json.loads(json.loads(file.read(num_bytes))["__metadata__"]["smi"])
            check_fields(header, BEST_KINDS, self.best)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None  # missing, or not ours
        best: dict[str, Any] = header
        return best

    @property
    def start(self) -> Path:
        """Return the path of the encoder before the first step, if it started from weights."""
        return self.folder / START

    def kept_checkpoint(self, epoch: float) -> Path:
        """Return the path of the checkpoint that is kept after some epochs (log.keep_every)."""
        return self.checkpoint.with_name(f"epoch-{epoch:g}.pt")

    def state(self, epoch: float | None = None) -> dict[str, Any]:
        """Load the last checkpoint, or the one kept at an epoch: `step`, `method` and more."""
        from smi.runs.checkpoint import load

        path = self.checkpoint if epoch is None else self.kept_checkpoint(epoch)
        if not path.is_file():
            when = "yet" if epoch is None else f"of epoch {epoch:g}"
            raise UserError(f"{self.folder} has no checkpoint {when}")
        return load(path)

    @property
    def exported_encoder(self) -> str:
        """Return the name of the encoder that the method exports: DINO's is its teacher's."""
        from smi.methods.description import MethodDescription

        return MethodDescription.parse(self.facts.method or {}).exported_encoder

    def encoder(
        self, state: Mapping[str, Any] | None = None, *, student: bool = False
    ) -> "Pretrained":
        """Load the encoder in eval mode, with the weights of `state` or the last checkpoint.

        Its `transform` makes its input. student: the encoder that the optimizer trains, also where
        the method exports another one, as DINO does.
        """
        from smi.runs.encoder import load_checkpoint

        return load_checkpoint(self, self.state() if state is None else state, student=student)

    def build_encoder(self, state: Mapping[str, Any], *, student: bool = False) -> "Encoder":
        """Build the encoder of a checkpoint in eval mode, without its preprocessing."""
        from smi.nn import create_encoder
        from smi.nn.encoders import require_size
        from smi.runs.checkpoint import does_not_fit

        settings = self.encoder_settings()
        weights = state["method"]
        prefix = "encoder." if student else f"{self.exported_encoder}."
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in weights.items()
            if name.startswith(prefix)
        }
        require_size(settings, {name: list(tensor.shape) for name, tensor in own.items()})
        encoder = create_encoder(**settings, image_size=self.config["views"]["size"])
        try:
            encoder.load_state_dict(own)
        except RuntimeError as error:
            raise does_not_fit(self.checkpoint, error) from error
        return encoder.eval()

    def write_start(self, weights: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> None:
        """Write start.safetensors, unless it is there."""
        from smi.runs.checkpoint import save_encoder

        if not self.start.is_file():
            save_encoder(self.start, weights, header)

    def finish(self, weights: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> None:
        """Write encoder.safetensors and set the status to finished."""
        from smi.runs.checkpoint import save_encoder

        save_encoder(self.folder / "encoder.safetensors", weights, header)
        self.set_status("finished")

    def write_bad_files(self, bad: "Sequence[BadFile]") -> None:
        """Write bad-files.txt if there are unreadable files."""
        from smi.data import write_bad

        if bad:
            write_bad(self.folder / "bad-files.txt", bad)

    def __repr__(self) -> str:
        from smi.runs.names import probe_text

        probes = self.probes()
        probe = f", {probe_text(probes[-1]['probe'])}" if probes else ""
        metrics = self.metrics(per_step=False)
        steps = metrics[-1]["step"] if metrics else 0
        unfinished = "" if self.finished else ", unfinished"
        method = self.config["method"]["name"]
        return f"Run({str(self.folder)!r}: {method}, {steps:,} steps{unfinished}{probe})"


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return (folder / CONFIG).is_file()


def _prepare_folder(folder: Path, fresh: bool) -> None:
    """Make the folder, or check that an existing one is a run or empty."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder to write the run to")
    if fresh and folder.exists():
        with _lock(folder):
            announce(f"moved {folder} to {_move_aside(folder)}")
    written_before_config = {".lock", "checkpoints", "run.json", "metrics.jsonl"}
    if folder.is_dir() and not is_run(folder):
        for path in folder.iterdir():
            if path.name not in written_before_config and path.suffix != ".partial":
                raise UserError(
                    f"{folder} is not a run and is not empty: "
                    "give another folder, or --fresh to rename it"
                )
    make_folder(folder / "checkpoints")


def has_steps(folder: Path) -> bool:
    """Return whether a run in this folder has taken a step; a probe may come before the first."""
    if not is_run(folder):
        return False
    run = Run(folder)
    saved = run.checkpoint.is_file() and run.checkpoint.stat().st_size > 0
    return saved or any(line.get("step") for line in run.iterate_lines())


def _lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a run's folder, or fail if another process trains into it."""
    return lock_or_fail(folder / ".lock", f"another process is training into {folder}")


def _move_aside(folder: Path) -> Path:
    """Rename a folder to the first free name with a number appended."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(target)
    sync(target.parent)
    return target


# By file: its time of change and size, and its lines without the values of every step.
_summaries: dict[Path, tuple[tuple[int, int], list[dict[str, Any]]]] = {}


@functools.lru_cache(maxsize=512)
def _parse_config(path: Path, changed_ns: int, num_bytes: int) -> dict[str, Any]:
    """Parse config.yaml once per version of the file: figures ask often, and YAML is slow."""
    raw = read_yaml(path)
    check_fields(raw, CONFIG_KINDS, path)
    return raw


def _is_of_kind(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind of `Facts`, with all values inside it.

    Numbers are counts, sizes and the like: not negative, except in lists, and not too large.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_is_element(v, arguments[0]) for v in value)
    if origin is dict:
        is_any = arguments[1] is Any
        return isinstance(value, dict) and (
            is_any or all(isinstance(v, arguments[1]) for v in value.values())
        )
    if kind in (int, float):
        return _is_element(value, kind) and value >= 0
    return isinstance(value, kind)


def _is_element(value: Any, kind: Any) -> bool:
    if kind is float:
        return is_finite(value)
    if kind is int:
        return is_finite(value) and isinstance(value, int) and abs(value) <= MAX_COUNT
    return _is_of_kind(value, kind)


def _is_line(line: Any) -> bool:
    """Return whether a value is a line of metrics: of a step, or of a probe.

    Values are numbers or null, in `per_step` lists of them; a probe also has a name and a section.
    """
    if not isinstance(line, dict) or not _is_element(line.get("step"), int) or line["step"] < 0:
        return False
    for name, value in line.items():
        if name == "per_step":
            fits = isinstance(value, dict) and all(
                isinstance(v, list) and all(map(_is_number, v)) for v in value.values()
            )
        elif name == "probe":
            fits = isinstance(value, dict) and all(
                isinstance(v, str) or _is_number(v) or _is_section(v) for v in value.values()
            )
        else:
            fits = _is_section(value) if name in ("terms", "timing") else _is_number(value)
        if not fits:
            return False
    return True


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_number(value: Any) -> bool:
    """Return whether a value of metrics is a number; NaN and infinity may be in earlier runs."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= MAX_COUNT
    return value is None or isinstance(value, float)
