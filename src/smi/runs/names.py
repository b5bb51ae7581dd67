"""Name runs, rows of comparisons and datasets as tables and figures print them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smi.config.schema import flat
from smi.errors import UserError
from smi.files import last_part
from smi.runs.run import Run
from smi.terminal import epochs_text

# Criteria of `smi.evaluation.label_free`: their names and formats in tables.
CRITERIA = {
    "retrieval": ("retrieval", "{:.1%}"),
    "rank_me": ("RankMe", "{:.1f}"),
    "lidar": ("LiDAR", "{:.1f}"),
    "alpha_req": ("α-ReQ", "{:.2f}"),
    "learnability": ("learnability", "{:.1%}"),
}

# ----------------------------------------------------------------------------- names of one thing


def dataset_name(run: Run) -> str:
    """Return the name of a run's dataset or folder."""
    return last_part(str(run.config["data"]["source"]))


def method_name(run: Run) -> str:
    """Return the display name of a run's method."""
    described = (run.facts.method or {}).get("display_name")
    return str(described) if described else display_name(str(run.config["method"]["name"]))


def criteria_text(criteria: Mapping[str, float]) -> str:
    """Return criteria in words, such as "RankMe 71.3, LiDAR 40.2"; nothing if there are none."""
    return ", ".join(
        f"{title} {form.format(criteria[name])}"
        for name, (title, form) in CRITERIA.items()
        if name in criteria
    )


def last_criteria(run: Run) -> dict[str, float]:
    """Return what the last probe of a run measured without labels, by the names of CRITERIA."""
    return _criteria(run.probes()[-1:])


def criteria_at_start(run: Run) -> dict[str, float]:
    """Return what was measured without labels before the first step, if the run has weights."""
    return _criteria([line for line in run.probes()[:1] if line["step"] == 0])


