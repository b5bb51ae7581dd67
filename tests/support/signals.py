"""Interrupt a run in the middle of a step."""

import contextlib
import os
import signal

import pytest

from smi.training import step


@contextlib.contextmanager
def signal_in_step(number: int):
    """Send SIGTERM in the middle of a step."""
    original = step.gradient_norm
    steps = []

    def norm(parameters):
        steps.append(1)
        if len(steps) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "gradient_norm", norm)
        yield
