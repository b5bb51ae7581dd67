"""Record a run while it trains: metrics.jsonl, progress, health warnings, TensorBoard and W&B."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from smi.device import peak_memory_mb
from smi.distributed import all_mean, rank
from smi.errors import TrainingError
from smi.files import finite
from smi.health import Context, Watch, nan_diagnosis
from smi.methods import Output
from smi.runs.run import Run
from smi.terminal import announce
from smi.training.bar import Bar, Length
from smi.training.loggers import Logger
from smi.training.metrics import representation_metrics
from smi.training.signals import Stop


class Journal:
    """Collect the numbers of each step on the device, and write a line every few steps.

    Between two lines nothing is copied from the device. Only rank 0 writes and prints.

    start: steps done before, when a run is resumed.
    pending: values of steps since the last line, as `state` returned them.
    """

    def __init__(
        self,
        run: Run,
        length: Length,
        *,
        log_every: int,
        device: torch.device,
        loggers: Sequence[Logger] = (),
        start: int = 0,
        pending: Mapping[str, Tensor] | None = None,
    ):
        self._run = run
        self._length = length
        self._log_every = log_every
        self._device = device
        self._loggers = loggers
        self._done = start
        self._pending: dict[str, list[Tensor]] = {
            name: list(values.to(device)) for name, values in (pending or {}).items()
        }
        self._context: Context | None = None
        self._watch: Watch | None = None
        self._stop_flag = Stop()
        is_rank_0 = rank() == 0
        self._last: Mapping[str, Any] | None = None
        self._probe: Mapping[str, Any] | None = None
        self._file = run.open_metrics() if is_rank_0 else None
        self._bar = Bar(length, start) if is_rank_0 else None
        self._reset_clock()

    @property
    def done(self) -> int:
        """Return the number of steps done."""
        return self._done

    # ---------------------------------------------------------------------------- while it trains

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the block as waiting for data."""
        before = time.perf_counter()
        yield
        self._waited += time.perf_counter() - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside the block out of the speed: probes and checkpoints."""
        before = time.perf_counter()
        yield
        self._paused += time.perf_counter() - before

    def start_watch(self, context: Context) -> None:
        """Start the health checks; lines that were written before are checked silently.

        They are read one by one, and only the last ones are kept.
        """
        self._context = context
        if self._file is None:
            return
        watch = Watch(context)
        for line in self._run.iterate_lines():
            watch(line)
            self._last = line if "loss" in line else self._last
            self._probe = line.get("probe", self._probe)
        self._watch = watch

    def agree_on(self, stop: Stop) -> None:
        """Let all processes stop at the next line of metrics if one of them has had a signal."""
        self._stop_flag = stop

    def record(
        self,
        done: int,
        out: Output,
        gradient_norm: Tensor,
        lr: float,
        *,
        skipped: bool = False,
        scale: Callable[[], float] | None = None,
    ) -> None:
        """Record one step, and write a line when one is due.

        skipped: a gradient overflowed in float16, so the optimizer was not called. Such a step is
        counted, and its loss and gradient are left out.
        scale: reads the factor of the loss in float16.
        """
        if scale:
            self._pending.setdefault("skipped", []).append(gradient_norm.new_tensor(float(skipped)))
        if not skipped:
            self._pending.setdefault("loss", []).append(out.loss.detach())
            self._pending.setdefault("gradient_norm", []).append(gradient_norm)
        self._steps += 1
        self._done = done
        end_of_epoch = done % self._length.steps_per_epoch == 0
        if done % self._log_every == 0 or end_of_epoch or done == self._length.steps:
            scaling = self._scaling(scale) if scale else {}
            if "loss" in self._pending:
                self._write_metrics(out, lr, scaling)
            else:
                self._pending = {}
                self._write({**self._stamp(), "lr": lr, **scaling})

    def record_probe(self, result: Mapping[str, Any]) -> None:
        """Write a line with the result of a probe."""
        self._probe = result
        self._write(self._stamp() | {"probe": dict(result)})

    def show(self) -> None:
        """Update the progress bar."""
        if self._bar:
            self._bar.show(self._done, self._last, self._probe)

    def state(self) -> dict[str, Any]:
        """Return the values for a checkpoint: pending values and the length of metrics.jsonl."""
        self.check_finite()
        position = 0
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            position = self._file.tell()
        return {"pending": self._stack_pending(), "position": position}

    def check_finite(self) -> None:
        """Stop if a value since the last line is NaN or infinite: it must not be saved."""
        pending = {name: values.tolist() for name, values in self._stack_pending().items()}
        if not all(math.isfinite(value) for values in pending.values() for value in values):
            self._stop(self._stamp() | {"loss": math.nan, "per_step": pending})

    def close(self) -> None:
        """Close metrics.jsonl, the progress bar and the loggers."""
        if self._file:
            self._file.close()
        if self._bar:
            self._bar.close()
        for logger in self._loggers:
            logger.close()

    # -------------------------------------------------------------------------------------- lines

    def _scaling(self, scale: Callable[[], float]) -> dict[str, float]:
        """Return the factor of the loss in float16, and the steps that overflowed since a line."""
        return {"scale": scale(), "skipped": sum(map(int, self._pending.pop("skipped")))}

    def _write_metrics(self, out: Output, lr: float, scaling: Mapping[str, float]) -> None:
        """Average the pending values and write a line: the only host sync of training."""
        terms, metrics, losses, norms = self._gather(out)
        self._pending = {}
        line = {
            **self._stamp(),
            "loss": sum(losses) / len(losses),
            "terms": terms,
            "ratio": _ratio(terms),
            "gradient_norm": sum(norms) / len(norms),
            **metrics,
            "lr": lr,
            **scaling,
            "per_step": {"loss": losses, "gradient_norm": norms},
            "timing": self._timing(),
        }
        self._reset_clock()
        if not all(map(math.isfinite, (*losses, *norms))):
            self._stop(line)
        self._last = line
        self._write(line)

    def _gather(
        self, out: Output
    ) -> tuple[dict[str, float], dict[str, float], list[float], list[float]]:
        """Return terms, metrics, losses and gradient norms since a line, averaged over ranks.

        The flag of a signal travels with them, which costs no further exchange.
        """
        terms = {name: value.detach() for name, value in out.terms.items()}
        metrics = representation_metrics(out.h, out.z1, out.z2)
        values = [value.float() for value in (*terms.values(), *metrics.values())]
        pending = self._stack_pending()
        losses = pending["loss"]
        norms = pending["gradient_norm"]
        flag = losses.new_tensor([float(self._stop_flag.signal != 0)])
        *numbers, stopping = all_mean(
            torch.cat([torch.stack(values), losses, norms, flag])
        ).tolist()
        if stopping > 0:
            self._stop_flag.agree()
        end = len(terms)
        start = len(values)
        return (
            dict(zip(terms, numbers[:end], strict=True)),
            dict(zip(metrics, numbers[end:start], strict=True)),
            numbers[start : start + len(losses)],
            numbers[start + len(losses) :],
        )

    def _stack_pending(self) -> dict[str, Tensor]:
        return {name: torch.stack(values).float() for name, values in self._pending.items()}

    def _stamp(self) -> dict[str, Any]:
        return {"step": self._done, "epoch": self._length.epoch(self._done)}

    def _reset_clock(self) -> None:
        self._begin = time.perf_counter()
        self._waited = 0.0
        self._paused = 0.0
        self._steps = 0

    def _timing(self) -> dict[str, float]:
        seconds = max(time.perf_counter() - self._begin - self._paused, 1e-9)
        return {
            "images_per_second": self._steps * self._length.images_per_step / seconds,
            "waiting": self._waited / seconds,
            "peak_memory_mb": peak_memory_mb(self._device),
        }

    def _write(self, line: dict[str, Any]) -> None:
        """Write a line, print new health warnings, and call the loggers."""
        if not self._file:
            return
        self._file.write(json.dumps(finite(line)) + "\n")
        self._file.flush()
        for finding in self._watch(line) if self._watch else ():
            announce(f"warning: {finding.sentence} ({finding.evidence}) {finding.advice}")
        for logger in self._loggers:
            logger.log(line)

    def _stop(self, line: dict[str, Any]) -> NoReturn:
        """Write the line for `smi doctor`, and raise a TrainingError that explains it."""
        earlier = self._run.lines()
        if self._file:
            self._file.write(json.dumps(finite(line | {"loss": None})) + "\n")
            self._file.flush()
        assert self._context is not None  # the watch is started before the first record
        finding = nan_diagnosis(self._context, [*earlier, line | {"loss": math.nan}])
        assert finding is not None
        raise TrainingError(f"{finding.sentence} ({finding.evidence}) {finding.advice}")


def _ratio(terms: Mapping[str, float]) -> float | None:
    """Divide all other terms by the alignment; None for a method with no other term.

    The other terms keep samples or coordinates apart, the alignment brings views together.
    """
    others = [value for name, value in terms.items() if name != "alignment"]
    return sum(others) / terms["alignment"] if others and terms.get("alignment") else None
