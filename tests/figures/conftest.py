"""Runs that the tests of figures share."""

import pytest

import smi
from support.made_up import write_result, write_run

OURS = {"encoder": "resnet-small", "epochs": 1, "batch_size": 64}
SETTINGS = {
    "method.widths": [32, 32],
    "log.probe_every": 0,
    "encoder.channels": [8, 8, 16, 16],
    "views.size": 16,
    "data.images": 256,
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the folders of two tiny runs on digits."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("SMI", "BarlowTwins"):
        smi.pretrain("digits", out=folder / method, method=method, overrides=OURS | SETTINGS)
    return [folder / "SMI", folder / "BarlowTwins"]


@pytest.fixture
def pair(tmp_path):
    """Return a run of SMI and one of Barlow Twins."""
    return [
        write_run(tmp_path / "a", "SMI", level=1),
        write_run(tmp_path / "b", "BarlowTwins", level=10, weight=0.005, seed=1),
    ]


@pytest.fixture(scope="session")
def seeds(tmp_path_factory):
    """Return three evaluated runs of each of two methods."""
    folder, runs = tmp_path_factory.mktemp("seeds"), []
    for method, level, top1 in (("SMI", 1, 0.8), ("BarlowTwins", 10, 0.7)):
        for seed in range(3):
            runs.append(
                write_run(
                    folder / method / f"seed-{seed}", method, level=level, seed=seed, weight=0.01
                )
            )
            write_result(runs[-1], top1 + seed / 100)
    return runs
