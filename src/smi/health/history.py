"""Summarise the metrics of a run: first, last and extreme values, updated line by line."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smi.health.run_context import Context
from smi.runs.names import CRITERIA

Line = Mapping[str, Any]

NUM_LAST_PROBES = 3
WINDOW = 5  # lines; their median is the value now, or at the start


@dataclass
class Series:
    """Summarise one metric: its first and last values and the extremes of its rolling median."""

    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    count: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, value: float | None) -> None:
        """Add the value of a line; None, NaN and infinity are skipped."""
        if value is None or not math.isfinite(value):
            return
        self.count += 1
        if len(self.first) < WINDOW:
            self.first.append(value)
        self.last.append(value)
        if self.count >= WINDOW:
            self.lowest = min(self.lowest, self.now)
            self.highest = max(self.highest, self.now)

    @property
    def start(self) -> float:
        """Return the median of the first values."""
        return statistics.median(self.first)

    @property
    def now(self) -> float:
        """Return the median of the last values."""
        return statistics.median(self.last)

    def settled(self) -> bool:
        """Return whether the first and the last values come from different lines."""
        return self.count >= 2 * WINDOW


@dataclass(frozen=True)
class Probe:
    """Hold the score of the encoder on held-out images after a step."""

    step: int
    epoch: float | None
    criterion: str  # "knn", or "retrieval" of views without labels
    score: float
    chance: float  # the score of guessing
    images: int | None  # held out
    criteria: dict[str, float] = field(default_factory=dict)  # without labels, as CRITERIA has them

    @classmethod
    def parse(cls, step: int, epoch: float | None, values: Line) -> "Probe | None":
        """Read the probe of a line; None if it has no score."""
        criterion = "knn" if "knn" in values else "retrieval"
        score, chance = finite_number(values, criterion), finite_number(values, "chance")
        if score is None or chance is None:
            return None
        halfway = finite_number(values, "halfway")  # the better encoder is the one that counts
        score = score if halfway is None else max(score, halfway)
        images = finite_number(values, "images") or 0
        label_free = values.get("label_free")
        label_free = (
            label_free if isinstance(label_free, Mapping) else {}
        )  # earlier versions do not have it
        numbers = {name: finite_number(label_free, name) for name in CRITERIA if name != criterion}
        criteria = {name: number for name, number in numbers.items() if number is not None}
        num_images = int(images) if images >= 1 else None
        return cls(step, epoch, criterion, score, chance, num_images, criteria)

    @property
    def noise(self) -> float:
        """Return how much the score may change by chance: two standard errors, at least 1 %."""
        share = min(max(self.score, 0.0), 1.0)
        error = math.sqrt(share * (1 - share) / self.images) if self.images else 0.015
        return max(0.01, 2 * error)


@dataclass
class History:
    """Hold everything the checks know about a run."""

    context: Context
    step: int = 0
    epoch: float | None = None
    probe_step: int = -1
    num_lines: int = 0
    loss: Series = field(default_factory=Series)
    gradient: Series = field(default_factory=Series)
    # Feature std times sqrt(F): 1 where features point in all directions equally.
    spread: Series = field(default_factory=Series)
    rank: Series = field(default_factory=Series)
    anticorrelated: Series = field(default_factory=Series)
    waiting: Series = field(default_factory=Series)
    speed: Series = field(default_factory=Series)
    probes: list[Probe] = field(default_factory=list)  # the first and the last few
    probe_epoch: float | None = None
    lr: float | None = None
    last_finite: tuple[int, float] | None = None  # step, loss
    broken: tuple[int, float] | None = None  # the first step with a loss that is not finite
    largest_gradient: tuple[int, float] | None = None  # before that step
    bad_gradients: int = 0  # consecutive lines with a gradient norm that is not finite

    @property
    def range(self) -> tuple[float, float] | None:
        """Return the least loss and that of random embeddings, if they are known."""
        return self.context.description.loss_range

    def add(self, line: Line) -> bool:
        """Add a line; return False if it has no step, or one that was added before."""
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
        is_bad = gradient is not None and not math.isfinite(gradient)
        self.bad_gradients = self.bad_gradients + 1 if is_bad else 0
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
        self.probe_step = step
        self.probe_epoch = finite_number(line, "epoch")
        parsed = Probe.parse(step, self.probe_epoch, probe)
        if parsed is not None:
            self.probes.append(parsed)
            del self.probes[1:-NUM_LAST_PROBES]  # a long run must not fill the memory
        return True

    def _add_loss(self, line: Line) -> None:
        """Find the first loss that is not finite, and the largest gradient before it."""
        if "lr" in line:
            self.lr = number(line, "lr")
        per_step = line.get("per_step")
        if not isinstance(per_step, Mapping):
            per_step = {}
        losses = _steps(per_step, "loss", self.step) if "loss" in line else []
        if "loss" in line:
            losses.append((self.step, _as_number(line["loss"])))
        for step, loss in losses:
            if not math.isfinite(loss):
                self.broken = self.broken or (step, loss)
            elif self.broken is None:
                self.last_finite = (step, loss)
        norms = _steps(per_step, "gradient_norm", self.step)
        norm_now = number(line, "gradient_norm")
        if norm_now is not None:
            norms.append((self.step, norm_now))
        for step, norm in norms:
            before = self.broken is None or step < self.broken[0]
            largest = self.largest_gradient is None or norm > self.largest_gradient[1]
            if before and math.isfinite(norm) and largest:
                self.largest_gradient = (step, norm)
        if self.broken is None:
            self.loss.add(number(line, "loss"))

    @property
    def start_probe(self) -> Probe | None:
        """Return the probe before the first step; runs of earlier versions may have none."""
        return self.probes[0] if self.probes and self.probes[0].step == 0 else None

    @property
    def started(self) -> bool:
        """Return whether the encoder started from weights that exist, not from scratch."""
        return self.context.started_from is not None

    @property
    def gain(self) -> float | None:
        """Return the last probe's score minus that of the start, if both were measured."""
        if self.start_probe is None or len(self.probes) < 2:
            return None
        return self.probes[-1].score - self.start_probe.score

    def late(self, share: float) -> bool:
        """Return whether this share of training is done, or many lines if the length is unknown."""
        if self.epoch is None or not self.context.epochs:
            return self.num_lines >= 10 * WINDOW
        return self.epoch >= share * self.context.epochs

    def probed_late(self, share: float) -> bool:
        """Return whether the last probe came after this share of training."""
        if self.probe_epoch is None or not self.context.epochs:
            return len(self.probes) >= 3
        return self.probe_epoch >= share * self.context.epochs

    @property
    def scale(self) -> float:
        """Return how far this loss can fall, to compare its changes with."""
        if self.range:
            return self.range[1] - self.range[0]
        return max(abs(self.loss.start), self.loss.start - self.loss.lowest)

    @property
    def where(self) -> str:
        """Return the current step in words."""
        return f"at step {self.step}"


def number(line: Line, key: str) -> float | None:
    """Return the value if it is a number, NaN and infinity included."""
    value = line.get(key)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:  # an integer beyond the range of floats
        return math.inf if value > 0 else -math.inf


def finite_number(line: Line, key: str) -> float | None:
    """Return the value if it is a finite number."""
    value = number(line, key)
    return value if value is not None and math.isfinite(value) else None


def _as_number(value: Any) -> float:
    """Return a float; null stands for NaN, which JSON does not have."""
    result = number({"": value}, "")
    return math.nan if result is None else result


def _steps(per_step: Mapping[str, Any], key: str, step: int) -> list[tuple[int, float]]:
    """Return steps and values since the last line; the last value belongs to `step`."""
    values = per_step.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [(step - len(values) + 1 + i, _as_number(value)) for i, value in enumerate(values)]
