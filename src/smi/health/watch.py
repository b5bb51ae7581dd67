"""Find the problems of a run, during training and afterwards."""

from collections.abc import Iterable
from dataclasses import replace

from smi.health.checks import Finding, check_loss_is_finite, run_checks
from smi.health.history import History, Line, number
from smi.health.run_context import Context


class Watch:
    """Report new problems: call it with each line of metrics; each kind is reported once.

    The result depends only on the lines, so a resumed run repeats the earlier ones. A line of a
    step that was seen before changes nothing.
    """

    def __init__(self, context: Context):
        self._history = History(context)
        self._reported: set[str] = set()

    def __call__(self, line: Line) -> list[Finding]:
        if not self._history.add(line):
            return []
        findings = [
            finding
            for finding in run_checks(self._history)
            if finding.level != "ok" and finding.kind not in self._reported
        ]
        self._reported.update(finding.kind for finding in findings)
        return findings


def find_problems(context: Context, lines: Iterable[Line]) -> list[Finding]:
    """Return all findings in the metrics of a run: problems first, then what looks healthy.

    A problem that has passed keeps its evidence. If a resumed run repeats steps, the later lines
    count.
    """
    history = History(context)
    past: dict[str, Finding] = {}
    for line in _without_abandoned(lines):
        if history.add(line):
            for finding in run_checks(history):
                if finding.level != "ok":
                    past.setdefault(finding.kind, finding)
    current = {finding.kind: finding for finding in run_checks(history)}
    for kind, finding in past.items():
        if kind not in current:  # the check cannot decide any more
            current[kind] = finding
        elif current[kind].level == "ok":
            current[kind] = replace(
                finding, evidence=f"{finding.evidence}; no longer true at step {history.step}"
            )
    levels = ("stop", "warning", "ok")
    return sorted(current.values(), key=lambda finding: levels.index(finding.level))


def nan_diagnosis(context: Context, lines: Iterable[Line]) -> Finding | None:
    """Return where the loss became NaN or infinite, and what to try; None if it did not."""
    history = History(context)
    for line in _without_abandoned(lines):
        history.add(line)
    finding = check_loss_is_finite(history)
    return finding if finding and finding.level == "stop" else None


def _without_abandoned(lines: Iterable[Line]) -> list[Line]:
    """Drop lines that a run wrote again after it was resumed from a checkpoint."""
    valid: list[Line] = []
    for line in lines:
        step = number(line, "step")
        while valid and step is not None and _is_repeated(valid[-1], line, step):
            valid.pop()
        valid.append(line)
    return valid


def _is_repeated(earlier: Line, line: Line, step: float) -> bool:
    earlier_step = number(earlier, "step")
    if earlier_step is None:
        return False
    same_kind = ("probe" in earlier) == ("probe" in line)
    return earlier_step > step or (earlier_step == step and same_kind)
