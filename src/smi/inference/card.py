"""Describe an encoder for others: the page of its repository, its results and its recipe.

write_description(folder, encoder, network, place="hf-hub:org/name", title="org/name")
# README.md, evaluation.json, recipe.yaml
"""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from smi import __version__
from smi.config.schema import flat
from smi.data import DATASET_NAMES
from smi.data.remote import is_url
from smi.evaluation.evaluate import results_home
from smi.evaluation.results import FLOORS, Result, Score, read_all, results_table, row_name
from smi.files import finite, last_part, write_json, write_text
from smi.inference.export_folder import CARD, RECIPE, RESULTS
from smi.inference.export_network import Network, literal, timm_lines
from smi.intervals import interval
from smi.nn.encoders import is_import_path
from smi.nn.weights import HUB_SCHEME, LOCAL_SCHEME
from smi.runs.encoder import Pretrained
from smi.runs.names import dataset_name, group_by_seed, method_name
from smi.runs.run import Run, is_run
from smi.runs.start import TIMM
from smi.tables import Table, in_markdown
from smi.terminal import printable

THIS = "this encoder"
TAGS = ("smi", "self-supervised-learning", "image-feature-extraction")
MIN_SEEDS = 3  # an interval of two values is ten times their distance

Rows = dict[str, list[Result]]


def write_description(
    folder: Path,
    encoder: Pretrained,
    network: Network,
    *,
    place: str,
    title: str,
    license: Mapping[str, Any],
) -> None:
    """Write the page of an encoder, the results of its evaluation and the recipe of its run.

    place: its name on the hub, or "." for code that runs in the folder. license: what the page of
    the repository says of it, by the keys of its metadata.
    """
    run = Run(encoder.source) if is_run(encoder.source) else None
    rows = _rows(encoder, run)
    if run is not None:
        recipe = yaml.safe_dump(_recipe(run), sort_keys=False, allow_unicode=True, width=120)
        write_text(folder / RECIPE, recipe)
    results = [result.plain() for results in rows.values() for result in results if result.made]
    if results:
        write_json(folder / RESULTS, finite(results))
    metadata = {
        "library_name": "smi" if network.outside_timm else "timm",
        "pipeline_tag": "image-feature-extraction",
        **license,
        "tags": [*TAGS, *([] if network.outside_timm else ["timm"])],
    }
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {in_markdown(title)}",
        _introduction(encoder, network, run),
        *_usage(encoder, network, place),
        "## Training",
        *_training(encoder, run),
        "## Evaluation",
        *_evaluation(rows, run),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(encoder, run, licensed="license" in license)),
    ]
    write_text(folder / CARD, "\n\n".join(parts) + "\n")


def _introduction(encoder: Pretrained, network: Network, run: Run | None) -> str:
    """Say in one sentence what the encoder is."""
    made = ""
    if run is not None:
        made = f", trained without labels by {method_name(run)} on {_images_name(run)}"
    size = encoder.image_size
    return (
        f"An encoder ({in_markdown(network.label)}){in_markdown(made)}: {encoder.dim:,} features "
        f"of an image of {size} × {size} pixels. It was written by `smi export`."
    )


def _usage(encoder: Pretrained, network: Network, place: str) -> list[str]:
    """Return the parts of the page with the code that loads the encoder; tests run it."""
    trust = ", trust=True" if network.own else ""
    ours = [
        "import smi",
        "",
        f"encoder = smi.load({literal(place)}{trust})",
        f'h = encoder(encoder.transform(["cat.jpg"]))  # [1, {encoder.dim}]',
    ]
    where = ["In the folder of this page:"] if place == "." else []
    parts = ["## Use", *where, _code(ours)]
    if network.own:
        parts.append(f"It needs the class `{network.name}`, whose code is not in this repository.")
    if network.outside_timm:
        needs = "torch and that class" if network.own else "timm"
        sentence = (
            f"`timm.create_model` cannot load it, because {network.outside_timm}. `load.py` beside "
            f"the weights needs {needs}, not smi: `python load.py cat.jpg`."
        )
        return [*parts, sentence]
    source = place if place.startswith(HUB_SCHEME) else f"{LOCAL_SCHEME}{place}"
    theirs = [
        "import timm",
        "from PIL import Image",
        "",
        *timm_lines(source, encoder.image_size),
        f'h = model(transform(Image.open("cat.jpg").convert("RGB"))[None])  # [1, {encoder.dim}]',
    ]
    return [*parts, "With timm, which resizes images in a slightly different way:", _code(theirs)]


