"""Test the landscape against its formulas, and the pairs of views of a run."""

import inspect
import re

import numpy as np
import pytest
import torch
from plotly import graph_objects as go

from smi.config.resolve import resolve
from smi.errors import UserError
from smi.figures import landscape as land
from smi.losses.smi import dependency, smi_loss
from smi.runs.restore import build_method, build_views
from support.figures import caption, draw


def test_landscape_follows_the_formulas():
    curves = {curve.name: curve for curve in land.curves(land.Shape())}
    smi = curves["SMI, alignment"]
    rho = smi.rho
    m = -0.5 * np.log(1 - rho**2 + 1e-6)
    np.testing.assert_allclose(smi.value, np.log(np.cosh(m - 1)), atol=1e-12)
    np.testing.assert_allclose(
        smi.slope, np.abs(np.tanh(m - 1) * rho / (1 - rho**2 + 1e-6)), rtol=1e-9, atol=1e-12
    )
    smi = curves["SMI, redundancy"]
    np.testing.assert_allclose(smi.value, np.log(np.cosh(m + 0.06)), atol=1e-12)
    np.testing.assert_allclose(
        smi.slope, np.abs(np.tanh(m + 0.06) * rho / (1 - rho**2 + 1e-6)), rtol=1e-9, atol=1e-12
    )
    alignment, redundancy = (curves[f"Barlow Twins, {t}"] for t in ("alignment", "redundancy"))
    np.testing.assert_allclose(alignment.value, (1 - rho) ** 2, atol=1e-12)
    np.testing.assert_allclose(alignment.slope, 2 * (1 - rho), atol=1e-12)
    np.testing.assert_allclose(redundancy.value, rho**2, atol=1e-12)
    np.testing.assert_allclose(redundancy.slope, 2 * np.abs(rho), atol=1e-12)
    assert len(draw("landscape", []).data) == 8


def test_landscape_shows_real_pairs_of_a_run(trained):
    figure = draw("landscape", trained[:1], images=64)
    pictures = [t for t in figure.data if isinstance(t, go.Image)]
    assert len(pictures) == 6
    titles = [note.text for note in figure.layout.annotations if "M = " in note.text][:6]
    shown = [float(re.search(r"M = ([\d.]+)", text)[1]) for text in titles]
    assert [text.split(":")[0] for text in titles] == ["low", "middle", "high"] * 2
    assert shown[0] <= shown[1] <= shown[2]
    assert "with low, middle and high dependency" in caption(figure)
    with pytest.raises(UserError, match="one run, not of 2"):
        draw("landscape", trained)
    with pytest.raises(UserError, match="too few"):
        draw("landscape", trained[:1], images=5)


def test_pairs_use_float64_only_on_the_cpu(trained, on_mps):
    config = resolve(trained[0] / "config.yaml")
    method, images = (
        build_method(config, 256),
        torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8),
    )
    expected = land.positive_pairs(method, build_views(config, method), images)
    method.projector.register_forward_hook(lambda module, inputs, z: on_mps(z))
    np.testing.assert_allclose(
        land.positive_pairs(method, build_views(config, method), images).rho, expected.rho
    )


def test_titles_and_pictures_of_pairs():
    """Identical views have the highest dependency there is."""
    rho = np.array([0.0, 1.0, -0.5])
    pairs = land.Pairs(
        *[np.zeros((3, 4, 4, 3), dtype=np.uint8)] * 2,
        rho,
        dependency(torch.from_numpy(rho)).numpy(),
    )
    assert land.pair_title(pairs, "high", 1) == "high: M = 6.91 (ρ = 1.00)"
    assert land.pair_title(pairs, "low", 2) == "low: M = 0.14 (ρ = −0.50)"
    assert land.side_by_side(pairs.first[0], pairs.second[0]).shape == (4, 9, 3)


def test_the_shape_has_the_defaults_of_the_loss():
    defaults = inspect.signature(smi_loss).parameters
    shape = land.Shape()
    for name in ("target", "shift", "eps"):
        assert getattr(shape, name) == defaults[name].default
