"""A pace that does not depend on the machine, for the tests of runs with a time."""

import pytest

from smi.training import budget, pretrain
from smi.training.budget import Pace


@pytest.fixture
def _pace(monkeypatch):
    """Time a job as if a step took 0.1 s, whatever this machine does."""
    measured = budget.measure_pace

    def pace(job, seconds):
        assert measured(job, seconds).step > 0
        return Pace(0.1)

    monkeypatch.setattr(pretrain, "measure_pace", pace)
    monkeypatch.setattr(budget, "seconds_to_time", lambda seconds: 0.0)
    monkeypatch.setattr(budget, "SPARE_SHARE", 0.0)
    monkeypatch.setattr(pretrain, "perf_counter", lambda: 0.0)
