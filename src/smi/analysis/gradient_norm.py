"""The gradient's norm at every step: a rolling mean, on a logarithmic axis."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]

from smi.analysis.logged import lines_of
from smi.analysis.style import finish, frame, from_zero, legend, looks, setting
from smi.errors import UserError
from smi.run import Run

WINDOW = 50  # steps, as in the paper


def gradient_norm(runs: Mapping[str, Run], *, window: int = WINDOW) -> go.Figure:
    figure = go.Figure()
    for name, look in looks(runs).items():
        steps, norms = per_step(runs[name])
        figure.add_scatter(
            x=steps,
            y=rolling_mean(norms, window),
            name=name,
            mode="lines+markers",
            line=look.line(),
            marker=look.marker(),
            hovertemplate="step %{x}: %{y:.4g}",
        )
    frame(figure, x="step", y="gradient norm", log_y=True)
    from_zero(figure)
    _whole_decades(figure)
    legend(figure, log_y=True)
    return finish(
        figure,
        f"Norm of the gradient while pretraining ({setting(runs.values())}): the mean of the last {window} steps, or of as many as there "
        "were so far.",
    )


def per_step(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps from 1 on, and the norm at each."""
    steps: list[int] = []
    norms: list[float] = []
    for line in lines_of(run):
        values = (line.get("per_step") or {}).get("gradient_norm")
        if not values:
            raise UserError(f"{run.folder / 'metrics.jsonl'} has no gradient norm of every step (per_step): pretrain it again")
        steps += range(line["step"] - len(values) + 1, line["step"] + 1)
        norms += [np.nan if value is None else value for value in values]
    return np.array(steps), np.array(norms, dtype=np.float64)


def rolling_mean(values: Sequence[float] | NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Of the last `window` values, or of as many as there were so far."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    found: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return found


def _whole_decades(figure: go.Figure) -> None:
    """An axis with no power of ten on it says nothing: one that spans less than a decade is widened to the powers around."""
    values = np.concatenate([trace.y for trace in figure.data])
    values = values[np.isfinite(values) & (values > 0)]
    if len(values):
        low, high = np.log10(values.min()), np.log10(values.max())
        if np.floor(high) - np.ceil(low) < 1:
            figure.update_yaxes(range=[float(np.floor(low)), float(np.ceil(high))])
