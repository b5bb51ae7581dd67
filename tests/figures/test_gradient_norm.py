"""Test the gradient norm against plain means."""

import numpy as np
import pytest

from smi.figures.gradient_norm import rolling_mean
from support.figures import draw, trace
from support.made_up import write_run


def test_gradient_norm_is_the_rolling_mean_of_every_step(pair):
    figure = draw("gradient-norm", pair)
    norms = [norm for line in pair[1].metrics() for norm in line["per_step"]["gradient_norm"]]
    plain = [np.mean(norms[max(0, i - 49) : i + 1]) for i in range(len(norms))]
    found = trace(figure, "Barlow Twins")
    np.testing.assert_allclose(found.y, plain, rtol=1e-10)
    assert list(found.x) == list(range(1, 121))
    assert figure.layout.yaxis.type == "log"
    np.testing.assert_allclose(rolling_mean([1.0, 2.0, 6.0], 2), [1, 1.5, 4])


def test_one_bad_step_does_not_change_later_means():
    np.testing.assert_allclose(rolling_mean([1e30, 1.0, 1.0, 3.0], 2), [1e30, 5e29, 1, 2])
    np.testing.assert_allclose(
        rolling_mean([1.0, np.nan, np.nan, 3.0, 5.0], 2), [1, 1, np.nan, 3, 4]
    )


def test_a_long_run_is_thinned(tmp_path):
    run = write_run(tmp_path / "long", epochs=120)
    found = trace(draw("gradient-norm", [run]), "SMI")
    assert 1200 < len(found.x) <= 2000
    assert found.x[-1] == 4800
    norms = [norm for line in run.metrics() for norm in line["per_step"]["gradient_norm"]]
    assert found.y[-1] == pytest.approx(np.mean(norms[-50:]))
