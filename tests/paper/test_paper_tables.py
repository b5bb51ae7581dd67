"""Check that tables hold the paper's numbers to the digit, and ours in separate columns."""

import csv
import io
import json

import pytest

from smi.errors import UserError
from smi.paper import numbers as paper
from smi.paper.cost import count_costs, giga
from smi.paper.paper_tables import make_table
from smi.paper.table_1 import table_1
from smi.paper.table_2 import table_2
from smi.paper.table_3 import table_3
from smi.runs.run import Run
from smi.tables import percent
from support.made_up import write_result, write_run


def test_the_papers_numbers_are_complete():
    assert len(paper.TABLE_1) == 12
    ours = paper.TABLE_1[-1]
    assert (ours.name, ours.top1, ours.top5, ours.epochs) == ("SMI", 71.41, 90.0, 300)
    assert {row.name: (row.barlow_twins, row.smi) for row in paper.TABLE_3} == {
        "CIFAR-10": (89.90, 90.64),
        "CIFAR-100": (65.24, 66.35),
        "ImageNette": (87.77, 90.55),
        "ImageWoof": (68.92, 75.03),
    }
    assert [percent(value) for value in (71.41, 90.0, 67, None)] == ["71.41", "90.0", "67.0", "-"]


def test_table_2_is_the_paper_and_what_is_counted():
    for row in paper.TABLE_2:
        (ours,) = [cost for cost in count_costs() if cost.loss == row.loss]
        assert (f"{row.gflops:.2f}", row.entries) == (giga(ours.paper_macs), ours.entries)
        assert (row.global_batch_norm, row.gather) == (ours.global_batch_norm, ours.gather)
    lines = table_2().text().splitlines()
    assert [line.count("┃") for line in lines[2:4]] == [2, 2]


def test_table_1_puts_ours_beside_the_papers(tmp_path):
    runs = [write_run(tmp_path / m, m, weight=None) for m in ("SMI", "SimCLR", "VICReg")]
    for run, top1 in zip(runs, (0.8, 0.7, 0.6), strict=True):
        write_result(run, top1, top5=None if run is runs[2] else 0.95)
    table = table_1(runs)
    rows = {(left[0], printed[0]): (printed, here) for left, printed, here in table.rows}
    assert rows["SMI", "300"] == (
        ("300", "no", "71.41", "90.0"),
        ("digits", "support.homemade.Net", "3", "no", "80.0", "95.0", "linear"),
    )
    assert rows["SimCLR", "300"][1][4] == "70.0"
    assert rows["SimCLR", "1000"][1][4] == "-"  # ours stands once, at the nearest number of epochs
    assert rows["NT-Xent (reproduced)", "300"][1][4] == "-"
    assert rows["VICReg", "-"] == (
        ("-",) * 4,
        ("digits", "support.homemade.Net", "3", "no", "60.0", "-", "linear"),
    )
    assert rows["BYOL", "300"][1] == ("-",) * 7
    assert table.groups[1].title.startswith("paper")
    assert table.groups[2].title == "here"


def test_seeds_are_one_row_with_an_interval(tmp_path):
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in range(3)]
    for run, top1 in zip(runs, (0.80, 0.82, 0.84), strict=True):
        write_result(run, top1)
    (here,) = [here for _, _, here in table_1(runs).rows if here[0] == "digits"]
    assert here[4] == "82.0 ± 5.0 (3)"  # Student's: 4.303 * 2 / sqrt(3)


def test_the_same_seed_twice_is_not_two_seeds(tmp_path):
    runs = [write_run(tmp_path / name, seed=0) for name in ("one", "two")]
    for run in runs:
        write_result(run, 0.8)
    found = [here for _, _, here in table_1(runs).rows if "digits" in here]
    assert [here[0] for here in found] == [
        str(run.folder) for run in runs
    ]  # two rows, with their folders as labels
    assert [here[5] for here in found] == ["80.0", "80.0"]


def test_rows_of_a_sweep_say_their_value(tmp_path):
    runs = [write_run(tmp_path / str(weight), weight=weight) for weight in (0.01, 0.1)]
    runs.append(write_run(tmp_path / "bt", "BarlowTwins"))
    for run, top1 in zip(runs, (0.8, 0.7, 0.6), strict=True):
        write_result(run, top1)
    table = table_1(runs)
    assert table.groups[2].columns[0] == "Run"
    assert [(here[0], here[5]) for _, _, here in table.rows if here[1] == "digits"] == [
        ("-", "60.0"),
        ("λ = 0.01", "80.0"),
        ("λ = 0.1", "70.0"),
    ]
    against = [here[:4] for _, _, here in table_3(runs).rows if here[0] != "-"]
    assert against == [
        ("SMI λ = 0.01", "60.0", "80.0", "+20.0"),
        ("SMI λ = 0.1", "60.0", "70.0", "+10.0"),
    ]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((0.54, 0.71), "+4.0 and +1.0"),
        ((0.52, 0.71), "+2.0 and +1.0"),
    ],
)
def test_differences_of_table_3_are_paired_by_seed(ours, said, tmp_path):
    """Seeds differ a lot and methods little; only seeds that both methods have count."""
    for method, scores in {"BarlowTwins": (0.5, 0.7, 0.9), "SMI": ours}.items():
        for seed, top1 in enumerate(scores):
            write_result(write_run(tmp_path / method / str(seed), method, seed=seed), top1)
    runs = [Run(folder) for folder in sorted(tmp_path.glob("*/*"))]
    (here,) = [here for left, _, here in table_3(runs).rows if left[0] == "digits"]
    assert here[2] == said


