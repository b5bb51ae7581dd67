"""Draw feature std over training.

Features are scaled to length 1. Their std over the batch is averaged over coordinates.
"""

from collections.abc import Mapping

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import add_series
from smi.figures.style import finish, frame, from_zero, legend, y_from_zero
from smi.runs.names import named_seed_groups, seed_caption, shared_settings
from smi.runs.run import Run


def feature_std(runs: Mapping[str, Run]) -> go.Figure:
    """Draw the feature std that runs logged."""
    figure = go.Figure()
    add_series(figure, runs, "feature_std")
    if not figure.data:
        raise UserError("none of these runs has logged feature_std")
    frame(figure, x="epoch", y="feature std")
    from_zero(figure)
    y_from_zero(figure)
    legend(figure)
    return finish(
        figure,
        f"Feature std during pretraining ({shared_settings(runs.values())}): the std over the "
        "batch of each coordinate of features of length 1, averaged over coordinates."
        f"{_maximum(runs)}{seed_caption(named_seed_groups(runs))}",
    )


def _maximum(runs: Mapping[str, Run]) -> str:
    """Return a sentence with the largest possible value, if all runs have the same dimension."""
    dims = {run.facts.feature_dim for run in runs.values()}
    dim = next(iter(dims))
    if len(dims) > 1 or not dim:
        return ""
    return f" With {dim} coordinates its maximum is {dim**-0.5:.3g}; 0 is collapse."
