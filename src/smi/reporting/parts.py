"""Parts of a page: of one run, or of what is known of it."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from smi.comparison import figure as comparison_figure
from smi.comparison.comparison import Comparison
from smi.errors import UserError
from smi.health import diagnose
from smi.pages import Block, Code, Facts, Finding, Gallery, Missing, Tile, Verdict
from smi.reporting.portrait import NEAR
from smi.reporting.runs import Shown
from smi.runs.names import spelt
from smi.runs.run import Run
from smi.terminal import duration


def settings_of(one: Shown) -> Iterator[Block]:
    about, config = one.run.about, one.run.config
    versions = ", ".join(
        f"{name} {version}" for name, version in (about.get("versions") or {}).items()
    )
    seconds, lines = seconds_of(one.run), one.run.metrics()
    speed = [line["timing"]["images_per_second"] for line in lines if "timing" in line]
    facts = [
        ("Folder", str(one.run.folder)),
        ("State", str(about.get("status", "unknown"))),
        ("Started", str(about.get("started", "")).replace("T", " ")),
        ("Time in training", "" if seconds is None else duration(seconds)),
        ("Images per second", f"{np.median(speed):,.0f} (median)" if speed else ""),
        ("Machine", str(about.get("device", ""))),
        ("Precision", str(about.get("precision", ""))),
        ("Processes", str(about.get("world_size", ""))),
        ("Parameters", parameters_of(about)),
        ("Versions", f"smi {about.get('smi', '?')}, {versions}" if versions else ""),
    ]
    yield Facts([(name, value) for name, value in facts if value])
    yield Code(
        one.command or command_again(one.run),
        "The command that makes it again"
        + ("" if one.command else ", with the configuration below as config.yaml"),
    )
    yield Code(
        (one.run.folder / "config.yaml").read_text(encoding="utf-8", errors="replace").rstrip(),
        f"Configuration: {config['method']['name']}, complete",
    )


def command_again(run: Run) -> str:
    root = run.about.get("root")
    return shlex.join(
        [
            "smi",
            "pretrain",
            "config.yaml",
            "--out",
            "runs/again",
            *(["--root", str(root)] if root else []),
        ]
    )


def verdict_of(name: str, run: Run) -> Verdict:
    try:
        found = diagnose(run)
    except UserError as error:
        return Verdict("unknown", name, as_sentence(str(error)), "", [])
    levels = {finding.level for finding in found.findings}
    level = (
        "stop"
        if "stop" in levels
        else "warning"
        if "warning" in levels
        else "ok"
        if "healthy" in found.verdict
        else "unknown"
    )
    epoch = (
        ""
        if found.epoch is None
        else f", epoch {found.epoch:.4g}" + (f" of {found.epochs:g}" if found.epochs else "")
    )
    findings = [Finding(f.level, f.sentence, f.evidence, f.advice) for f in found.findings]
    return Verdict(
        level,  # type: ignore[arg-type]
        name,
        found.verdict,
        f"{found.status}, step {found.steps:,}{epoch}",
        findings,
    )


def gallery_of_views(views: Mapping[str, Any], data: str) -> Gallery:
    rows = []
    for i, image in enumerate(views["images"]):
        tiles = [Tile(image, f"image {i + 1} of {data}", mark="query")]
        tiles += [
            Tile(view, f"view {number} of image {i + 1}")
            for number, view in enumerate(views["views"][i], 1)
        ]
        rows.append(("", tiles))
    return Gallery(
        "Images, and what pretraining sees of them",
        rows,
        f"Framed, images of {data}; beside each, two draws of its views under the policy {views['policy']} ({views['sizes']}), as in "
        "training.",
    )


def gallery_of_neighbours(row: str, part: Mapping[str, Any]) -> Gallery:
    labels, classes = part["labels"], part["classes"]

    def named(i: int) -> str:
        return "" if labels is None else classes[labels[i]] if classes else str(labels[i])

    rows = []
    for one in part["neighbours"]:
        query = one["query"]
        tiles = [
            Tile(
                part["pictures"][query],
                f"query {part['names'][query]}",
                (named(query), part["names"][query].rsplit("/", 1)[-1]),
                "query",
            )
        ]
        for i, similarity in one["near"]:
            mark = "" if labels is None else "same" if labels[i] == labels[query] else "other"
            words = (
                (named(i), f"{similarity:.3f}") if labels is not None else (f"{similarity:.3f}",)
            )
            tiles.append(
                Tile(
                    part["pictures"][i],
                    f"{named(i)} {part['names'][i]}, similarity {similarity:.3f}".strip(),
                    words,
                    mark,  # type: ignore[arg-type]
                )
            )
        rows.append(("", tiles))
    judged = " ✓: of the query's class, ×: of another." if labels is not None else ""
    return Gallery(
        "Nearest neighbours",
        rows,
        f"Framed, a query; beside it the {NEAR} nearest of the other {len(part['names']) - 1:,} {part['of']} by cosine similarity of "
        f"features under {row}, nearest first.{judged}",
    )


def compared_figure(comparison: Comparison) -> Any:
    """As the comparison draws it; what every panel says is said once, beneath."""
    found, first = comparison_figure.figure(comparison), comparison.rows[0].name
    if comparison.swept:
        last = f"x{2 * len(comparison.columns) - 1}", f"x{2 * len(comparison.columns)}"
        found.for_each_xaxis(
            lambda axis: axis.update(
                title_text=""
                if axis.plotly_name.replace("axis", "") not in last
                else comparison.swept
            ),
            selector=lambda axis: axis.title.text == comparison.swept,
        )
    bars = "Bars are 95 % intervals over seeds. " if len(comparison.seeds) > 1 else ""
    caption = (
        f"{bars}Left each score, right its difference to {spelt(first)} seed by seed, in points; last what a step takes (black: the loss "
        "in it) and the most memory."
    )
    return found.update_layout(meta={"caption": caption})


def spelt_in(title: str, comparison: Comparison) -> str:
    first = comparison.rows[0].name
    return title.replace(first, spelt(first))


def seconds_of(run: Run) -> float | None:
    """Spent on steps, by the speeds that were logged."""
    total, before, batch = 0.0, 0, run.config["batch_size"]
    for line in run.metrics():
        if speed := (line.get("timing") or {}).get("images_per_second"):
            total += (line["step"] - before) * batch / speed
        before = line["step"]
    return total or None


def images_of(about: Mapping[str, Any]) -> str:
    if not (count := about.get("num_images")):
        return ""
    return f"{count:,}" + (f" at {about['resolution']} px" if about.get("resolution") else "")


def encoder_of(run: Run) -> str:
    dim = run.about.get("feature_dim")
    millions = run.about.get("encoder_parameters")
    size = f", {millions / 1e6:.1f} M parameters" if millions else ""
    return f"{run.config['encoder']['name']}{f', {dim} features' if dim else ''}{size}"


def parameters_of(about: Mapping[str, Any]) -> str:
    if not about.get("parameters"):
        return ""
    encoder = (
        f", {about['encoder_parameters'] / 1e6:.2f} M in the encoder"
        if about.get("encoder_parameters")
        else ""
    )
    return f"{about['parameters'] / 1e6:.2f} M trained{encoder}"


def optimizer_of(config: Mapping[str, Any]) -> str:
    found = config.get("optimizer") or {}
    return (
        f"{found['name']}, lr {found['lr']:g}, weight decay {found['weight_decay']:g}"
        if {"name", "lr", "weight_decay"} <= set(found)
        else ""
    )


def not_here(why: Any) -> Missing:
    return Missing(as_sentence(str(why or "it was not made")))


def as_sentence(words: str) -> str:
    path = "/" in words.split(" ", 1)[0]  # which is spelt as it is
    return (words if path else f"{words[:1].upper()}{words[1:]}") + (
        "" if words.endswith((".", ")", "`")) else "."
    )


def listed(words: Iterable[str]) -> str:
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def grouped(
    parts: Mapping[str, dict[str, Any]], key: Callable[[dict[str, Any]], Any]
) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = {}
    for row, part in parts.items():
        found.setdefault(key(part), []).append(row)
    return found
