"""A run's health while it trains, and afterwards."""

from collections.abc import Iterable
from dataclasses import replace

from smi.health.checks import Finding, check, check_finite
from smi.health.history import History, Line
from smi.health.ranges import Context, number


class Watch:
    """Call it with each line of metrics: it returns what is newly wrong, each kind of trouble once.

    What it knows is a function of the lines it was given, so a resumed run gives it the earlier ones again. A line of a step it has seen
    already changes nothing.
    """

    def __init__(self, context: Context):
        self._history = History(context)
        self._told: set[str] = set()

    def __call__(self, line: Line) -> list[Finding]:
        if not self._history.add(line):
            return []
        found = [
            finding
            for finding in check(self._history)
            if finding.level != "ok" and finding.kind not in self._told
        ]
        self._told.update(finding.kind for finding in found)
        return found


def diagnose(context: Context, lines: Iterable[Line]) -> list[Finding]:
    """All that a run's metrics show: trouble first, then what looks healthy.

    Trouble that has passed is told as it was. Of lines that a resumed run wrote again, the last count.
    """
    history = History(context)
    past: dict[str, Finding] = {}
    for line in _without_abandoned(lines):
        if history.add(line):
            past.update(
                {
                    finding.kind: finding
                    for finding in check(history)
                    if finding.level != "ok" and finding.kind not in past
                }
            )
    now = {finding.kind: finding for finding in check(history)}
    for kind, finding in past.items():
        if kind not in now:  # nothing can be said of it any more
            now[kind] = finding
        elif now[kind].level == "ok":
            now[kind] = replace(
                finding, evidence=f"{finding.evidence}; no longer so at step {history.step}"
            )
    return sorted(now.values(), key=lambda finding: ("stop", "warning", "ok").index(finding.level))


def nan_diagnosis(context: Context, lines: Iterable[Line]) -> Finding | None:
    """Where the loss stopped being a number, what came before, and what to try; None if it did not."""
    history = History(context)
    for line in _without_abandoned(lines):
        history.add(line)
    finding = check_finite(history)
    return finding if finding and finding.level == "stop" else None


def _without_abandoned(lines: Iterable[Line]) -> list[Line]:
    """A run that is resumed from a checkpoint writes the steps after it again: what was written of them before is dropped."""
    kept: list[Line] = []
    for line in lines:
        step = number(line, "step")
        while kept and step is not None and _comes_again(kept[-1], line, step):
            kept.pop()
        kept.append(line)
    return kept


def _comes_again(earlier: Line, line: Line, step: float) -> bool:
    then = number(earlier, "step")
    return then is not None and (
        then > step or (then == step and ("probe" in earlier) == ("probe" in line))
    )
