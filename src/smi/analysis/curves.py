"""How training went: the loss, the accuracy of nearest neighbours and the effective rank of features, a line for each run."""

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go  # type: ignore[import-untyped,unused-ignore]

from smi.analysis.logged import add_series, series
from smi.analysis.style import finish, frame, from_zero, legend, looks, plain, setting
from smi.errors import UserError
from smi.run import Run


def loss(runs: Mapping[str, Run]) -> go.Figure:
    """From its first value to its lowest: losses of different objectives are numbers of different sizes, some of them negative."""
    figure = go.Figure()
    for name, look in looks(runs).items():
        epochs, values = series(runs[name], "loss")
        figure.add_scatter(
            x=epochs,
            y=_fall(values),
            customdata=values,
            name=plain(name),
            mode="lines+markers",
            line=look.line(),
            marker=look.marker(),
            hovertemplate="epoch %{x:.1f}: %{customdata:.4g}",
        )
    frame(figure, x="epoch", y="loss, between its first and lowest value")
    figure.update_yaxes(tickformat=".0%")
    from_zero(figure)
    legend(figure)
    return finish(
        figure,
        f"The loss while pretraining ({setting(runs.values())}): 100 % is the first that was logged, 0 % the lowest of that run. Losses of "
        "different objectives are numbers of different sizes, so no curve says which encoder is better.",
    )


def _fall(values: Sequence[float]) -> list[float]:
    first, low = values[0], min(values)
    return [(value - low) / (first - low) for value in values] if first > low else [value - first + 1 for value in values]


def probe(runs: Mapping[str, Run]) -> go.Figure:
    """What runs with labels measured as they trained."""
    found = {name: probes for name, run in runs.items() if (probes := run.probes())}
    if not found:
        raise UserError("none of these runs measured its accuracy while it trained: that takes labels, and log.probe_every above 0")
    figure, styles = go.Figure(), looks(runs)
    for name, probes in found.items():
        figure.add_scatter(
            x=[line["epoch"] for line in probes],
            y=[100 * line["probe"]["knn"] for line in probes],
            name=plain(name),
            mode="lines+markers",
            line=styles[name].line(),
            marker=styles[name].marker(),
            hovertemplate="epoch %{x:.1f}: %{y:.2f} %",
        )
    frame(figure, x="epoch", y="kNN top-1, %")
    from_zero(figure)
    legend(figure)
    last = next(iter(found.values()))[-1]["probe"]
    images = f" of {last['images']:,} held-out images among {last['bank']:,} labelled ones" if {"images", "bank"} <= set(last) else ""
    return finish(
        figure,
        f"Accuracy of nearest neighbours{images} while pretraining ({setting(runs.values())}). No label takes part in pretraining.",
    )


def effective_rank(runs: Mapping[str, Run]) -> go.Figure:
    figure = go.Figure()
    add_series(figure, runs, "effective_rank")
    if not figure.data:
        raise UserError("none of these runs logged the effective rank of its features")
    frame(figure, x="epoch", y="effective rank")
    figure.update_yaxes(rangemode="tozero")
    from_zero(figure)
    legend(figure)
    return finish(
        figure,
        f"How many directions the features of a batch fill while pretraining ({setting(runs.values())}): the exponential of the entropy of "
        "the spectrum of their covariance. 1 is collapse to a line.",
    )
