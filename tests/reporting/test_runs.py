"""Which runs a page is about, where sources share names or runs."""

import pytest
import yaml

from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.errors import UserError
from smi.reporting.runs import find, looked


def write_run(folder, data="cifar10", seed=0):
    folder.mkdir(parents=True)
    config = {
        "method": {"name": "SMI"},
        "data": {"source": data},
        "encoder": {"name": "resnet18"},
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


def test_comparisons_of_one_name_are_both_there(tmp_path):
    sources = [
        write_comparison(
            tmp_path / data / "comparison",
            *(write_run(tmp_path / data / "runs" / "SMI" / f"seed-{s}", data, s) for s in (0, 1)),
        )
        for data in ("cifar10", "stl10")
    ]
    shown, comparisons = find(sources)
    assert list(comparisons) == ["comparison", "stl10/comparison"]
    assert [one.name for one in shown] == [
        f"SMI, seed {s}, {data}" for data in ("cifar10", "stl10") for s in (0, 1)
    ]
    assert [one.row for one in looked(shown)] == ["SMI, cifar10", "SMI, stl10"]


def test_a_run_is_no_seed_of_another(tmp_path):
    alone = write_run(tmp_path / "mine", "stl10")
    compared = write_comparison(
        tmp_path / "c", write_run(tmp_path / "c" / "runs" / "SMI" / "seed-0")
    )
    shown, _ = find([alone, compared])
    assert [(one.row, one.run.folder.name) for one in looked(shown)] == [
        ("SMI, stl10", "mine"),
        ("SMI, cifar10", "seed-0"),
    ]


def test_runs_that_comparisons_share_are_there_once(tmp_path):
    runs = [write_run(tmp_path / "runs" / "SMI" / f"seed-{s}", seed=s) for s in (0, 1)]
    sources = [
        write_comparison(tmp_path / "one", runs[0]),
        write_comparison(tmp_path / "two", *runs),
    ]
    shown, comparisons = find(sources)
    assert len(comparisons) == 2
    assert [one.run.folder for one in shown] == runs
    with pytest.raises(UserError, match="given twice"):
        find([sources[0], sources[0]])


def test_runs_beside_a_comparison_that_was_moved(tmp_path):
    write_comparison(
        tmp_path / "before" / "comparison",
        write_run(tmp_path / "before" / "runs" / "SMI" / "seed-0"),
    )
    (tmp_path / "before").rename(tmp_path / "after")
    shown, _ = find([tmp_path / "after" / "comparison"])
    assert shown[0].run.folder == tmp_path / "after" / "runs" / "SMI" / "seed-0"
