"""Plan the runs of a comparison: one row per method and swept value, one run per row and seed."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from smi.config.resolve import resolve
from smi.config.schema import SHORT, Config
from smi.device import choose_device
from smi.errors import UserError
from smi.methods import find_method, name_of, settings_of
from smi.runs.run import Run, is_run
from smi.terminal import suggest
from smi.training.budget import fitted_before
from smi.training.configure import CPU_VIEW_SIZE, FOLLOWING, configure

FAILED_STATUS = "stopped: "  # the status of a failed run begins with this


@dataclass(frozen=True)
class GridRun:
    """Describe one run of the grid and the command that makes it."""

    row: str
    method: str
    value: Any  # of the swept setting; None for a method that does not have it
    seed: int
    folder: Path
    config: Config
    arguments: tuple[str, ...]  # of the command `smi`

    @property
    def name(self) -> str:
        """Return the name of its row and its seed."""
        return f"{self.row}, seed {self.seed}"

    @property
    def command(self) -> str:
        """Return the shell command that makes the run."""
        return shlex.join(("smi", *self.arguments))

    @property
    def status(self) -> str:
        """Return the status from run.json, or nothing if the run has not started."""
        if not is_run(self.folder):
            return ""
        return Run(self.folder).facts.status or ""

    @property
    def failed(self) -> str:
        """Return why training failed, or nothing. Such a run would fail again."""
        status = self.status
        return status.removeprefix(FAILED_STATUS) if status.startswith(FAILED_STATUS) else ""

    @property
    def done(self) -> bool:
        """Return whether the run needs no more training: it finished or failed."""
        return self.status == "finished" or bool(self.failed)


@dataclass(frozen=True)
class Grid:
    """Hold all runs of a comparison, seed by seed, so that finished runs are always paired."""

    swept: str | None  # the setting that is swept, without the name of a method
    runs: tuple[GridRun, ...]

    def first(self, row: str) -> GridRun:
        """Return the first run of a row."""
        return next(run for run in self.runs if run.row == row)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds in order."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))


@dataclass(frozen=True)
class RowSettings:
    """Hold the method of a row, and its value of the swept setting."""

    method: str
    value: Any = None


def plan_grid(
    recipe: str,
    overrides: Mapping[str, Any],
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    sweep: str | None,
    folder: Path,
    arguments: Sequence[str] = (),
    device: torch.device | None = None,
) -> Grid:
    """Return the runs of a comparison, refusing settings that cannot be resolved.

    arguments: more arguments of `smi pretrain`; they are not part of a configuration.
    device: of the runs; None is the first available. The size of views may depend on it where a
    run starts from weights.
    """
    swept, rows = _rows(recipe, overrides, [name_of(name) for name in methods], sweep)
    runs = []
    started: dict[str, Config] = {}  # by row: making networks takes time, and seeds share them
    for seed in seeds:
        for name, row in rows.items():
            settings = dict(overrides)
            if row.value is not None:
                settings[f"method.{swept}"] = row.value
            requested = {**settings, "method": row.method, "seed": seed}
            config = _draft(recipe, requested)
            default = _draft(recipe, {**overrides, "method": row.method, "seed": seed})
            # a value that is the default gives the same run as no sweep, so both share a folder
            run_folder = _folder(folder, row.method if config == default else name, seed)
            from_weights = config.init.source is not None
            if from_weights or config.views.input_size is not None:
                if name not in started:
                    started[name] = _completed(recipe, requested, run_folder, device)
                config = replace(started[name], seed=seed)
            else:
                config = resolve(recipe, requested)
            if from_weights:
                settings = _with_start_settings(settings, config)
            command = (
                "pretrain",
                recipe,
                f"--method={row.method}",
                f"--seed={seed}",
                f"--out={run_folder}",
                *arguments,
                *_as_arguments(settings),
            )
            runs.append(GridRun(name, row.method, row.value, seed, run_folder, config, command))
    _check_comparable(runs)
    return Grid(swept, tuple(runs))


def with_fitted_epochs(run: GridRun, first: GridRun, seconds: float | None) -> GridRun:
    """Return a run with the epochs and images that fit into its time, as the first seed found them.

    first: the first run of the row. All seeds of a row have the same length. seconds: None for a
    comparison of equal epochs.
    """
    if not first.status:
        return run
    config = fitted_before(run.config, Run(first.folder), seconds)
    if seconds is None:
        return run
    settings = {
        "epochs": config.epochs,
        "data.images": config.data.images,
        "optimizer.warmup_epochs": config.optimizer.warmup_epochs,
    }
    arguments = [word for word in run.arguments if not word.startswith("--time=")]
    return replace(run, config=config, arguments=(*arguments, *_as_arguments(settings)))


def check_same(run: GridRun, num_images: int) -> None:
    """Refuse a folder that holds a run with other weights, settings or images."""
    if not run.status:
        return
    init = run.config.init
    digest = (Run(run.folder).config.get("init") or {}).get("digest")
    if None not in (init.digest, digest) and init.digest != digest:
        raise UserError(
            f"{run.name}: {run.folder} started from other weights (digest {digest}) than those of "
            f"{init.source} now (digest {init.digest}). All runs of a comparison start from the "
            "same weights: restore them or use another --out."
        )
    expected = num_images if run.config.data.images is None else run.config.data.images
    changes = Run(run.folder).differences(run.config, num_images=expected)
    if changes:
        raise UserError(
            f"{run.name}: {run.folder} was created with a different configuration "
            f"({'; '.join(changes)}). Use the same settings or another --out."
        )


# ------------------------------------------------------------------------------ starting weights


def _draft(recipe: str, requested: Mapping[str, Any]) -> Config:
    """Resolve a configuration before its weights are read, which may decide the size of views."""
    return resolve(recipe, requested, {"views.size": CPU_VIEW_SIZE})


def _completed(
    recipe: str, requested: Mapping[str, Any], folder: Path, device: torch.device | None
) -> Config:
    """Return the configuration of a run, as `smi pretrain` completes it.

    Weights determine the digest, and the network and the input that nobody has chosen.
    """
    chosen = choose_device() if device is None else device
    return configure(recipe, requested, folder=folder, device=chosen).config


def _with_start_settings(settings: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Name the weights by their path and digest, and what follows from them: no run has others."""
    others = {key: value for key, value in settings.items() if SHORT.get(key, key) != "init.source"}
    following = {f"{part}.{name}": getattr(getattr(config, part), name) for part, name in FOLLOWING}
    chosen = {key: value for key, value in following.items() if value is not None}
    start = {"init.source": config.init.source, "init.digest": config.init.digest}
    return {**others, **chosen, **start}


