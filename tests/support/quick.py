"""Make comparisons without processes and figures, which take seconds and rarely matter."""

import sys

import pytest

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
