"""What a run says while it trains: metrics.jsonl, a progress bar or a line per epoch, warnings, TensorBoard and W&B."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from smi.device import peak_memory_mb
from smi.distributed import all_mean, rank, world_size
from smi.errors import TrainingError
from smi.health import Context, Watch, nan_diagnosis
from smi.methods import Output
from smi.runs.run import Run
from smi.terminal import announce
from smi.training.bar import Bar
from smi.training.loggers import Logger
from smi.training.metrics import statistics


class Journal:
    """Between two lines nothing leaves the device. Only the first process writes and speaks."""

    def __init__(
        self,
        folder: Path,
        *,
        context: Context,
        total: int,
        steps_per_epoch: int,
        every: int,
        device: torch.device,
        loggers: Sequence[Logger] = (),
        start: int = 0,
        pending: Mapping[str, Tensor] | None = None,
        lines: Sequence[dict[str, Any]] = (),
        begin: Callable[[int], Context],
    ):
        self.main = rank() == 0
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8") if self.main else None
        self._total, self._steps_per_epoch, self._every, self._device = (
            total,
            steps_per_epoch,
            every,
            device,
        )
        self._images_per_step = context.batch_size * world_size()
        self._loggers = loggers
        self._folder, self._context, self._earlier, self._begin = folder, context, lines, begin
        self._watch: Watch | None = None
        self._last = next((line for line in reversed(lines) if "loss" in line), None)
        self._probe: Mapping[str, Any] | None = next(
            (line["probe"] for line in reversed(lines) if "probe" in line), None
        )
        self._lists: dict[str, list[Tensor]] = {
            name: list(values) for name, values in (pending or {}).items()
        }
        self._done = start
        self._bar = Bar(total, steps_per_epoch, self._images_per_step, start) if self.main else None
        self._reset_clock()

    # ------------------------------------------------------------------------------------------------------------ while it trains

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent here is time the device had nothing to do."""
        before = time.perf_counter()
        yield
        self._waited += time.perf_counter() - before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Time spent here is not time spent training: probes, checkpoints."""
        before = time.perf_counter()
        yield
        self._apart += time.perf_counter() - before

    def note(self, done: int, out: Output, gradient_norm: Tensor, lr: float) -> None:
        """Of every step; writes a line when one is due."""
        if self._watch is None and self.main:
            self._start_watch(out.z1.shape[1])
        self._lists.setdefault("loss", []).append(out.loss.detach())
        self._lists.setdefault("gradient_norm", []).append(gradient_norm)
        self._steps += 1
        self._done = done
        if done % self._every == 0 or done % self._steps_per_epoch == 0 or done == self._total:
            self._line(done, out, lr)

    @property
    def done(self) -> int:
        """Steps."""
        return self._done

    def show(self, done: int) -> None:
        if self._bar:
            self._bar.show(done, self._last, self._probe)

    def _start_watch(self, embedding_dim: int) -> None:
        """At the first step, which shows what the method makes; what was written before is looked at again, silently."""
        self._context = self._begin(embedding_dim)
        self._watch = Watch(self._context)
        for line in self._earlier:
            self._watch(line)

    def _line(self, done: int, out: Output, lr: float) -> None:
        """The only host sync of training."""
        device_values = {
            **{f"term {name}": value.detach() for name, value in out.terms.items()},
            **statistics(out.h, out.z1, out.z2),
        }
        names = list(device_values)
        now = torch.stack([value.float() for value in device_values.values()])
        lists = {name: torch.stack(values).float() for name, values in self._lists.items()}
        numbers = all_mean(torch.cat([now, lists["loss"]])).tolist()
        values, losses = dict(zip(names, numbers, strict=False)), numbers[len(names) :]
        norms = lists["gradient_norm"].tolist()
        self._lists = {}
        terms = {
            name.removeprefix("term "): values.pop(name)
            for name in names
            if name.startswith("term ")
        }
        line = {
            "step": done,
            "epoch": done / self._steps_per_epoch,
            "loss": sum(losses) / len(losses),
            "terms": terms,
            "ratio": _ratio(terms),
            "gradient_norm": sum(norms) / len(norms),
            **values,
            "lr": lr,
            "per_step": {"loss": losses, "gradient_norm": norms},
            "timing": self._timing(),
        }
        self._reset_clock()
        if not all(map(math.isfinite, (*losses, *norms))):
            self._stop(line)
        self._last = line
        self._write(line)

    def probe(self, done: int, result: Mapping[str, Any]) -> None:
        self._probe = result
        self._write({"step": done, "epoch": done / self._steps_per_epoch, "probe": dict(result)})

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the journal: what was written so far, and what was not yet."""
        self.check()
        pending = {name: torch.stack(values).float() for name, values in self._lists.items()}
        position = 0
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            position = self._file.tell()
        return {"pending": pending, "position": position}

    def check(self) -> None:
        """Nothing since the last line may be saved or looked at if it is not finite."""
        pending = {
            name: torch.stack(values).float().tolist() for name, values in self._lists.items()
        }
        if not all(math.isfinite(value) for values in pending.values() for value in values):
            self._stop(
                {
                    "step": self._done,
                    "epoch": self._done / self._steps_per_epoch,
                    "loss": math.nan,
                    "per_step": pending,
                }
            )

    def close(self) -> None:
        if self._file:
            self._file.close()
        if self._bar:
            self._bar.close()
        for logger in self._loggers:
            logger.close()

    # ----------------------------------------------------------------------------------------------------------------- its parts

    def _reset_clock(self) -> None:
        self._begun, self._waited, self._apart, self._steps = time.perf_counter(), 0.0, 0.0, 0

    def _timing(self) -> dict[str, float]:
        seconds = max(time.perf_counter() - self._begun - self._apart, 1e-9)
        return {
            "images_per_second": self._steps * self._images_per_step / seconds,
            "waiting": self._waited / seconds,
            "peak_memory_mb": peak_memory_mb(self._device),
        }

    def _write(self, line: dict[str, Any]) -> None:
        if not self._file:
            return
        self._file.write(json.dumps(_finite(line)) + "\n")
        self._file.flush()
        for finding in self._watch(line) if self._watch else ():
            announce(f"warning: {finding.sentence} ({finding.evidence}) {finding.advice}")
        for logger in self._loggers:
            logger.log(line)

    def _stop(self, line: dict[str, Any]) -> NoReturn:
        """Writes the line, for `smi doctor` to see, and says what it means."""
        earlier = Run(self._folder).lines()
        if self._file:
            self._file.write(json.dumps(_finite(line | {"loss": None})) + "\n")
            self._file.flush()
        finding = nan_diagnosis(self._context, [*earlier, line | {"loss": math.nan}])
        assert finding is not None
        raise TrainingError(f"{finding.sentence} ({finding.evidence}) {finding.advice}")


def _ratio(terms: Mapping[str, float]) -> float | None:
    """Of what keeps samples or coordinates apart to what brings views together; None where a method has only the latter."""
    others = [value for name, value in terms.items() if name != "alignment"]
    return sum(others) / terms["alignment"] if others and terms.get("alignment") else None


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
