"""What is remembered of a run's metrics: first, last and extreme values, a fold over the lines."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smi.health.ranges import Context, expected_range, number

Line = Mapping[str, Any]

WINDOW = 5  # lines whose median is "now", and "the start"


@dataclass
class Series:
    """One number over the lines: its first values, its last, and between which values its rolling median has been."""

    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    count: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        self.count += 1
        if len(self.first) < WINDOW:
            self.first.append(value)
        self.last.append(value)
        if self.count >= WINDOW:
            self.lowest, self.highest = min(self.lowest, self.now), max(self.highest, self.now)

    @property
    def start(self) -> float:
        return statistics.median(self.first)

    @property
    def now(self) -> float:
        return statistics.median(self.last)

    def settled(self) -> bool:
        """First and last values are of different lines."""
        return self.count >= 2 * WINDOW


@dataclass
class History:
    """All that the checks know of a run: a fold over its lines."""

    context: Context
    step: int = 0
    epoch: float | None = None
    probe_step: int = -1
    num_lines: int = 0
    loss: Series = field(default_factory=Series)
    gradient: Series = field(default_factory=Series)
    spread: Series = field(
        default_factory=Series
    )  # feature std times sqrt(F): 1 where features point everywhere alike
    rank: Series = field(default_factory=Series)
    anticorrelated: Series = field(default_factory=Series)
    waiting: Series = field(default_factory=Series)
    speed: Series = field(default_factory=Series)
    probes: list[tuple[float, float]] = field(default_factory=list)  # accuracy, chance
    probe_epoch: float | None = None
    lr: float | None = None
    last_finite: tuple[int, float] | None = None  # step, loss
    broken: tuple[int, float] | None = None  # the first step whose loss is no number
    largest_gradient: tuple[int, float] | None = None  # before it broke
    bad_gradients: int = 0  # lines in a row whose gradient norm is no number

    def __post_init__(self) -> None:
        self.range = expected_range(self.context)

    def add(self, line: Line) -> bool:
        """False if the line's step was there before, or it has none."""
        step = finite_number(line, "step")
        if step is None:
            return False
        if "probe" in line:
            return self._add_probe(int(step), line)
        if int(step) <= self.step and self.num_lines:
            return False
        self.step = int(step)
        self.num_lines += 1
        self.epoch = finite_number(line, "epoch")
        if self.broken is None:
            self._add_loss(line)
        gradient = number(line, "gradient_norm")
        self.gradient.add(gradient)
        self.bad_gradients = (
            self.bad_gradients + 1 if gradient is not None and not math.isfinite(gradient) else 0
        )
        std = number(line, "feature_std")
        self.spread.add(None if std is None else std * math.sqrt(max(self.context.feature_dim, 1)))
        self.rank.add(number(line, "effective_rank"))
        self.anticorrelated.add(number(line, "anticorrelated"))
        timing = line.get("timing")
        if isinstance(timing, Mapping):
            self.waiting.add(number(timing, "waiting"))
            self.speed.add(number(timing, "images_per_second"))
        return True

    def _add_probe(self, step: int, line: Line) -> bool:
        probe = line["probe"]
        if step <= self.probe_step or not isinstance(probe, Mapping):
            return False
        self.probe_step, self.probe_epoch = step, finite_number(line, "epoch")
        accuracy, chance = finite_number(probe, "knn"), finite_number(probe, "chance")
        if accuracy is not None and chance is not None:
            self.probes.append((accuracy, chance))
        return True

    def _add_loss(self, line: Line) -> None:
        self.lr = number(line, "lr") if "lr" in line else self.lr
        every = line.get("per_step")
        every = every if isinstance(every, Mapping) else {}
        losses = (
            [*_steps(every, "loss", self.step), (self.step, _as_number(line["loss"]))]
            if "loss" in line
            else []
        )
        for step, loss in losses:
            if not math.isfinite(loss):
                self.broken = self.broken or (step, loss)
            elif self.broken is None:
                self.last_finite = (step, loss)
        own = number(line, "gradient_norm")
        for step, norm in [
            *_steps(every, "gradient_norm", self.step),
            *([(self.step, own)] if own is not None else []),
        ]:
            before = self.broken is None or step < self.broken[0]
            if (
                before
                and math.isfinite(norm)
                and (self.largest_gradient is None or norm > self.largest_gradient[1])
            ):
                self.largest_gradient = (step, norm)
        if self.broken is None:
            self.loss.add(number(line, "loss"))

    def late(self, share: float) -> bool:
        """This share of training is done; where its length is not known, a good number of lines."""
        if self.epoch is None or not self.context.epochs:
            return self.num_lines >= 10 * WINDOW
        return self.epoch >= share * self.context.epochs

    def probed_late(self, share: float) -> bool:
        if self.probe_epoch is None or not self.context.epochs:
            return len(self.probes) >= 3
        return self.probe_epoch >= share * self.context.epochs

    @property
    def scale(self) -> float:
        """How far this loss has to go, to compare its changes with."""
        if self.range:
            return self.range[1] - self.range[0]
        return max(abs(self.loss.start), self.loss.start - self.loss.lowest)

    @property
    def where(self) -> str:
        return f"at step {self.step}"


def _as_number(value: Any) -> float:
    """JSON proper has no NaN: writers put null in its place."""
    found = number({"": value}, "")
    return math.nan if found is None else found


def _steps(every: Mapping[str, Any], key: str, step: int) -> list[tuple[int, float]]:
    """The values of all steps since the last line, the last of them that of the line's step."""
    values = every.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [(step - len(values) + 1 + i, _as_number(value)) for i, value in enumerate(values)]


def finite_number(line: Line, key: str) -> float | None:
    value = number(line, key)
    return value if value is not None and math.isfinite(value) else None
