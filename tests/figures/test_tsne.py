"""Test t-SNE: every image with its class, and datasets without labels."""

import re

import numpy as np
import pytest
from PIL import Image

from smi.errors import UserError
from smi.figures.tsne import MAX_RADIUS, embed_in_3d, within_sphere
from support.figures import caption, draw


def test_tsne_shows_every_image_with_its_class(trained):
    figure = draw("tsne", trained[:1], images=40)
    assert sum(len(t.x) for t in figure.data) == 40
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data}) == len(figure.data)
    assert all(re.fullmatch(r"val/\d+<br>\d", text) for t in figure.data for text in t.text)
    with pytest.raises(UserError, match="five images or more"):
        embed_in_3d(np.zeros((3, 4), dtype=np.float32))


def test_a_dataset_without_labels_is_refused_by_tsne_alone(trained, tmp_path):
    for i in range(80):
        Image.fromarray(np.full((12, 12, 3), i, dtype=np.uint8)).save(tmp_path / f"{i}.png")
    with pytest.raises(UserError, match="have no labels to colour t-SNE by"):
        draw("tsne", trained[:1], data=str(tmp_path))
    figure = draw("eigenspectrum", trained[:1], data=str(tmp_path), images=40)
    assert "all of which may be trained on" in caption(figure)


def test_an_outlier_is_moved_to_the_edge_and_others_stay():
    points = np.random.default_rng(0).normal(size=(200, 3))
    points[7] = [100, 0, 0]
    moved, count = within_sphere(points.tolist())
    assert count == 1
    others = np.arange(200) != 7
    assert moved[others] == pytest.approx(points[others], abs=1e-3)
    radii = np.linalg.norm(moved - np.median(points, axis=0), axis=1)
    assert radii[7] == pytest.approx(MAX_RADIUS * np.quantile(radii[others], 0.985), rel=0.05)
    assert within_sphere([[0, 0, 0]] * 5)[1] == 0
