"""Student's intervals, beside scipy's."""

import math

import pytest
from scipy import stats

from smi.intervals import half_interval, interval


@pytest.mark.parametrize("values", [[0.5, 0.7], [0.1, 0.2, 0.4], [3.0] * 5, list(range(20))])
def test_the_interval_is_scipys(values):
    mean, low, high = interval(values)
    error = stats.sem(values)
    assert mean == pytest.approx(sum(values) / len(values))
    if error:
        expected = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=error)
        assert (low, high) == pytest.approx(expected)
    else:
        assert low == high == mean


def test_one_value_has_no_interval():
    mean, low, high = interval([0.5])
    assert mean == 0.5
    assert math.isnan(low)
    assert math.isnan(high)


def test_half_the_width():
    assert half_interval(1.0, 4) == pytest.approx(stats.t.ppf(0.975, 3) / 2)
