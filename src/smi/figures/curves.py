"""How training went: the loss, the accuracy of nearest neighbours and the effective rank of features. Of several seeds their mean."""

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import Series, add_lines, add_series, series
from smi.figures.style import finish, frame, from_zero, legend
from smi.runs.names import about_seeds, by_seed, setting
from smi.runs.run import Run


def loss(runs: Mapping[str, Run]) -> go.Figure:
    """Of several objectives from the first value to the lowest: theirs are numbers of different sizes, some of them negative."""
    figure, groups = go.Figure(), by_seed(runs)

    def fall(run: Run) -> Series:
        epochs, values = series(run, "loss")
        return epochs, _fall(values)

    caption = f"The loss while pretraining ({setting(runs.values())})"
    if len(groups) == 1:
        add_series(figure, runs, "loss")
        frame(figure, x="epoch", y="loss")
        caption += "."
    else:
        add_lines(
            figure,
            groups,
            fall,
            hover="epoch %{x:.1f}: %{customdata:.4g}",
            said=lambda run: series(run, "loss"),
        )
        frame(figure, x="epoch", y="loss, between its first and lowest value")
        figure.update_yaxes(tickformat=".0%")
        caption += (
            ": 100 % is the first that was logged (of a run that began with its lowest, the highest), 0 % the lowest of that run. Losses "
            "of different objectives are numbers of different sizes, so no curve says which encoder is better."
        )
    from_zero(figure)
    legend(figure)
    return finish(figure, f"{caption}{about_seeds(groups)}")


def _fall(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    low = min(values)
    high = values[0] if values[0] > low else max(values)
    return [(value - low) / ((high - low) or 1) for value in values]


def probe(runs: Mapping[str, Run]) -> go.Figure:
    """What runs with labels measured as they trained."""
    probes = next((found for run in runs.values() if (found := run.probes())), None)
    if not probes:
        raise UserError(
            "none of these runs measured its accuracy while it trained: that takes labels, and log.probe_every above 0"
        )
    figure, groups = go.Figure(), by_seed(runs)

    def accuracy(run: Run) -> Series:
        lines = run.probes()
        return [line["epoch"] for line in lines], [100 * line["probe"]["knn"] for line in lines]

    add_lines(figure, groups, accuracy, hover="epoch %{x:.1f}: %{y:.2f} %")
    frame(figure, x="epoch", y="kNN top-1, %")
    from_zero(figure)
    legend(figure)
    last = probes[-1]["probe"]
    images = (
        f" of {last['images']:,} held-out images among {last['bank']:,} labelled ones"
        if {"images", "bank"} <= set(last)
        else ""
    )
    return finish(
        figure,
        f"Accuracy of nearest neighbours{images} while pretraining ({setting(runs.values())}). No label takes part in pretraining."
        f"{about_seeds(groups)}",
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
        f"the spectrum of their covariance. 1 is collapse to a line.{about_seeds(by_seed(runs))}",
    )
