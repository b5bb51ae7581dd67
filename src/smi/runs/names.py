"""Names of runs, rows and datasets, as tables and figures print them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smi.config.schema import flat
from smi.errors import UserError
from smi.runs.run import Run

SPELT = {"BarlowTwins": "Barlow Twins", "MoCoV2": "MoCo v2"}


def data_of(run: Run) -> str:
    """A set's name, or that of the folder."""
    source = str(run.config["data"]["source"])
    return Path(source).name or source


def method_of(run: Run) -> str:
    name = str(run.config["method"]["name"])
    return SPELT.get(name, name.rsplit(".", 1)[-1])


def spelt(name: str) -> str:
    """The name of a row of a comparison."""
    method, comma, rest = name.partition(",")
    return SPELT.get(method, method.rsplit(".", 1)[-1]) + comma + rest.replace("redundancy_weight=", "λ = ")


def called(runs: Sequence[Run], *, by_data: bool = True) -> dict[str, Run]:
    """By method, and by whatever else tells those of one method apart: λ, encoder, epochs, another setting, seed; at last their folders.

    by_data: runs on different images say which.
    """
    folders = [run.folder.resolve() for run in runs]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise UserError(f"{runs[i].folder} is given twice")
    return dict(zip(names_of(runs, by_data=by_data), runs, strict=True))


def names_of(runs: Sequence[Run], *, by_data: bool = True) -> list[str]:
    """Without by_data, runs on different images may be called the same: what tells some apart on one set is said on all of them."""
    names = [method_of(run) for run in runs]
    sets = [data_of(run) for run in runs]
    facts: list[list[str]] = []
    if by_data and len(set(sets)) > 1:
        names = [f"{name}, {data}" for name, data in zip(names, sets, strict=True)]
    facts.append([f"λ = {weight:g}" if (weight := weight_of(run)) is not None else "" for run in runs])
    facts.append([str(run.config["encoder"]["name"]) for run in runs])
    facts.append([f"{run.config['epochs']} epochs" for run in runs])
    facts.append(_other_settings(runs))
    facts.append([f"seed {run.config['seed']}" for run in runs])
    facts.append([run.folder.name for run in runs])
    facts.append([run.folder.resolve().parent.name for run in runs])
    facts.append([str(run.folder) for run in runs])
    for fact in facts:
        several: dict[tuple[str, str], set[str]] = {}
        for name, data, told in zip(names, sets, fact, strict=True):
            several.setdefault((name, data), set()).add(told)
        apart = {name for (name, _), values in several.items() if len(values) > 1}
        names = [f"{name}, {told}" if name in apart and told else name for name, told in zip(names, fact, strict=True)]
    return names


def _other_settings(runs: Sequence[Run]) -> list[str]:
    """One or two that differ among runs of a method on the same images, as a sweep makes them; nothing where more do."""
    told_before = ("method.redundancy_weight", "epochs", "encoder.name", "data.source")
    every = [{key: value for key, value in flat(identity(run)) if key not in told_before} for run in runs]
    kinds = [(method_of(run), data_of(run)) for run in runs]
    told = []
    for kind, mine in zip(kinds, every, strict=True):
        alike = [other for other, its in zip(every, kinds, strict=True) if its == kind]
        differ = [key for key in mine if any(other.get(key) != mine[key] for other in alike)]
        told.append(", ".join(f"{key.removeprefix('method.')}={mine[key]}" for key in differ) if len(differ) <= 2 else "")
    return told


def families(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Runs that differ by their seed alone are together; of two with one seed too, each is for itself."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(as_key(identity(run)), []).append(run)
    kept: list[tuple[Run, ...]] = []
    for some in found.values():
        distinct = len({run.config["seed"] for run in some}) == len(some)
        kept += [tuple(some)] if distinct else [(run,) for run in some]
    return kept


def identity(run: Run) -> dict[str, Any]:
    """What a run learns from, but for its seed: its configuration without what other methods would have had, or what is logged."""
    return {name: value for name, value in run.config.items() if name not in ("seed", "methods", "log", "precision")}


def as_key(setting: Mapping[str, Any]) -> str:
    """The same for the same settings, in whatever order they were written."""
    return json.dumps(setting, sort_keys=True, default=str)


def by_seed(runs: Mapping[str, Run]) -> dict[str, tuple[Run, ...]]:
    """By what they are called without their seeds, runs that differ by nothing else."""
    return by_seed_on({"": runs}, by_data=True)[""]


def by_seed_on(sets: Mapping[str, Mapping[str, Run]], *, by_data: bool = False) -> dict[str, dict[str, tuple[Run, ...]]]:
    """The same of runs on several data sets, called the same on all of them."""
    found = {data: families(runs.values()) for data, runs in sets.items()}
    every = [family for some in found.values() for family in some]
    if all(len(family) == 1 for family in every):  # they keep their names
        return {data: {name: (run,) for name, run in runs.items()} for data, runs in sets.items()}
    names = iter(names_of([family[0] for family in every], by_data=by_data))
    return {data: {next(names): family for family in some} for data, some in found.items()}


def firsts(groups: Mapping[str, Sequence[Run]]) -> dict[str, Run]:
    return {name: runs[0] for name, runs in groups.items()}


def about_seeds(groups: Mapping[str, Sequence[Run]], what: str = "Thin: each seed; thick: their mean") -> str:
    """For a caption, where there are any."""
    counts = sorted({len(runs) for runs in groups.values() if len(runs) > 1})
    return f" {what} ({' or '.join(map(str, counts))} seeds)." if counts else ""


def weight_of(run: Run) -> float | None:
    """The paper's λ."""
    weight = run.config["method"].get("redundancy_weight")
    return None if weight is None else float(weight)


def setting(runs: Iterable[Run]) -> str:
    """What these runs share, for a caption: data, encoder, epochs."""
    runs = list(runs)
    facts = (
        {data_of(run) for run in runs},
        {str(run.config["encoder"]["name"]) for run in runs},
        {f"{run.config['epochs']} epochs" for run in runs},
        {f"batches of {run.config['batch_size']}" for run in runs},
    )
    return ", ".join(next(iter(fact)) for fact in facts if len(fact) == 1)
