"""Diagnose a run from the files in its folder, for `smi doctor`.

Only runs of earlier versions need torch: their run.json does not describe the method.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from smi.errors import UserError
from smi.health.checks import Finding, Level
from smi.health.history import WINDOW, finite_number
from smi.health.run_context import Context
from smi.health.watch import find_problems
from smi.imports import is_trusted
from smi.methods.description import MethodDescription
from smi.runs.names import kept_name
from smi.runs.run import CONFIG, Run
from smi.terminal import counted, quietly

HEALTHY = "This run looks healthy."
MIN_LINES = 2 * WINDOW  # fewer lines of metrics do not allow a verdict


@dataclass(frozen=True)
class Diagnosis:
    """Hold the health of a run; `steps` and `epoch` say how far it has come."""

    folder: str
    method: str
    status: str
    steps: int
    epoch: float | None
    epochs: float | None
    verdict: str
    expected_range: tuple[float, float] | None  # the least loss, and that of random embeddings
    findings: list[Finding]

    @property
    def level(self) -> Level | Literal["unknown"]:
        """Return the worst level of all findings; "unknown" if it is too early to say."""
        levels = {finding.level for finding in self.findings}
        if "stop" in levels:
            return "stop"
        if "warning" in levels:
            return "warning"
        return "ok" if self.verdict == HEALTHY else "unknown"

    def text(self) -> str:
        """Return the verdict, then each finding with its evidence and advice."""
        total = f" of {self.epochs:g}" if self.epochs else ""
        epoch = f", epoch {self.epoch:.4g}{total}" if self.epoch is not None else ""
        lines = [self.verdict, f"  {self.method}, step {self.steps:,}{epoch}, {self.status}", ""]
        for finding in self.findings:
            lines.append(f"{finding.level:<9}{finding.sentence}")
            lines.append(f"         {finding.evidence}")
            if finding.advice:
                lines.append(f"         What to do: {finding.advice}")
        return "\n".join(lines).rstrip()

    def plain(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def diagnose(run: str | Path | Run, *, quiet: bool = False) -> Diagnosis:
    """Diagnose a run, finished or not, from its metrics.

    diagnosis = smi.diagnose("runs/mine")
    print(diagnosis.verdict, diagnosis.findings[0].advice)
    """
    with quietly(quiet):
        if not isinstance(run, Run):
            run = Run(run)
        context = context_of(run)
        lines = run.lines()
        findings = find_problems(context, lines)
        training = [line for line in lines if "loss" in line]
        last = training[-1] if training else {}
        return Diagnosis(
            folder=str(run.folder),
            method=context.method,
            status=run.facts.status or "unknown",
            steps=int(finite_number(last, "step") or 0),
            epoch=finite_number(last, "epoch"),
            epochs=context.epochs,
            verdict=_verdict(findings, len(training), finished=run.finished),
            expected_range=context.description.loss_range,
            findings=findings,
        )


# ------------------------------------------------------------------------------- reading the run


def context_of(run: Run) -> Context:
    """Return the context of the health checks, from config.yaml and run.json."""
    config, facts = run.config, run.facts
    method = config["method"]
    if "name" not in method:
        raise UserError(f"{run.folder / CONFIG} does not name the method of a run")
    world_size = facts.world_size or 1
    total_batch_size = int(finite_number(config, "batch_size") or 0)
    setup: dict[str, Any] = {
        "batch_size": facts.batch_per_device or total_batch_size // world_size,
        "embedding_dim": facts.embedding_dim,
        "world_size": world_size,
        "num_views": facts.num_views or 2,
        "settings": {str(key): value for key, value in method.items() if key != "name"},
    }
    name = str(method["name"])
    init = config.get("init")
    init = init if isinstance(init, Mapping) else {}  # earlier versions do not have it
    description = facts.method
    if description is None:
        description = _describe_by_class(name, setup)
    return Context(
        method=name,
        batch_size=setup["batch_size"],
        embedding_dim=facts.embedding_dim,
        feature_dim=facts.feature_dim or 0,
        epochs=facts.epochs or finite_number(config, "epochs"),
        description=MethodDescription.parse(description),
        started_from=_text_or_none(init.get("source")),
        statistics=_text_or_none(init.get("statistics")),
        select=_text_or_none(config.get("select")),
        kept=_kept_encoder(run),
    )


def _kept_encoder(run: Run) -> str:
    """Say which encoder best.safetensors holds; empty if there is no such file."""
    try:
        header = run.best_header() or {}
        which, score = kept_name(header), float(header["selected"]["score"])
    except (ValueError, KeyError, TypeError):  # missing, or not ours
        return ""
    return f"{which}, with {score:.1%}"


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _describe_by_class(name: str, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the method of a run by its class: earlier versions did not write this down."""
    from smi.methods import METHOD_NAMES, LossSetup, find_method  # imports torch

    if name not in METHOD_NAMES and not is_trusted(name):
        return {}
    try:
        method = find_method(name)
    except Exception:  # the user's module may be missing, or fail in any way
        return {}
    return method.describe(LossSetup(**setup))


def _verdict(findings: list[Finding], num_lines: int, *, finished: bool) -> str:
    problems = [finding for finding in findings if finding.level != "ok"]
    if any(finding.level == "stop" for finding in problems):
        return "This run is broken: stop it, and start again from its last good checkpoint."
    if len(problems) == 1:
        return "This run needs attention: one thing is wrong."
    if problems:
        return f"This run needs attention: {len(problems)} things are wrong."
    if num_lines < MIN_LINES and finished:
        return (
            f"This run is finished, and nothing is wrong in its "
            f"{counted(num_lines, 'line')} of metrics: a "
            "run this short shows little."
        )
    if num_lines < MIN_LINES:
        there = "there is" if num_lines == 1 else "there are"
        return (
            f"It is too early to say: {there} {counted(num_lines, 'line')} of metrics, "
            f"and {MIN_LINES} are needed."
        )
    return HEALTHY
