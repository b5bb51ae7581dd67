"""Which runs a comparison is made of: a row for each method and value of what is swept, a run for each of its seeds."""

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smi.config.resolve import resolve
from smi.config.schema import Config
from smi.errors import UserError
from smi.methods import find_method, name_of, settings_of
from smi.runs.run import Run


@dataclass(frozen=True)
class Job:
    """A run of the grid."""

    row: str
    method: str
    value: Any  # of what is swept; None for a method that has no such setting
    seed: int
    folder: Path
    config: Config
    words: tuple[str, ...]  # of the command that makes it

    @property
    def name(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def command(self) -> str:
        return shlex.join(("smi", *self.words))

    @property
    def status(self) -> str:
        """As run.json has it; nothing for a run that has not begun."""
        return (
            str(Run(self.folder).about.get("status", ""))
            if (self.folder / "config.yaml").is_file()
            else ""
        )

    @property
    def failed(self) -> str:
        """Why training ended early; it would again."""
        return self.status.removeprefix("stopped: ") if self.status.startswith("stopped: ") else ""

    @property
    def done(self) -> bool:
        return self.status == "finished" or bool(self.failed)


def plan(
    recipe: str,
    asked: Mapping[str, Any],
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    sweep: str | None,
    folder: Path,
    words: Sequence[str] = (),
) -> tuple[str | None, list[Job]]:
    """The setting that is swept, and every run, seed by seed, so that what is there is paired at any time.

    words: more for `smi pretrain`, about what is no part of a configuration. Whatever cannot be resolved is refused here.
    """
    key, rows = _rows(recipe, asked, [name_of(name) for name in methods], sweep)
    jobs = []
    for seed in seeds:
        for row, (method, value) in rows.items():
            settings = dict(asked) if value is None else {**asked, f"method.{key}": value}
            config = resolve(recipe, {**settings, "method": method, "seed": seed})
            own = resolve(recipe, {**asked, "method": method, "seed": seed})
            name = (
                method if config == own else row.replace(", ", ",")
            )  # the value that it has anyway is the run without a sweep
            where = folder / "runs" / re.sub(r"[^\w.,=+\[\]-]+", "_", name) / f"seed-{seed}"
            named = (f"--method={method}", f"--seed={seed}", f"--out={where}", *words)
            dotted = [
                f"{'--' if '.' in name else ''}{name}={_text(value)}"
                for name, value in settings.items()
            ]
            jobs.append(
                Job(row, method, value, seed, where, config, ("pretrain", recipe, *named, *dotted))
            )
    return key, jobs


def _rows(
    recipe: str, asked: Mapping[str, Any], methods: Sequence[str], sweep: str | None
) -> tuple[str | None, dict[str, tuple[str, Any]]]:
    """What is swept, and by the name of each row its method and value."""
    if sweep is None:
        return None, {name: (name, None) for name in methods}
    key, values = _swept(sweep)
    known = {
        name: [setting for setting in settings_of(find_method(name)) if setting != "num_images"]
        for name in methods
    }
    only, _, setting = key.rpartition(".")
    if only in known:  # SMI.redundancy_weight is for one method alone
        key, known = (
            setting,
            {name: settings if name == only else [] for name, settings in known.items()},
        )
    if not any(key in settings for settings in known.values()):
        every = list(dict.fromkeys(setting for settings in known.values() for setting in settings))
        close = difflib.get_close_matches(key, every, 1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else f"there are {', '.join(every)}"
            if every
            else "there are none"
        )
        raise UserError(
            f"{key} is not a setting of {only if only in known else ' or '.join(known)}: {hint}"
        )
    rows: dict[str, tuple[str, Any]] = {}
    for name, settings in known.items():
        if key not in settings:
            rows[name] = (name, None)
            continue
        for text in values:
            value = resolve(recipe, {**asked, "method": name, f"method.{key}": text}).method[
                key
            ]  # 0.10 and 0.1 are one
            if value is None:
                raise UserError(
                    f"{key}={text} is no value to sweep over: leave it out, and run it as a comparison of its own"
                )
            rows[f"{name}, {key}={_text(value)}"] = (name, value)
    return key, rows


def _swept(sweep: str) -> tuple[str, list[str]]:
    key, equals, rest = sweep.partition("=")
    values = re.split(r",(?![^\[]*\])", rest)  # lists in brackets are one value
    if not (key and equals and all(values)):
        raise UserError(
            f"a sweep is a setting and its values, redundancy_weight=0.01,0.1: not {sweep!r}"
        )
    return key.strip().removeprefix("method."), [value.strip() for value in values]


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else str(value)
        if isinstance(value, Path)
        else json.dumps(value, separators=(",", ":"))
    )


def check_same(job: Job, num_images: int) -> None:
    """What a folder has begun is not mixed with something else."""
    if not job.status:
        return
    run = Run(job.folder)
    if changes := run.differences(job.config, num_images=num_images):
        raise UserError(
            f"{job.name}: {job.folder} was created with a different configuration "
            f"({'; '.join(changes)}). Use the same settings, or another --out."
        )