def _training(encoder: Pretrained, run: Run | None) -> list[str]:
    """Return the facts of the run, and the command that repeats it."""
    if run is None:
        about = [(name, str(value)) for name, value in encoder.origin().items()]
        return [
            _facts([*about, ("digest", encoder.digest())]),
            "The folder of the run was not at hand when this page was written.",
        ]
    config, facts = run.config, run.facts
    at = encoder.about
    epochs = (
        f"{at['epoch']:.4g} of {facts.epochs or config['epochs']:.4g} epochs, "
        if at["epoch"]
        else ""
    )
    names = ("python", "torch", "timm")
    versions = [f"{n} {v}" for n, v in (facts.versions or {}).items() if n in names]
    commit = f" (commit {facts.commit})" if facts.commit else ""
    optimizer = {
        key: value
        for key, value in (config.get("optimizer") or {}).items()
        if key in ("name", "lr", "weight_decay")
    }
    pairs = [
        ("method", method_name(run)),
        ("its settings", _settings(config["method"])),
        ("images", f"{facts.num_images or 0:,} of {_images_name(run)}, {facts.resolution} pixels"),
        ("views", f"{facts.num_views} of {config['views']['size']} pixels, {facts.policy}"),
        ("encoder", _settings(config["encoder"], name=True)),
        ("its parameters", f"{facts.encoder_parameters or 0:,}"),
        ("started from", _source_name(run.init_source or "") or "random weights"),
        ("length", f"{epochs}step {at['step']:,}, {config['batch_size']} images per step"),
        ("weights", "the mean of the start's and the trained ones" if "share" in at else ""),
        ("optimizer", _settings(optimizer, name=True)),
        ("seed", str(config["seed"])),
        ("device", f"{facts.device}, {facts.precision}"),
        ("versions", ", ".join([f"smi {facts.smi}{commit}", *versions])),
        ("exported with", f"smi {__version__}"),
        ("digest", f"{encoder.digest()} (weights and preprocessing, as in results)"),
    ]
    start = _local_start(run)
    needs = f"It needs the weights {in_markdown(start)}, which are not in this repository. "
    return [
        _facts([(name, value) for name, value in pairs if value]),
        f"This command repeats the run. `{RECIPE}` holds all its settings.",
        _code([_repeating(run)], "bash"),
        f"{needs if start else ''}On a CPU of the same kind, with the same versions and number of "
        "threads, the digest is the same.",
    ]


def _repeating(run: Run) -> str:
    """Return the command that repeats a run; PATH stands for what only its owner has."""
    words = ["smi", "pretrain", RECIPE]
    if not _is_public(str(run.config["data"]["source"])):
        words += ["--data", f"PATH/{_images_name(run)}"]
    if start := _local_start(run):
        scheme = LOCAL_SCHEME if (run.init_source or "").startswith(LOCAL_SCHEME) else ""
        words += ["--init", f"{scheme}PATH/{start}"]
    method, encoder = (str(run.config[part]["name"]) for part in ("method", "encoder"))
    if "." in method or is_import_path(encoder):
        words.append("--trust")
    return shlex.join([*words, "--out", "runs/again"])


def _evaluation(rows: Rows, run: Run | None) -> list[str]:
    """Return the table of scores, with the protocol of each."""
    if not rows[THIS]:
        return ["It has not been evaluated (`smi evaluate`)."]
    table = results_table(list(rows.items()))
    notes = "\n".join(f"- {in_markdown(note)}" for note in table.notes)
    seeds = ""
    if run is not None:
        seeds = (
            f" These are the scores of one run (seed {run.config['seed']}): an interval in its row "
            "is over draws of labels, not over seeds."
        )
    return [
        dataclasses.replace(table, notes=()).markdown(),
        f"Accuracy on test images.{seeds} `{RESULTS}` holds every number and protocol.",
        notes,
    ]


def _limits(encoder: Pretrained, run: Run | None, *, licensed: bool) -> list[str]:
    """Return what the encoder is not, and what nobody has examined."""
    images = "unknown images"
    if run is not None:
        images = f"{run.facts.num_images or 0:,} images of {_images_name(run)}"
    limits = [
        "It returns features, not classes: train a classifier on them (`smi classify`).",
        f"It has seen {in_markdown(images)}. What it gives for other kinds of images was not "
        "measured, unless the table says so.",
        "What it is biased towards was not examined.",
        f"Images are resized to {encoder.image_size} pixels a side; smaller details are lost.",
    ]
    if run is not None and run.init_source is not None:
        limits.append("It started from other weights, whose licence may bind it.")
    if not licensed:
        limits.append("No licence is stated yet: its owner can state one in the metadata above.")
    return limits


