"""Prepare the places of images in t-SNE for a page: rotate them, and move outliers to the edge."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_RADIUS = 1.25  # times the radius that 98 % of the points are within


def within_sphere(places: Sequence[Any]) -> tuple[NDArray[np.float64], int]:
    """Move outliers among places [n, 3] to the edge of a sphere; return how many were moved.

    One far image would leave little room for all others.
    """
    points: NDArray[np.float64] = np.asarray(places, dtype=np.float64)
    centre = np.median(points, axis=0)
    radii = np.linalg.norm(points - centre, axis=1)
    limit = MAX_RADIUS * np.quantile(radii, 0.98)
    shares = np.minimum(1, limit / np.maximum(radii, 1e-30))
    return (centre + shares[:, None] * (points - centre)).round(3), int((radii > limit).sum())


def rotated_onto(points: Sequence[Any], target: Sequence[Any]) -> list[list[float]]:
    """Rotate or mirror points [n, 3] so that they are as near to `target` as they can be.

    t-SNE has no preferred direction, so that this changes nothing but the view.
    """
    before: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    after: NDArray[np.float64] = np.asarray(target, dtype=np.float64)
    before = before - before.mean(axis=0)
    after = after - after.mean(axis=0)
    left, _, right = np.linalg.svd(before.T @ after)  # orthogonal Procrustes
    rotated: list[list[float]] = (before @ left @ right).round(3).tolist()
    return rotated
