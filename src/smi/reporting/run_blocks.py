"""Build the parts of a report that describe runs: health, facts, tables and settings."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from smi.comparison import figure as comparison_figure
from smi.comparison.comparison import CRITERIA_NOTE, Comparison
from smi.errors import UserError
from smi.evaluation.results import OFF_THE_SHELF
from smi.health.diagnosis import diagnose
from smi.pages import Block, Code, Facts, Finding, Missing, TableBlock, Verdict
from smi.reporting.runs import ReportRun
from smi.runs.names import (
    CRITERIA,
    dataset_name,
    display_row_name,
    is_published,
    last_criteria,
    method_name,
)
from smi.runs.run import Facts as RunFacts
from smi.runs.run import Run
from smi.tables import NONE, Table, yes
from smi.terminal import duration

# ------------------------------------------------------------------------------ health


def health_verdict(name: str, run: Run) -> Verdict:
    """Return the verdict of `smi doctor` on a run."""
    try:
        diagnosis = diagnose(run)
    except UserError as error:
        return Verdict("unknown", name, as_sentence(str(error)), "", [])
    epoch = ""
    if diagnosis.epoch is not None:
        epochs = f" of {diagnosis.epochs:g}" if diagnosis.epochs else ""
        epoch = f", epoch {diagnosis.epoch:.4g}{epochs}"
    findings = [Finding(f.level, f.sentence, f.evidence, f.advice) for f in diagnosis.findings]
    return Verdict(
        diagnosis.level,
        name,
        diagnosis.verdict,
        f"{diagnosis.status}, step {diagnosis.steps:,}{epoch}",
        findings,
    )


# ------------------------------------------------------------------------------ comparisons


def comparison_tables(comparison: Comparison) -> list[TableBlock]:
    """Return the tables of a comparison, with its notes beneath the last one."""
    first = comparison.rows[0].name
    *tables, last = comparison.tables()
    blocks = []
    for table in (*tables, last):
        rows = [[display_row_name(line[0]), *line[1:]] for line in table.lines]
        notes = comparison.notes() if table is last else []
        title = table.title.replace(first, display_row_name(first))
        blocks.append(TableBlock(Table.of(table.headers, rows, title=title, notes=notes)))
    return blocks


def comparison_plot(comparison: Comparison) -> Any:
    """Draw a comparison; the title of the swept axis stands beneath the last panels only."""
    figure = comparison_figure.draw_comparison(comparison)
    if comparison.swept:
        titled = [axis for axis in figure.select_xaxes() if axis.title.text == comparison.swept]
        # panels side by side: a score, its difference and, after a start, its gain
        for axis in titled[: -3 if comparison.off_the_shelf else -2]:
            axis.update(title_text="")
    intervals = "Bars are 95 % intervals over seeds. " if len(comparison.seeds) > 1 else ""
    if len(comparison.seeds) == 2:
        intervals = "Bars end at the values of both seeds. "
    caption = (
        f"{intervals}{_describe_panels(comparison)} "
        "Bottom: time per step (black: the loss) and peak memory."
    )
    return figure.update_layout(meta={"caption": caption})


def _describe_panels(comparison: Comparison) -> str:
    """Say which numbers stand where in the figure of a comparison."""
    first = display_row_name(comparison.rows[0].name)
    difference = f"differences to {first}, paired by seed"
    if comparison.off_the_shelf is None:
        return f"Left: scores. Right: {difference}, in percentage points."
    gain = f"gains over the weights {OFF_THE_SHELF} (dotted), in percentage points."
    if len(comparison.rows) == 1:
        return f"Left: scores. Right: {gain}"
    return f"Left: scores. Middle: {difference}. Right: {gain}"


# ------------------------------------------------------------------------------ facts about runs


def shared_facts(runs: Sequence[Run], num_classes: Iterable[int]) -> Facts:
    """Describe what was trained and how; where runs differ, list all values."""

    def values(value: Callable[[Run], Any]) -> str:
        texts = [str(value(run)) for run in runs if value(run) not in (None, "")]
        return join_words(dict.fromkeys(texts))

    seconds = sum(filter(None, (training_seconds(run) for run in runs)))
    together = " together" if len(runs) > 1 else ""
    published = any(is_published(run) for run in runs)
    facts = [
        ("Method", values(method_name)),
        ("Data", values(dataset_name)),
        ("Images", values(lambda run: _describe_images(run.facts))),
        ("Classes, for evaluation only", join_words(map(str, sorted(num_classes)))),
        ("Encoder", values(_describe_encoder)),
        ("Views", values(lambda run: run.facts.policy)),
        ("Epochs", values(lambda run: f"{run.facts.epochs or run.config['epochs']:g}")),
        ("Batch size", values(lambda run: run.config["batch_size"])),
        ("Optimizer", values(lambda run: _describe_optimizer(run.config))),
        ("As published", values(lambda run: yes(is_published(run))) if published else ""),
        ("Seeds", values(lambda run: run.config["seed"])),
        ("Device", values(lambda run: run.facts.device)),
        ("Training time", f"{duration(seconds)}{together}" if seconds else ""),
    ]
    return Facts([(name, value) for name, value in facts if value])


def runs_table(runs: Mapping[str, Run]) -> TableBlock:
    """List status, loss, features, time and accuracy of each run."""
    headers = ["", "status", "steps", "loss, first → last", "feature std", "effective rank"]
    headers += ["time", "kNN"]
    rows = [_run_cells(name, run) for name, run in runs.items()]
    notes = [
        "feature std and effective rank: of the last logged batch",
        "kNN: on held-out images, as measured last",
    ]
    if not any("knn" in line["probe"] for run in runs.values() for line in run.probes()):
        headers = headers[:-1]
        rows = [row[:-1] for row in rows]
        notes = notes[:1]
    table = Table.of(headers, rows, title="Each run", notes=notes)
    return TableBlock(table, text_columns=1)


def criteria_table(runs: Mapping[str, Run], *, noted: bool = False) -> TableBlock | None:
    """List what the last probe of each run measured without labels; None if no run has any.

    noted: whether the page explains the criteria elsewhere.
    """
    by_run = {name: last_criteria(run) for name, run in runs.items()}
    names = [name for name in CRITERIA if any(name in criteria for criteria in by_run.values())]
    if not names:
        return None
    rows = [
        [
            run,
            *(CRITERIA[n][1].format(criteria[n]) if n in criteria else NONE for n in names),
        ]
        for run, criteria in by_run.items()
    ]
    headers = ["", *(CRITERIA[name][0] for name in names)]
    notes = [] if noted else [CRITERIA_NOTE]
    return TableBlock(Table.of(headers, rows, title="Without labels", notes=notes))


def _run_cells(name: str, run: Run) -> list[str]:
    """Return the cells of a run in the table of runs."""
    lines = run.metrics(per_step=False)
    last = lines[-1] if lines else {}
    probes = run.probes()
    knn = probes[-1]["probe"].get("knn") if probes else None
    std, rank = last.get("feature_std"), last.get("effective_rank")
    seconds = training_seconds(run)
    return [
        name,
        run.facts.status or "unknown",
        f"{last['step']:,}" if last else NONE,
        f"{lines[0]['loss']:.4g} → {last['loss']:.4g}" if last else NONE,
        NONE if std is None else f"{std:.3g}",
        NONE if rank is None else f"{rank:.0f}",
        NONE if seconds is None else duration(seconds),
        NONE if knn is None else f"{knn:.1%}",
    ]


def run_settings(run: ReportRun) -> Iterator[Block]:
    """Yield the facts of a run, the command that repeats it, and its configuration."""
    yield Facts(_run_facts(run.run))
    hint = "" if run.command else ", with the configuration below saved as config.yaml"
    yield Code(run.command or _repeat_command(run.run), f"Command that repeats the run{hint}")
    config = run.run.folder / "config.yaml"
    yield Code(
        config.read_text(encoding="utf-8", errors="replace").rstrip(),
        f"Complete configuration: {run.run.config['method']['name']}",
    )


def _run_facts(run: Run) -> list[tuple[str, str]]:
    """Return names and values of what was recorded while a run was trained."""
    known = run.facts
    seconds = training_seconds(run)
    speeds = [
        line["timing"]["images_per_second"]
        for line in run.metrics(per_step=False)
        if "timing" in line
    ]
    packages = (known.versions or {}).items()
    versions = ", ".join(f"{name} {version}" for name, version in packages)
    facts = [
        ("Folder", str(run.folder)),
        ("Status", known.status or "unknown"),
        ("Started", (known.started or "").replace("T", " ")),
        ("Training time", "" if seconds is None else duration(seconds)),
        ("Images per second", f"{np.median(speeds):,.0f} (median)" if speeds else ""),
        ("Device", known.device or ""),
        ("Precision", known.precision or ""),
        ("Processes", str(known.world_size or "")),
        ("Parameters", _describe_parameters(known)),
        ("Versions", f"smi {known.smi or '?'}, {versions}" if versions else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _repeat_command(run: Run) -> str:
    """Return a command that repeats a run from its configuration."""
    words = ["smi", "pretrain", "config.yaml", "--out", "runs/again"]
    root = run.facts.root
    return shlex.join([*words, "--root", str(root)] if root else words)


def training_seconds(run: Run) -> float | None:
    """Return the time spent on steps, from the logged speeds."""
    total = 0.0
    previous_step = 0
    batch_size = run.config["batch_size"]
    for line in run.metrics(per_step=False):
        speed = (line.get("timing") or {}).get("images_per_second")
        if speed:
            total += (line["step"] - previous_step) * batch_size / speed
        previous_step = line["step"]
    return total or None


def _describe_images(facts: RunFacts) -> str:
    """Return the number of images and their resolution."""
    if not facts.num_images:
        return ""
    return f"{facts.num_images:,}" + (f" at {facts.resolution} px" if facts.resolution else "")


def _describe_encoder(run: Run) -> str:
    """Return the name of the encoder, its features and its parameters."""
    text = str(run.config["encoder"]["name"])
    if dim := run.facts.feature_dim:
        text += f", {dim} features"
    if parameters := run.facts.encoder_parameters:
        text += f", {parameters / 1e6:.1f} M parameters"
    return text


def _describe_parameters(facts: RunFacts) -> str:
    """Return the number of trained parameters, and how many are in the encoder."""
    if not facts.parameters:
        return ""
    text = f"{facts.parameters / 1e6:.2f} M trained"
    if facts.encoder_parameters:
        text += f", {facts.encoder_parameters / 1e6:.2f} M in the encoder"
    return text


def _describe_optimizer(config: Mapping[str, Any]) -> str:
    """Return the name, learning rate and weight decay of the optimizer."""
    optimizer = config.get("optimizer") or {}
    if not {"name", "lr", "weight_decay"} <= set(optimizer):
        return ""
    decay = f"weight decay {optimizer['weight_decay']:g}"
    return f"{optimizer['name']}, lr {optimizer['lr']:g}, {decay}"


# ------------------------------------------------------------------------------ words


def missing_block(reason: object) -> Missing:
    """Explain why a part is missing."""
    return Missing(as_sentence(str(reason or "it was not computed")))


def as_sentence(words: str) -> str:
    """Add a capital letter and a full stop; a path at the beginning keeps its spelling."""
    starts_with_path = "/" in words.split(" ", 1)[0]
    start = words if starts_with_path else f"{words[:1].upper()}{words[1:]}"
    return start if words.endswith((".", ")", "`")) else f"{start}."


def join_words(words: Iterable[str]) -> str:
    """Join words with commas and "and"."""
    *others, last = list(words) or [""]
    return f"{', '.join(others)} and {last}" if others else last


def group_rows(
    parts: Mapping[str, dict[str, Any]], key: Callable[[dict[str, Any]], Any]
) -> dict[Any, list[str]]:
    """Group the names of rows by a key of their parts."""
    groups: dict[Any, list[str]] = {}
    for row, part in parts.items():
        groups.setdefault(key(part), []).append(row)
    return groups
