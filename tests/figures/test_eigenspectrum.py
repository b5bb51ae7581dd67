"""Test the eigenspectrum and the variances of features against numpy."""

import shutil

import numpy as np
import pytest

from smi.errors import UserError
from smi.figures.eigenspectrum import cumulative_variance, draw_shares
from smi.figures.variance_violin import draw_variances, relative_variance
from smi.runs.names import name_runs
from support.figures import caption, draw, trace


def test_cumulative_variance_agrees_with_numpy():
    h = np.random.default_rng(0).normal(size=(40, 6)) @ np.diag([5, 3, 1, 1, 0.1, 0])
    eigenvalues = np.sort(np.linalg.eigvals(np.cov(h.T)).real)[::-1]
    for blocks in ([h], [h[:7], h[7:7], h[7:39], h[39:]]):
        found, count = cumulative_variance(blocks)
        assert count == 40
        np.testing.assert_allclose(found, np.cumsum(eigenvalues) / eigenvalues.sum(), atol=1e-10)
    for bad in (np.ones((4, 3)), np.full((4, 3), np.nan), np.full((4, 3), np.inf)):
        with pytest.raises(UserError, match="all images are the same"):
            cumulative_variance([bad])
    with pytest.raises(UserError, match="two images or more"):
        cumulative_variance([h[:1]])


def test_relative_variance_has_its_bound():
    h = np.random.default_rng(0).normal(size=(500, 8))
    unit = h / np.linalg.norm(h, axis=1, keepdims=True)
    for blocks in ([3 * h], [3 * h[:100], h[:0], h[100:499], h[499:]]):
        found, count = relative_variance(blocks)
        assert count == 500
        np.testing.assert_allclose(found, 8 * np.var(unit, axis=0, ddof=1))
        assert found.mean() <= 500 / 499
    with pytest.raises(UserError, match="not finite"):
        relative_variance([np.full((4, 3), np.inf)])
    with pytest.raises(UserError, match="two images or more"):
        relative_variance([h[:1]])


def test_eigenspectrum_and_violin_of_runs(trained):
    figure = draw("eigenspectrum", trained, images=60)
    ours = figure.data[0]
    assert ours.name.startswith("SMI: ")
    assert len(ours.y) == 16
    assert ours.y[-1] == pytest.approx(100)
    assert all(np.diff(ours.y) >= -1e-9)
    violins = draw("variance-violin", trained, images=60).data
    assert [t.name for t in violins] == ["SMI", "Barlow Twins"]
    assert [len(t.y) for t in violins] == [16, 16]


def test_ten_images_for_each_coordinate_where_there_are_so_many(trained, monkeypatch):
    """Digits hold out 183 images, and the features have 16 coordinates."""
    monkeypatch.setattr("smi.figures.sample.MAX_IMAGES", 20)
    for name in ("eigenspectrum", "variance-violin"):
        assert " 160 held" in caption(draw(name, trained))
        assert " 60 held" in caption(draw(name, trained, images=60))
    few = "Fewer than 10 images for each coordinate"
    assert few not in caption(draw("eigenspectrum", trained))
    assert few in caption(draw("eigenspectrum", trained, images=60))
    monkeypatch.setattr("smi.figures.sample.IMAGES_PER_COORDINATE", 100)
    assert " 183 held" in caption(draw("eigenspectrum", trained))


def test_features_of_seeds_are_averaged_or_pooled(seeds):
    runs = name_runs(seeds)
    shares = {name: np.linspace(0.5 + i / 100, 1, 4) for i, name in enumerate(runs)}
    figure = draw_shares(runs, shares, 100, of="images")
    assert [t.name for t in figure.data if t.showlegend is not False] == [
        "SMI: 4 for 90 %",
        "Barlow Twins: 4 for 90 %",
    ]
    np.testing.assert_allclose(trace(figure, "SMI: 4 for 90 %").y, 100 * np.linspace(0.51, 1, 4))
    violins = draw_variances(runs, {name: np.full(4, 0.5) for name in runs}, 100, of="images").data
    assert [(t.name, len(t.y)) for t in violins] == [("SMI", 12), ("Barlow Twins", 12)]


def test_runs_on_different_datasets_need_one_dataset(trained, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained[1], other)
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("source: digits", "source: cifar10"))
    with pytest.raises(
        UserError,
        match=r"different datasets \(cifar10, digits\): name one dataset for all .* --data",
    ):
        draw("eigenspectrum", [trained[0], other])
    assert len(draw("eigenspectrum", [trained[0], other], data="digits", images=20).data) == 2
