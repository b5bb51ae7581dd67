"""Feature std over training: of features of length 1, the std of each coordinate over the batch, averaged over coordinates."""

from collections.abc import Mapping

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import add_series
from smi.figures.style import finish, frame, from_zero, legend
from smi.runs.names import about_seeds, by_seed, setting
from smi.runs.run import Run


def feature_std(runs: Mapping[str, Run]) -> go.Figure:
    figure = go.Figure()
    add_series(figure, runs, "feature_std")
    if not figure.data:
        raise UserError("none of these runs has logged a feature_std")
    frame(figure, x="epoch", y="feature std")
    from_zero(figure)
    legend(figure)
    return finish(
        figure,
        f"Spread of features while pretraining ({setting(runs.values())}): the std over the batch of each coordinate of features of length "
        f"1, averaged over coordinates.{limit(runs)}{about_seeds(by_seed(runs))}",
    )


def limit(runs: Mapping[str, Run]) -> str:
    """What there can be at most, where all have so many coordinates."""
    dims = {run.about.get("feature_dim") for run in runs.values()}
    dim = next(iter(dims))
    return (
        f" With {dim} coordinates it can be {dim**-0.5:.3g} at most; 0 is collapse."
        if len(dims) == 1 and dim
        else ""
    )
