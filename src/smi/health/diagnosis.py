"""`smi doctor RUN`: what a run's folder says about its health. Reads files, needs no torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from smi.errors import UserError
from smi.health import Context, Finding, diagnose, expected_range
from smi.health.history import WINDOW, finite_number


@dataclass(frozen=True)
class Diagnosis:
    """What is printed. `steps` and `epoch`: how far the run has come."""

    folder: str
    method: str
    status: str
    steps: int
    epoch: float | None
    epochs: float | None
    verdict: str
    expected_range: (
        tuple[float, float] | None
    )  # of the loss: the least, and that of random embeddings
    findings: list[Finding]


def print_doctor(folder: Path, *, as_json: bool) -> None:
    diagnosis = examine(folder)
    print(json.dumps(asdict(diagnosis), indent=2, allow_nan=False) if as_json else _text(diagnosis))


def examine(folder: Path) -> Diagnosis:
    config, run = _config(folder), _run(folder)
    context = _context(config, run)
    lines = _lines(folder / "metrics.jsonl")
    findings = diagnose(context, lines)
    training = [line for line in lines if "loss" in line]
    last = training[-1] if training else {}
    return Diagnosis(
        folder=str(folder),
        method=context.method,
        status=str(run.get("status", "unknown")),
        steps=int(finite_number(last, "step") or 0),
        epoch=finite_number(last, "epoch"),
        epochs=context.epochs,
        verdict=_verdict(findings, len(training)),
        expected_range=expected_range(context),
        findings=findings,
    )


# -------------------------------------------------------------------------------------------------------------------- what is read


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(_read(folder, "config.yaml"))
    except yaml.YAMLError as error:
        raise UserError(
            f"{folder / 'config.yaml'} is not YAML: {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(config, Mapping) or "method" not in config:
        raise UserError(
            f"{folder / 'config.yaml'} names no method: it is not the configuration of a run"
        )
    return config


def _run(folder: Path) -> Mapping[str, Any]:
    try:
        run = json.loads(_read(folder, "run.json"))
    except json.JSONDecodeError as error:
        raise UserError(f"{folder / 'run.json'} is not JSON: {error}") from error
    if not isinstance(run, Mapping):
        raise UserError(f"{folder / 'run.json'} does not describe a run")
    return run


def _read(folder: Path, name: str) -> str:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give that of a run")
    if not (folder / name).is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no {name}")
    return (folder / name).read_text(encoding="utf-8", errors="replace")


def _context(config: Mapping[str, Any], run: Mapping[str, Any]) -> Context:
    method = (
        config["method"] if isinstance(config["method"], Mapping) else {"name": config["method"]}
    )
    world_size = _whole(run, "world_size") or 1
    return Context(
        method=str(method.get("name", "unknown")),
        batch_size=_whole(run, "batch_per_device")
        or (_whole(config, "batch_size") or 0) // world_size,
        embedding_dim=_whole(run, "embedding_dim"),
        feature_dim=_whole(run, "feature_dim") or 0,
        num_views=_whole(run, "num_views") or 2,
        settings={str(name): value for name, value in method.items() if name != "name"},
        world_size=world_size,
        epochs=finite_number(config, "epochs"),
    )


def _whole(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _lines(path: Path) -> list[dict[str, Any]]:
    """A line that a crash cut short is left out, and so is what a resumed run wrote behind it on the same line."""
    lines = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for row in text.split("\n"):
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


# ----------------------------------------------------------------------------------------------------------------- what is printed


def _verdict(findings: list[Finding], num_lines: int) -> str:
    trouble = [finding for finding in findings if finding.level != "ok"]
    if any(finding.level == "stop" for finding in trouble):
        return "This run is broken: stop it, and start again from its last good checkpoint."
    if trouble:
        return (
            "This run needs attention: one thing is wrong."
            if len(trouble) == 1
            else f"This run needs attention: {len(trouble)} things are wrong."
        )
    if num_lines < 2 * WINDOW:
        return f"It is too early to say: there are {num_lines} lines of metrics, and {2 * WINDOW} are needed."
    return "This run looks healthy."


def _text(d: Diagnosis) -> str:
    of = f" of {d.epochs:g}" if d.epochs else ""
    epoch = f", epoch {d.epoch:.4g}{of}" if d.epoch is not None else ""
    lines = [d.verdict, f"  {d.method}, step {d.steps:,}{epoch}, {d.status}", ""]
    for finding in d.findings:
        lines.append(f"{finding.level:<9}{finding.sentence}")
        lines.append(f"         {finding.evidence}")
        if finding.advice:
            lines.append(f"         What to do: {finding.advice}")
    return "\n".join(lines).rstrip()