def _check_comparable(runs: Sequence[GridRun]) -> None:
    """Refuse methods that would have other whole images, or start from different weights."""
    for run in runs[1:]:
        digests = [planned.config.init.digest for planned in (runs[0], run)]
        sizes = [planned.config.views.whole_size for planned in (runs[0], run)]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"{runs[0].row} would be given images of {sizes[0]} pixels and {run.row} of "
                f"{sizes[1]}, so they cannot be compared: give views.size and views.input_size"
            )
        if digests[0] != digests[1]:
            raise UserError(
                f"{runs[0].row} and {run.row} would start from different weights (digests "
                f"{digests[0]} and {digests[1]}), so they cannot be compared: give all methods the "
                "same encoder and views.size"
            )


# ------------------------------------------------------------------------------ rows of a sweep


def _rows(
    recipe: str, overrides: Mapping[str, Any], methods: Sequence[str], sweep: str | None
) -> tuple[str | None, dict[str, RowSettings]]:
    """Return the swept setting, and the method and value of each row by its name."""
    if sweep is None:
        return None, {method: RowSettings(method) for method in methods}
    key, values = _parse_sweep(sweep)
    key, settings = _methods_with_setting(key, methods)
    rows: dict[str, RowSettings] = {}
    for method in methods:
        if key not in settings[method]:
            rows[method] = RowSettings(method)
            continue
        for text in values:
            # resolving turns 0.10 and 0.1 into one value
            config = _draft(recipe, {**overrides, "method": method, f"method.{key}": text})
            value = config.method[key]
            if value is None:
                raise UserError(
                    f"{key}={text} cannot be swept, because it means that {key} is not set. "
                    "Leave it out of the sweep and compare it separately."
                )
            rows[f"{method}, {key}={_as_text(value)}"] = RowSettings(method, value)
    return key, rows


def _methods_with_setting(key: str, methods: Sequence[str]) -> tuple[str, dict[str, Sequence[str]]]:
    """Return the bare name of a setting, and the settings of each method that may be swept."""
    settings: dict[str, Sequence[str]] = {
        method: [name for name in settings_of(find_method(method)) if name != "num_images"]
        for method in methods
    }
    method, _, bare = key.rpartition(".")
    owners = " or ".join(settings)
    if method in settings:  # SMI.redundancy_weight is swept for SMI only
        key = bare
        owners = method
        settings = {name: settings[name] if name == method else [] for name in methods}
    options = list(dict.fromkeys(name for names in settings.values() for name in names))
    if key not in options:
        raise UserError(f"{key} is not a setting of {owners}: {suggest(key, options)}")
    return key, settings


def _parse_sweep(sweep: str) -> tuple[str, list[str]]:
    """Split "setting=value,value" into the setting and its values."""
    key, equals, rest = sweep.partition("=")
    values = re.split(r",(?![^\[]*\])", rest)  # a list in brackets is one value
    if not (key and equals and all(values)):
        raise UserError(
            "a sweep is a setting and its values, for example redundancy_weight=0.01,0.1, "
            f"not {sweep!r}"
        )
    return key.strip().removeprefix("method."), [value.strip() for value in values]


# ------------------------------------------------------------------------------ folders, commands


def _folder(folder: Path, name: str, seed: int) -> Path:
    """Return the folder of a run, named after its row."""
    safe = re.sub(r"[^\w.,=+\[\]-]+", "_", name.replace(", ", ","))
    return folder / "runs" / safe / f"seed-{seed}"


def _as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as arguments of `smi pretrain`."""
    return [
        f"--{key}={_as_text(value)}" if "." in key else f"{key}={_as_text(value)}"
        for key, value in settings.items()
    ]


def _as_text(value: Any) -> str:
    """Write the value of a setting as the command line reads it."""
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value, separators=(",", ":"))
