"""The runs of a report, where sources share names or runs."""

import pytest
import yaml

from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.errors import UserError
from smi.reporting.runs import find_runs, first_runs


def write_run(folder, data="cifar10", seed=0):
    folder.mkdir(parents=True)
    config = {
        "method": {"name": "SMI"},
        "data": {"source": data},
        "encoder": {"name": "resnet18"},
        "views": {"policy": "cifar10", "size": 32},
        "epochs": 2,
        "batch_size": 8,
        "seed": seed,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def write_comparison(folder, *runs):
    folder.mkdir(parents=True, exist_ok=True)
    row = Row(
        "SMI",
        None,
        "SMI",
        tuple(TrainedRun(seed, str(run), "smi pretrain") for seed, run in enumerate(runs)),
    )
    Comparison((row,), tuple(range(len(runs))), None, {}).write(folder)
    return folder


def test_comparisons_of_the_same_name_are_both_listed(tmp_path):
    sources = [
        write_comparison(
            tmp_path / data / "comparison",
            *(write_run(tmp_path / data / "runs" / "SMI" / f"seed-{s}", data, s) for s in (0, 1)),
        )
        for data in ("cifar10", "stl10")
    ]
    report_runs, comparisons = find_runs(sources)
    assert list(comparisons) == ["comparison", "stl10/comparison"]
    assert [run.name for run in report_runs] == [
        f"SMI, seed {s}, {data}" for data in ("cifar10", "stl10") for s in (0, 1)
    ]
    assert [run.row for run in first_runs(report_runs)] == ["SMI, cifar10", "SMI, stl10"]


def test_a_single_run_is_not_a_seed_of_a_comparison(tmp_path):
    alone = write_run(tmp_path / "mine", "stl10")
    compared = write_comparison(
        tmp_path / "c", write_run(tmp_path / "c" / "runs" / "SMI" / "seed-0")
    )
    report_runs, _ = find_runs([alone, compared])
    assert [(run.row, run.run.folder.name) for run in first_runs(report_runs)] == [
        ("SMI, stl10", "mine"),
        ("SMI, cifar10", "seed-0"),
    ]


def test_runs_that_comparisons_share_are_listed_once(tmp_path):
    runs = [write_run(tmp_path / "runs" / "SMI" / f"seed-{s}", seed=s) for s in (0, 1)]
    sources = [
        write_comparison(tmp_path / "one", runs[0]),
        write_comparison(tmp_path / "two", *runs),
    ]
    report_runs, comparisons = find_runs(sources)
    assert len(comparisons) == 2
    assert [run.run.folder for run in report_runs] == runs
    with pytest.raises(UserError, match="given twice"):
        find_runs([sources[0], sources[0]])


def test_runs_are_report_runs_beside_a_comparison_that_was_moved(tmp_path):
    write_comparison(
        tmp_path / "before" / "comparison",
        write_run(tmp_path / "before" / "runs" / "SMI" / "seed-0"),
    )
    (tmp_path / "before").rename(tmp_path / "after")
    report_runs, _ = find_runs([tmp_path / "after" / "comparison"])
    assert report_runs[0].run.folder == tmp_path / "after" / "runs" / "SMI" / "seed-0"


def test_the_first_run_of_a_row_is_the_first_with_a_checkpoint(tmp_path):
    runs = [write_run(tmp_path / "c" / "runs" / "SMI" / f"seed-{s}", seed=s) for s in (0, 1, 2)]
    source = write_comparison(tmp_path / "c", *runs)

    def first():
        (run,) = first_runs(find_runs([source])[0])
        return run.run.folder.name

    assert first() == "seed-0"
    for seed in (2, 1):
        (runs[seed] / "checkpoints").mkdir()
        (runs[seed] / "checkpoints" / "last.pt").touch()
        assert first() == f"seed-{seed}"


def test_a_comparison_without_runs_is_refused(tmp_path):
    source = write_comparison(tmp_path / "c", tmp_path / "gone")
    with pytest.raises(UserError, match="is a comparison without runs"):
        find_runs([source])
