"""Draw the gradient norm of every step as a rolling mean on a logarithmic axis."""

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import MAX_LINE_POINTS, Series, add_lines, lines_of
from smi.figures.style import finish, frame, from_zero, legend
from smi.runs.names import named_seed_groups, seed_caption, shared_settings
from smi.runs.run import Run
from smi.terminal import counted

WINDOW = 50  # steps, as in the paper
WINDOWS_PER_BLOCK = 10_000  # a million windows of 50 numbers would not fit into small memory


def gradient_norm(runs: Mapping[str, Run], *, window: int = WINDOW) -> go.Figure:
    """Draw the mean gradient norm of the last `window` steps."""
    figure = go.Figure()
    groups = named_seed_groups(runs)
    norms_of = functools.cache(per_step)  # a long run takes seconds to read
    longest = max((len(norms_of(run)[0]) for run in runs.values()), default=1)
    # All runs show the same steps, so that seeds have a mean.
    interval = max(1, math.ceil(longest / (MAX_LINE_POINTS - 1)))  # and the last one

    def smooth(run: Run) -> Series:
        steps, norms = norms_of(run)
        shown = steps % interval == 0
        shown[-1:] = True
        return steps[shown].tolist(), rolling_mean(norms, window)[shown].tolist()

    add_lines(figure, groups, smooth, hover="step %{x}: %{y:.4g}")
    frame(figure, x="step", y="gradient norm", log_y=True)
    from_zero(figure)
    _show_powers_of_ten(figure)
    legend(figure, log_y=True)
    return finish(
        figure,
        f"Gradient norm during pretraining ({shared_settings(runs.values())}): the mean of the "
        f"last {counted(window, 'step')}, or of all steps so far.{seed_caption(groups)}",
    )


def per_step(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the steps, counted from 1, and the gradient norm of each."""
    steps: list[int] = []
    norms: list[float] = []
    lines_of(run)  # refuses a run without any
    for line in run.iterate_lines():
        if line.get("loss") is None:
            continue
        values = (line.get("per_step") or {}).get("gradient_norm")
        if not values:
            raise UserError(
                f"{run.folder / 'metrics.jsonl'} has no gradient norm of every step (per_step): "
                "pretrain it again"
            )
        steps += range(line["step"] - len(values) + 1, line["step"] + 1)
        norms += [np.nan if value is None else value for value in values]
    return np.array(steps), np.array(norms, dtype=np.float64)


def rolling_mean(values: Sequence[float] | NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of the last `window` values, or of all so far; NaN is skipped.

    Each window is summed separately: a running sum would carry one huge value, or a NaN, along.
    """
    numbers = np.asarray(values, dtype=np.float64)
    padded = np.concatenate([np.full(window - 1, np.nan), numbers])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)
    means = np.empty(len(numbers))
    for start in range(0, len(numbers), WINDOWS_PER_BLOCK):
        block = windows[start : start + WINDOWS_PER_BLOCK]
        finite = np.isfinite(block)
        count = finite.sum(axis=1)
        sums = np.where(finite, block, 0.0).sum(axis=1)
        means[start : start + len(block)] = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return means


def _show_powers_of_ten(figure: go.Figure) -> None:
    """Widen an axis of less than a decade to the powers of ten around it, so it has labels."""
    values = np.concatenate([np.asarray(trace.y, dtype=np.float64) for trace in figure.data])
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        low, high = np.log10(values.min()), np.log10(values.max())
        if np.floor(high) - np.ceil(low) < 1:
            figure.update_yaxes(range=[float(np.floor(low)), float(np.ceil(high))])
