"""Draw redundancy ÷ alignment over training.

For SMI it is λ·ΣR ÷ A. For other methods it is the term that separates samples or coordinates,
divided by the alignment.
"""

from collections.abc import Mapping

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import add_series
from smi.figures.style import finish, frame, from_zero, legend
from smi.runs.names import named_seed_groups, seed_caption, shared_settings
from smi.runs.run import Run


def ratio(runs: Mapping[str, Run]) -> go.Figure:
    """Draw the ratio that runs logged; methods with one term are named in the caption."""
    figure = go.Figure()
    without = add_series(figure, runs, "ratio")
    if not figure.data:
        raise UserError(
            "none of these runs has a ratio of redundancy to alignment: the loss of "
            f"{', '.join(without)} has only one term; give a run of a method with two, such as SMI"
        )
    frame(figure, x="epoch", y="redundancy ÷ alignment")
    figure.update_yaxes(rangemode="tozero")
    from_zero(figure)
    legend(figure)
    negative = any(value < 0 for trace in figure.data for value in trace.y)
    sign = " Below 0, one of the two terms is negative." if negative else ""
    note = f" Not shown, with only one term: {', '.join(without)}." if without else ""
    return finish(
        figure,
        f"Redundancy ÷ alignment during pretraining ({shared_settings(runs.values())}), each term "
        f"with its weight in the loss.{sign}{note}{seed_caption(named_seed_groups(runs))}",
    )
