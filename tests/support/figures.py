"""Draw figures of runs, and read them."""

from smi.figures.catalogue import FIGURES, FigureRequest
from smi.runs.run import Run


def draw(name, runs, **options):
    """Draw a figure of runs, which are given as runs or folders."""
    runs = tuple(Run(run.folder if isinstance(run, Run) else run) for run in runs)
    return FIGURES[name].draw(FigureRequest(runs, **options))


def trace(figure, name):
    """Return the only trace with this name in the legend."""
    (found,) = [t for t in figure.data if t.name == name and t.showlegend is not False]
    return found


def caption(figure):
    """Return the caption beneath a figure, as one line."""
    (note,) = [note for note in figure.layout.annotations if note.name == "caption"]
    return note.text.replace("<br>", " ")
