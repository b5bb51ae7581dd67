"""Leave out what takes seconds and rarely matters: processes, figures, iterations, draws."""

import functools
import inspect
import sys

import pytest
import sklearn.manifold

import smi.comparison.compare
from smi.cli import main
from support.digits import TESTS


def call_in_this_process(arguments, processes=1) -> int:
    """Replace `call`: start no process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["smi", *arguments])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Start no process, and draw no figure."""
    patch.syspath_prepend(TESTS)
    patch.setattr(smi.comparison.compare, "call", call_in_this_process)
    patch.setattr(smi.comparison.compare, "write_comparison_figure", lambda comparison, path: None)


def make_clouds_quick(patch: pytest.MonkeyPatch) -> None:
    """Let t-SNE make as few iterations as it can: where images lie in a cloud does not matter."""
    whole = sklearn.manifold.TSNE
    name = "max_iter" if "max_iter" in inspect.signature(whole).parameters else "n_iter"
    patch.setattr(sklearn.manifold, "TSNE", functools.partial(whole, **{name: 250}))