# ------------------------------------------------------------------------------------------- facts


def _rows(encoder: Pretrained, run: Run | None) -> Rows:
    """Return stored results by the names of rows: of these weights, all seeds, and the floors."""
    stored = read_all(results_home(encoder.source))
    own = [r for r in stored if r.encoder["digest"] == encoder.digest() and r.subject not in FLOORS]
    rows: Rows = {THIS: own}
    if run is not None and (over_seeds := _over_seeds(run, own)):
        rows[f"mean of {len(_seeds(run))} seeds"] = over_seeds
    for result in stored:
        if result.subject in FLOORS and result.stamp in {r.stamp for r in own}:
            rows.setdefault(row_name("", result.subject, result.encoder), []).append(result)
    return rows


def _over_seeds(run: Run, own: list[Result]) -> list[Result]:
    """Return the mean scores, with 95 % intervals, of the runs that differ by the seed.

    They have no date: they are computed here, and not part of evaluation.json.
    """
    runs = _seeds(run)
    if len(runs) < MIN_SEEDS:
        return []
    by_run = [
        {
            (r.stamp, r.subject, score.name): score.value
            for r in sorted(read_all(each.folder), key=lambda r: r.encoder.get("step") or 0)
            for score in r.scores
        }
        for each in runs
    ]
    means = []
    for result in own:
        keys = [(result.stamp, result.subject, score.name) for score in result.scores]
        if all(key in scores for scores in by_run for key in keys):
            intervals = [interval([scores[key] for scores in by_run]) for key in keys]
            scores = tuple(Score(key[2], *each) for key, each in zip(keys, intervals, strict=True))
            means.append(dataclasses.replace(result, scores=scores, notes=(), made={}))
    return means


def _seeds(run: Run) -> tuple[Run, ...]:
    """Return the runs of a row of a comparison that differ from this one only by the seed."""
    folder = run.folder.resolve()
    row = [Run(place) for place in sorted(folder.parent.glob("seed-*")) if is_run(place)]
    groups = group_by_seed(row)
    return next((group for group in groups if any(r.folder == folder for r in group)), (run,))


def _recipe(run: Run) -> dict[str, Any]:
    """Return the settings of a run, without those of other methods and without local paths."""
    config = {name: value for name, value in run.config.items() if name != "methods"}
    config["data"]["source"] = _images_name(run)
    if run.facts.precision is not None:  # `auto` may choose another one elsewhere
        config["precision"] = run.facts.precision
    if run.init_source is not None:
        config["init"]["source"] = _source_name(run.init_source)
    return config


def _images_name(run: Run) -> str:
    """Return the name of the images; of a folder or a URL only its last part."""
    source = str(run.config["data"]["source"])
    return source if _is_public(source) else dataset_name(run)


def _is_public(source: str) -> bool:
    """Return whether images have a name that others can use: of a dataset, here or on the hub."""
    return source in DATASET_NAMES or (source.startswith("hf:") and not is_url(source))


def _source_name(source: str) -> str:
    """Return the name of weights, without the folders above a file."""
    if source.startswith(HUB_SCHEME):
        return source
    return last_part(source.removeprefix(LOCAL_SCHEME))


def _local_start(run: Run) -> str:
    """Return the name of the file or run that a run started from; nothing for any other start."""
    source = run.init_source or ""
    return "" if source == TIMM or source.startswith(HUB_SCHEME) else _source_name(source)


def _settings(settings: Mapping[str, Any], *, name: bool = False) -> str:
    """Return settings in words, with their name in front or without it."""
    words = [str(settings["name"])] if name and "name" in settings else []
    rest = [(key, value) for key, value in flat(dict(settings)) if key != "name"]
    return ", ".join([*words, *(f"{key} {value}" for key, value in rest if value is not None)])


def _facts(pairs: list[tuple[str, str]]) -> str:
    """Return names and values as a table."""
    return Table.of(["", ""], pairs).markdown().replace("--:", ":--")


def _code(lines: list[str], language: str = "python") -> str:
    return "\n".join([f"```{language}", *map(printable, lines), "```"])
