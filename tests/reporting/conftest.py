"""Runs and a comparison to report on, trained once for all tests of this folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

import smi
from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.evaluation import protocols
from smi.evaluation.evaluate import evaluate
from smi.reporting.report import report
from support.quick import make_clouds_quick

SETTINGS = {
    "encoder": "resnet-small",
    "epochs": 1,
    "batch_size": 64,
    "method.widths": [32, 32],
    "encoder.channels": [8, 8, 16, 16],
    "views.size": 16,
    "data.images": 256,
    "log.every": 2,
}


@pytest.fixture(scope="session", autouse=True)
def _quick_clouds():
    with pytest.MonkeyPatch.context() as patch:
        make_clouds_quick(patch)
        yield


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """`make_once(name, make)`: the folder that `make` fills, once for all processes of pytest."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def call(name: str, make: Callable[[Path], None]) -> Path:
        with FileLock(root / f"{name}.lock"):
            if not (root / f"{name} is made").is_file():
                shutil.rmtree(root / name, ignore_errors=True)  # of a `make` that failed
                make(root / name)
                (root / f"{name} is made").touch()
        return root / name

    return call


@pytest.fixture(scope="session")
def compared(make_once):
    """The folder of a comparison: two methods, one epoch on digits; seed 1 is a copy of seed 0."""
    return make_once("compared", make_comparison)


def make_comparison(folder: Path) -> None:
    rows = []
    for method in ("SMI", "BarlowTwins"):
        first, second = (folder / "runs" / method / f"seed-{seed}" for seed in (0, 1))
        smi.pretrain(
            "digits",
            out=first,
            method=method,
            overrides=SETTINGS,
        )
        results = evaluate([first], protocols=["knn", "linear-cached"]).rows[0].results
        shutil.copytree(first, second)
        config = yaml.safe_load((second / "config.yaml").read_text())
        (second / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 1}))
        runs = [
            TrainedRun.read(
                run, seed=seed, command=f"smi pretrain digits --seed={seed}", results=results
            )
            for seed, run in enumerate((first, second))
        ]
        rows.append(Row(method, None, method, tuple(runs), 1.5))
    Comparison(tuple(rows), (0, 1), None, {"recipe": "digits", "device": "a test machine"}).write(
        folder
    )
    report([folder], folder / "report.html")  # portraits are saved from here on


@pytest.fixture
def runs(compared, tmp_path):
    """Copies of the two runs of seed 0, which may be changed."""
    return [
        shutil.copytree(compared / "runs" / method / "seed-0", tmp_path / method)
        for method in ("SMI", "BarlowTwins")
    ]


@pytest.fixture(scope="session")
def adapted_once(make_once, compared):
    """A run that starts from the weights of another run and keeps its best encoder, evaluated."""

    def make(folder: Path) -> None:
        start = {"init.source": str(compared / "runs" / "SMI" / "seed-0"), "select": "best"}
        start["data.validation"] = 0.2
        smi.pretrain("digits", out=folder / "adapted", overrides=SETTINGS | start)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocols, "NUM_DRAWS", 5)
            evaluate([folder / "adapted"], floors=True)
        report([folder / "adapted"], folder / "report.html")  # portraits are saved from here on

    return make_once("adapted", make) / "adapted"


@pytest.fixture
def adapted(adapted_once, tmp_path):
    """A copy of the run that started from weights, which may be changed."""
    return shutil.copytree(adapted_once, tmp_path / "adapted")
