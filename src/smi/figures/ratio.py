"""Redundancy ÷ alignment over training: λ·ΣR ÷ A of SMI; of other methods, what keeps samples or coordinates apart ÷ alignment."""

from collections.abc import Mapping

from plotly import graph_objects as go

from smi.errors import UserError
from smi.figures.series import add_series
from smi.figures.style import finish, frame, from_zero, legend
from smi.runs.names import about_seeds, by_seed, setting
from smi.runs.run import Run


def ratio(runs: Mapping[str, Run]) -> go.Figure:
    figure = go.Figure()
    without = add_series(figure, runs, "ratio")
    if not figure.data:
        raise UserError(
            f"none of these runs has a ratio of redundancy to alignment: the loss of {', '.join(without)} has one term only "
            "(SMI, BarlowTwins, VICReg and SimCLR have more)"
        )
    frame(figure, x="epoch", y="redundancy ÷ alignment")
    figure.update_yaxes(rangemode="tozero")
    from_zero(figure)
    legend(figure)
    negative = " Below 0 one of the two terms is." * any(
        value < 0 for trace in figure.data for value in trace.y
    )
    note = f" Of one term only, so not here: {', '.join(without)}." if without else ""
    return finish(
        figure,
        f"Redundancy ÷ alignment while pretraining ({setting(runs.values())}), each term with the weight it has in the loss."
        f"{negative}{note}{about_seeds(by_seed(runs))}",
    )
