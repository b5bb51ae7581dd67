"""Draw the course of training: the loss, the kNN accuracy and the effective rank of features."""

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from smi.errors import UserError
from smi.evaluation.results import OFF_THE_SHELF
from smi.figures.series import Series, add_lines, add_series, series
from smi.figures.style import INK, accuracy_range, finish, frame, from_zero, legend, plain
from smi.runs.names import dataset_name, named_seed_groups, seed_caption, shared_settings
from smi.runs.run import Run


def loss(runs: Mapping[str, Run]) -> go.Figure:
    """Draw the loss; several objectives are scaled from their first to their lowest value.

    Losses of different objectives have different sizes, and some are negative.
    """
    figure = go.Figure()
    groups = named_seed_groups(runs)
    caption = f"Loss during pretraining ({shared_settings(runs.values())})"
    if len(groups) == 1:
        add_series(figure, runs, "loss")
        frame(figure, x="epoch", y="loss")
        caption += "."
    else:
        add_lines(
            figure,
            groups,
            _scaled_loss,
            hover="epoch %{x:.1f}: %{customdata:.4g}",
            hover_series_of=lambda run: series(run, "loss"),
        )
        frame(figure, x="epoch", y="loss, between its first and lowest value")
        figure.update_yaxes(tickformat=".0%")
        caption += (
            ": 100 % is the first logged value (the highest, if a run began with its lowest), "
            "0 % the lowest value of the run. Losses of different objectives have different "
            "sizes, so the curves do not show which encoder is better."
        )
    from_zero(figure)
    legend(figure)
    return finish(figure, f"{caption}{seed_caption(groups)}")


def _scaled_loss(run: Run) -> Series:
    epochs, values = series(run, "loss")
    return epochs, _scale_to_first(values)


def _scale_to_first(values: Sequence[float]) -> list[float]:
    """Scale values so that the lowest is 0 and the first, or else the highest, is 1."""
    if not values:
        return []
    low = min(values)
    high = values[0] if values[0] > low else max(values)
    return [(value - low) / ((high - low) or 1) for value in values]


def probe(runs: Mapping[str, Run]) -> go.Figure:
    """Draw the kNN accuracy that runs with labels measured during training."""
    probes = [line for run in runs.values() for line in run.probes() if "knn" in line["probe"]]
    if not probes:
        raise UserError(
            "none of these runs measured its accuracy during training: that needs labels, and "
            "log.probe_every above 0"
        )
    figure = go.Figure()
    groups = named_seed_groups(runs)

    def accuracy(run: Run) -> Series:
        lines = [line for line in run.probes() if "knn" in line["probe"]]
        return [line["epoch"] for line in lines], [100 * line["probe"]["knn"] for line in lines]

    add_lines(figure, groups, accuracy, hover="epoch %{x:.1f}: %{y:.2f} %")
    frame(figure, x="epoch", y="kNN top-1, %")
    from_zero(figure)
    _add_starts(figure, runs)
    figure.update_yaxes(range=accuracy_range(y for trace in figure.data for y in trace.y))
    legend(figure)
    last = probes[-1]["probe"]
    images = (
        f" of {last['images']:,} held-out images among {last['bank']:,} labelled ones"
        if {"images", "bank"} <= set(last)
        else ""
    )
    return finish(
        figure,
        f"Accuracy of nearest neighbours{images} during pretraining "
        f"({shared_settings(runs.values())}). Pretraining uses no labels.{seed_caption(groups)}",
    )


def _add_starts(figure: go.Figure, runs: Mapping[str, Run]) -> None:
    """Draw the accuracy before the first step as a dotted line, the mean over runs that share it.

    Runs on other data or with another encoder have a line of their own.
    """
    starts: dict[tuple[str, str, str], list[float]] = {}
    for run in runs.values():
        start = "untrained" if run.init_source is None else OFF_THE_SHELF
        key = start, str(run.config["encoder"]["name"]), dataset_name(run)
        for line in run.probes():
            if line["step"] == 0 and "knn" in line["probe"]:
                starts.setdefault(key, []).append(100 * line["probe"]["knn"])
    end = figure.layout.xaxis.range[1]
    for key, values in starts.items():
        mean = sum(values) / len(values)
        figure.add_scatter(
            x=[0, end],
            y=[mean, mean],
            name=plain(key[0] if len(starts) == 1 else ", ".join(key)),
            mode="lines",
            line={"color": INK, "width": 1.4, "dash": "dot"},
            hovertemplate="%{y:.2f} %",
        )


def effective_rank(runs: Mapping[str, Run]) -> go.Figure:
    """Draw the effective rank of the features of each logged batch."""
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
        "Number of directions that the features of a batch use during pretraining "
        f"({shared_settings(runs.values())}): the exponential of the entropy of the spectrum of "
        f"their covariance. 1 is collapse to a line.{seed_caption(named_seed_groups(runs))}",
    )