def _criteria(probes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the criteria of at most one line of a probe; earlier versions have none."""
    values = probes[0]["probe"].get("label_free", {}) if probes else {}
    return {name: values[name] for name in CRITERIA if values.get(name) is not None}


def probe_text(probe: Mapping[str, float]) -> str:
    """Return the score of a probe: kNN, or without labels the retrieval of views."""
    return f"kNN {probe['knn']:.1%}" if "knn" in probe else f"retrieval {probe['retrieval']:.1%}"


def kept_name(header: Mapping[str, Any]) -> str:
    """Return which encoder was the best one, by the header of its file."""
    about = header["about"]
    if about["step"] == 0:
        return "the start"
    trained = f"the encoder of epoch {round(about['epoch'], 2):g}"
    return f"the mean of the start and {trained}" if "share" in about else trained


def start_name(run: Run) -> str:
    """Return where the weights of a run come from: "from timm", or nothing if from scratch."""
    return "" if run.init_source is None else f"from {encoder_name(run.init_source)}"


def encoder_name(source: str) -> str:
    """Return a short name of an encoder without a run, given its source as `smi.load` takes it."""
    scheme, colon, rest = source.partition(":")
    if not colon or scheme not in ("timm", "hf-hub", "local-dir"):
        return last_part(source)
    if scheme == "local-dir":
        return last_part(rest)
    network, _, file = rest.partition("@")
    return f"{network}, {last_part(file)}" if scheme == "timm" and file else rest


def is_published(run: Run) -> bool:
    """Return whether a run trains its method as the authors do; earlier versions could not."""
    return bool(run.config.get("published", False))


def display_row_name(name: str) -> str:
    """Return the display name of a comparison's row: `BarlowTwins, redundancy_weight=0.1`."""
    method, comma, setting = name.partition(",")
    return display_name(method) + comma + setting.replace("redundancy_weight=", "λ = ")


def redundancy_weight_of(run: Run) -> float | None:
    """Return the paper's λ, or None for a method that has none."""
    weight = run.config["method"].get("redundancy_weight")
    if weight == "auto":
        from smi.losses.smi import weight_in_batch

        on_device = run.facts.batch_per_device or run.config["batch_size"]
        return weight_in_batch(weight, on_device // run.config.get("accumulate", 1))
    return None if weight is None else float(weight)


def display_name(method: str) -> str:
    """Return the display name of a method, given its class name or import path."""
    from smi.methods import METHOD_NAMES, find_method

    if method not in METHOD_NAMES:  # a user's module may no longer be importable
        return method.rsplit(".", 1)[-1]
    return find_method(method).display_name


# -------------------------------------------------------------------------- names of several runs


def name_runs(runs: Sequence[Run], *, by_data: bool = True) -> dict[str, Run]:
    """Return runs by unique names; see `run_names`."""
    folders = [run.folder.resolve() for run in runs]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise UserError(f"{runs[i].folder} is given twice")
    return dict(zip(run_names(runs, by_data=by_data), runs, strict=True))


def name_encoders(sources: Sequence[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the sources of encoders by unique names.

    taken: names that no encoder gets.
    """
    short = [encoder_name(source) for source in sources]
    ambiguous = {name for name in short if short.count(name) > 1} | set(taken)
    for i, source in enumerate(sources):
        if source in sources[:i]:
            raise UserError(f"{source} is given twice")
    return {
        source if name in ambiguous else name: source
        for name, source in zip(short, sources, strict=True)
    }


def run_names(runs: Sequence[Run], *, by_data: bool = True) -> list[str]:
    """Name runs by method and by what distinguishes runs of the same method.

    That is λ, the encoder, the weights it started from, the epochs, another setting, the seed, and
    last the folder.
    by_data: add the dataset to the names if there are several. Otherwise runs on different
    datasets may have the same name, and a setting that differs on one dataset is named on all.
    """
    names = [method_name(run) for run in runs]
    datasets = [dataset_name(run) for run in runs]
    if by_data and len(set(datasets)) > 1:
        names = [f"{name}, {data}" for name, data in zip(names, datasets, strict=True)]
    for details in _details(runs):
        values: dict[tuple[str, str], set[str]] = {}
        for name, data, detail in zip(names, datasets, details, strict=True):
            values.setdefault((name, data), set()).add(detail)
        ambiguous = {name for (name, _), several in values.items() if len(several) > 1}
        names = [
            f"{name}, {detail}" if name in ambiguous and detail else name
            for name, detail in zip(names, details, strict=True)
        ]
    return names


def _details(runs: Sequence[Run]) -> list[list[str]]:
    """Return details that may distinguish runs, in the order in which they are tried."""
    weights = [redundancy_weight_of(run) for run in runs]
    return [
        ["" if weight is None else f"λ = {weight:g}" for weight in weights],
        [str(run.config["encoder"]["name"]) for run in runs],
        [start_name(run) or "from scratch" for run in runs],
        [epochs_text(run.config["epochs"]) for run in runs],
        _other_settings(runs),
        [f"seed {run.config['seed']}" for run in runs],
        [run.folder.name for run in runs],
        [run.folder.resolve().parent.name for run in runs],
        [str(run.folder) for run in runs],
    ]


def _other_settings(runs: Sequence[Run]) -> list[str]:
    """Name one or two settings that differ among runs of a method on a dataset, as in a sweep.

    Where more settings differ, none is named.
    """
    named_before = (
        "method.redundancy_weight",
        "epochs",
        "encoder.name",
        "data.source",
        "init.source",
        "init.digest",
    )
    settings = [
        {key: value for key, value in flat(settings_without_seed(run)) if key not in named_before}
        for run in runs
    ]
    groups = [(method_name(run), dataset_name(run)) for run in runs]
    details = []
    for group, own in zip(groups, settings, strict=True):
        alike = [other for other, its in zip(settings, groups, strict=True) if its == group]
        keys = [key for key in own if any(other.get(key) != own[key] for other in alike)]
        texts = [f"{key.removeprefix('method.')}={own[key]}" for key in keys]
        details.append(", ".join(texts) if len(keys) <= 2 else "")
    return details


def shared_settings(runs: Iterable[Run]) -> str:
    """Return the settings that runs share, for a caption: data, encoder, start, epochs, batch."""
    runs = list(runs)
    details = (
        {dataset_name(run) for run in runs},
        {str(run.config["encoder"]["name"]) for run in runs},
        {start_name(run) for run in runs},
        {epochs_text(run.config["epochs"]) for run in runs},
        {f"batches of {run.config['batch_size']}" for run in runs},
    )
    return ", ".join(next(iter(values)) for values in details if len(values) == 1 and any(values))


# ----------------------------------------------------------------------- runs that differ by seed


def group_by_seed(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Group runs that differ only by their seed; runs that share a seed too stay alone."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(settings_key(settings_without_seed(run)), []).append(run)
    result: list[tuple[Run, ...]] = []
    for group in groups.values():
        distinct = len({run.config["seed"] for run in group}) == len(group)
        result += [tuple(group)] if distinct else [(run,) for run in group]
    return result


def settings_without_seed(run: Run) -> dict[str, Any]:
    """Return the settings that determine what a run learns, without the seed."""
    ignored = ("seed", "methods", "log", "precision")
    return {name: value for name, value in run.config.items() if name not in ignored}


def settings_key(settings: Mapping[str, Any]) -> str:
    """Return the same text for the same settings in any order."""
    return json.dumps(settings, sort_keys=True, default=str)


def named_seed_groups(runs: Mapping[str, Run]) -> dict[str, tuple[Run, ...]]:
    """Group runs that differ only by their seed, under a name without the seed."""
    return named_seed_groups_by_dataset({"": runs}, by_data=True)[""]


def named_seed_groups_by_dataset(
    sets: Mapping[str, Mapping[str, Run]], *, by_data: bool = False
) -> dict[str, dict[str, tuple[Run, ...]]]:
    """Group the runs of several datasets by seed, with the same names on all datasets."""
    grouped = {data: group_by_seed(runs.values()) for data, runs in sets.items()}
    all_families = [family for groups in grouped.values() for family in groups]
    if all(len(family) == 1 for family in all_families):  # they keep their names
        return {data: {name: (run,) for name, run in runs.items()} for data, runs in sets.items()}
    names = iter(run_names([family[0] for family in all_families], by_data=by_data))
    return {data: {next(names): family for family in groups} for data, groups in grouped.items()}


def first_runs(groups: Mapping[str, Sequence[Run]]) -> dict[str, Run]:
    """Return the first run of each group."""
    return {name: runs[0] for name, runs in groups.items()}


def seed_caption(
    groups: Mapping[str, Sequence[Run]], key: str = "Thin: each seed; thick: their mean"
) -> str:
    """Return a sentence for a caption that gives the number of seeds; empty for one seed."""
    counts = sorted({len(runs) for runs in groups.values() if len(runs) > 1})
    return f" {key} ({' or '.join(map(str, counts))} seeds)." if counts else ""
