"""List recipes, methods, encoders, runs or settings, for `smi list`.

print(list_things("runs", "runs").text())
"""

import inspect
import re
import time
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.files import expand
from smi.tables import NONE, Table
from smi.terminal import duration, printable

THINGS = ("recipes", "methods", "encoders", "runs", "settings")
MAX_DEPTH = 4  # of the folders below which runs are searched


def list_things(what: str, name: str | None = None, *, image_size: int = 32) -> Any:
    """List things by their kind; `text()` and `plain()` of the result print it.

    what: one of THINGS. name: a method, to list its settings; the folder of runs, "runs" if it is
    None; the recipe of settings. image_size: of the views that encoders are timed with.
    """
    if what in ("recipes", "encoders") and name is not None:
        raise UserError(f"`smi list {what}` takes no name, not {name!r}")
    if what == "methods":
        from smi.methods.catalogue import describe_methods

        return describe_methods(name)
    if what == "encoders":
        from smi.nn.catalogue import list_encoders

        return list_encoders(image_size=image_size)
    if what == "runs":
        return list_runs(name or "runs")
    if what == "settings":
        return list_settings(name)
    from smi.config.schema import list_recipes

    return list_recipes()


# -------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class RunRow:
    """Describe one run."""

    folder: str
    method: str
    data: str
    status: str
    epoch: float | None
    epochs: float | None
    score: str
    seconds_ago: float


@dataclass(frozen=True)
class RunList:
    """Hold the runs below a folder, the latest first."""

    folder: str
    runs: list[RunRow]

    def text(self) -> str:
        """Return a table for a terminal."""
        if not self.runs:
            return f"there are no runs below {printable(self.folder)}"
        cells = [
            [
                printable(row.folder),
                printable(row.method),
                printable(row.data),
                printable(row.status.partition(":")[0]),
                NONE if row.epoch is None else f"{row.epoch:.3g} of {row.epochs or row.epoch:.3g}",
                row.score or NONE,
                f"{duration(row.seconds_ago)} ago",
            ]
            for row in self.runs
        ]
        headers = ["Run", "Method", "Images", "Status", "Epoch", "Last probe", "Changed"]
        return Table.of(headers, cells).text()

    def plain(self) -> dict[str, Any]:
        """Return one dictionary per run."""
        return asdict(self)


def list_runs(folder: str | Path) -> RunList:
    """Describe the runs below a folder; those that are damaged say so."""
    place = expand(folder)
    if not place.is_dir():
        raise UserError(f"there is no folder {place}: name the folder of your runs")
    configs = [
        path
        for depth in range(MAX_DEPTH + 1)
        for path in place.glob("/".join(["*"] * depth + ["config.yaml"]))
    ]
    rows = [_describe(path.parent, place) for path in configs]
    return RunList(str(folder), sorted(rows, key=lambda row: row.seconds_ago))


def _describe(folder: Path, place: Path) -> RunRow:
    from smi.runs.names import dataset_name, method_name, probe_text
    from smi.runs.run import Run

    files = (folder / name for name in ("metrics.jsonl", "config.yaml"))
    changed = max(file.stat().st_mtime for file in files if file.exists())
    ago = max(0.0, time.time() - changed)
    shown = str(folder.relative_to(place)) if folder != place else str(folder)
    try:
        run = Run(folder)
        lines, probes = run.metrics(), run.probes()
        return RunRow(
            shown,
            method_name(run),
            dataset_name(run),
            run.facts.status or "unknown",
            lines[-1].get("epoch") if lines else None,
            run.facts.epochs,
            probe_text(probes[-1]["probe"]) if probes else "",
            ago,
        )
    except (UserError, OSError, LookupError, TypeError):
        return RunRow(shown, NONE, NONE, "damaged", None, None, "", ago)


# ---------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class SettingRow:
    """Describe one setting of a recipe."""

    setting: str
    value: Any
    meaning: str


@dataclass(frozen=True)
class SettingList:
    """Hold every setting of a recipe, with its value and its meaning."""

    recipe: str
    settings: list[SettingRow]

    def text(self) -> str:
        """Return a line for each setting: its value, and what it means."""
        width = max(len(f"{row.setting} = {_shown(row.value)}") for row in self.settings)
        return "\n".join(
            f"{f'{row.setting} = {_shown(row.value)}':<{width}}  {row.meaning}".rstrip()
            for row in self.settings
        )

    def plain(self) -> dict[str, Any]:
        """Return one dictionary per setting."""
        return asdict(self)


def list_settings(recipe: str | None) -> SettingList:
    """Return every setting of a recipe; `smi list methods NAME` explains those of a method."""
    from smi.config.resolve import resolve
    from smi.config.schema import RECIPES, flat, plain

    if recipe is None:
        raise UserError(f"name a recipe: {', '.join(RECIPES)}, or a YAML file")
    draft = {"data.source": "DIR", "views.size": 224}  # for recipes without images of their own
    config = plain(resolve(recipe, None, draft))
    meanings = setting_meanings() | method_meanings(config["method"]["name"])
    return SettingList(
        recipe,
        [
            SettingRow(name, value, meanings.get(name) or meanings.get(name.partition(".")[0], ""))
            for name, value in flat({**config, "methods": {}})
        ],
    )


def method_meanings(name: str) -> dict[str, str]:
    """Return the meaning of each setting of a method, from the docstring of its class."""
    from smi.methods.catalogue import describe_method

    about = " ".join(describe_method(name).about.split())
    _, *parts = re.split(r"(?:^|(?<=[.;]) )([a-z_]\w*(?:, [a-z_]\w*)*): ", about)
    return {
        f"method.{setting}": meaning
        for settings, meaning in zip(parts[::2], parts[1::2], strict=True)
        for setting in settings.split(", ")
    }


def setting_meanings() -> dict[str, str]:
    """Return the comment behind each setting in the schema, by dotted name."""
    from smi.config import schema

    meanings = {}
    sections: dict[str, Any] = {
        f"{f.name}.": f.type for f in fields(schema.Config) if is_dataclass(f.type)
    }
    for prefix, kind in {"": schema.Config, **sections}.items():
        for line in inspect.getsource(kind).splitlines():
            if match := re.match(r"    (\w+): .*?  # (.+)$", line):
                meanings[f"{prefix}{match[1]}"] = match[2]
    return meanings


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    return str(value).lower() if isinstance(value, bool) else str(value)
