"""The gradient's norm at every step: a rolling mean, on a logarithmic axis."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import Series, add_lines, lines_of
from smi.figures.style import finish, frame, from_zero, legend
from smi.runs.names import about_seeds, by_seed, setting
from smi.runs.run import Run

WINDOW = 50  # steps, as in the paper
MOST = 2000  # points of a line: more can be neither seen nor printed


def gradient_norm(runs: Mapping[str, Run], *, window: int = WINDOW) -> go.Figure:
    figure, groups = go.Figure(), by_seed(runs)
    longest = max((len(per_step(run)[0]) for run in runs.values()), default=1)
    every = max(1, -(-longest // MOST))  # the same steps of every run, so that seeds have a mean

    def smooth(run: Run) -> Series:
        steps, norms = per_step(run)
        shown = steps % every == 0
        shown[-1:] = True
        return steps[shown].tolist(), rolling_mean(norms, window)[shown].tolist()

    add_lines(figure, groups, smooth, hover="step %{x}: %{y:.4g}")
    frame(figure, x="step", y="gradient norm", log_y=True)
    from_zero(figure)
    _whole_decades(figure)
    legend(figure, log_y=True)
    return finish(
        figure,
        f"Norm of the gradient while pretraining ({setting(runs.values())}): the mean of the last {window} steps, or of as many as there "
        f"were so far.{about_seeds(groups)}",
    )


def per_step(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps from 1 on, and the norm at each."""
    steps: list[int] = []
    norms: list[float] = []
    for line in lines_of(run):
        values = (line.get("per_step") or {}).get("gradient_norm")
        if not values:
            raise UserError(
                f"{run.folder / 'metrics.jsonl'} has no gradient norm of every step (per_step): pretrain it again"
            )
        steps += range(line["step"] - len(values) + 1, line["step"] + 1)
        norms += [np.nan if value is None else value for value in values]
    return np.array(steps), np.array(norms, dtype=np.float64)


def rolling_mean(values: Sequence[float] | NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Of the last `window` values, or of as many as there were so far; what is no number is left out.

    Each window is summed for itself: running sums would drag what was very large once, or no number, along with them.
    """
    numbers = np.asarray(values, dtype=np.float64)
    padded = np.concatenate([np.full(window - 1, np.nan), numbers])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)
    known = np.isfinite(windows)
    count = known.sum(axis=1)
    sums = np.where(known, windows, 0.0).sum(axis=1)
    found: NDArray[np.float64] = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return found


def _whole_decades(figure: go.Figure) -> None:
    """An axis with no power of ten on it says nothing: one that spans less than a decade is widened to the powers around."""
    values = np.concatenate([np.asarray(trace.y, dtype=np.float64) for trace in figure.data])
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        low, high = np.log10(values.min()), np.log10(values.max())
        if np.floor(high) - np.ceil(low) < 1:
            figure.update_yaxes(range=[float(np.floor(low)), float(np.ceil(high))])