def test_table_3_pairs_runs_of_one_setting(tmp_path):
    runs = [
        write_run(tmp_path / f"{data}{m}", m, data=data)
        for data in ("cifar10", "digits")
        for m in ("BarlowTwins", "SMI")
    ]
    for run, top1 in zip(runs, (0.5, 0.55, 0.9, 0.8), strict=True):
        write_result(run, top1)
    rows = {left[0]: (printed, here) for left, printed, here in table_3(runs).rows}
    assert rows["CIFAR-10"] == (
        ("89.90", "90.64", "+0.74"),
        ("50.0", "55.0", "+5.0", "support.homemade.Net", "3", "linear"),
    )
    assert rows["digits"][0] == ("-",) * 3
    assert rows["digits"][1][:3] == ("90.0", "80.0", "-10.0")
    assert rows["ImageWoof"][1] == ("-",) * 6
    write_result(runs[0], 0.4, protocol="linear-cached")
    write_result(runs[1], 0.6, protocol="linear-cached")
    (
        runs[1].folder
        / "eval"
        / next(p.name for p in (runs[1].folder / "eval").glob("linear-cifar10*"))
    ).unlink()
    rows = {left[0]: here for left, _, here in table_3(runs).rows}
    assert rows["CIFAR-10"][:3] == ("40.0", "60.0", "+20.0")  # the protocol that both have


def test_table_3_says_what_is_not_identical(tmp_path):
    runs = [
        write_run(tmp_path / "a", "BarlowTwins", epochs=2),
        write_run(tmp_path / "b", "SMI", epochs=3),
    ]
    for run in runs:
        write_result(run, 0.5)
    table = table_3(runs)
    assert [here[2] for left, _, here in table.rows if here[0] != "-" or here[1] != "-"] == [
        "-",
        "-",
    ]  # no difference between unequal settings
    assert any(
        "Not identical on digits: epochs is 2 for Barlow Twins, 3 for SMI" in note
        for note in table.notes
    )


def test_text_markdown_csv_and_json(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(UserError, match=r"run `smi evaluate .* --protocol linear`"):
        make_table(1, [run.folder])
    write_result(run, 0.8)
    for number in (1, 3):
        table = make_table(number, [run.folder])
        assert "paper" in table.text().splitlines()[2]
        assert "here" in table.text().splitlines()[2]
        lines = table.markdown().splitlines()
        assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
        assert any("**80.0**" in line for line in lines)  # ours
        assert list(csv.DictReader(io.StringIO(table.csv())))[-1]["here: Protocol"] == "linear"
        document = json.loads(table.json())
        assert list(document) == ["table", "title", "rows", "notes"]
        assert document["table"] == number
        assert all({"paper", "here"} <= row.keys() for row in document["rows"])


def test_mistakes_are_user_errors(tmp_path):
    run = write_run(tmp_path / "a")
    write_result(run, 0.8)
    with pytest.raises(UserError, match="give none"):
        make_table(2, [run.folder])
    with pytest.raises(UserError, match="is given twice"):
        make_table(1, [run.folder, run.folder])
    with pytest.raises(UserError, match="there is no table 4"):
        make_table(4)
    with pytest.raises(UserError, match="name the folder of a comparison"):
        make_table("comparison")


def test_runs_evaluated_on_another_dataset(tmp_path):
    run = write_run(tmp_path / "a")
    write_result(run, 0.8)
    with pytest.raises(UserError, match="results on cifar10 yet"):
        make_table(1, [run.folder], data="cifar10")


def test_published_and_identical_runs_are_never_in_one_table(tmp_path):
    names = ("SMI", "BarlowTwins")
    kinds = {None: "earlier", False: "identical", True: "published"}
    runs = {
        kind: [
            write_run(tmp_path / folder / name, name, weight=None, published=kind) for name in names
        ]
        for kind, folder in kinds.items()
    }
    for run in (*runs[None], *runs[False], *runs[True]):
        write_result(run, 0.8)
    folders = {kind: [run.folder for run in several] for kind, several in runs.items()}
    published = make_table(1, folders[True])
    assert published.title.endswith(", as published")
    assert any(note.startswith("As published: each method as") for note in published.notes)
    for kind in (None, False):
        identical = make_table(1, folders[kind])
        assert identical.title.endswith(", identical settings")
        assert any(note.startswith("Identical settings: ") for note in identical.notes)
        for number in (1, 3):
            with pytest.raises(UserError, match="make one table of each kind"):
                make_table(number, [*folders[kind], folders[True][0]])
    with pytest.raises(UserError, match="identical settings: give it runs without --published"):
        make_table(3, folders[True])


def test_table_1_does_not_call_other_settings_identical(tmp_path):
    runs = [
        write_run(tmp_path / "a", "SMI", epochs=3),
        write_run(tmp_path / "b", "BarlowTwins", epochs=4),
    ]
    for run in runs:
        write_result(run, 0.8)
    table = make_table(1, [run.folder for run in runs])
    assert table.title == "Table 1. Linear classifiers on frozen features"
    assert any(note.startswith("Neither published nor identical") for note in table.notes)
