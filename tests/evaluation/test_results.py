import dataclasses
import json
import subprocess
import sys

import pytest

from smi.errors import UserError
from smi.evaluation.results import Result, Score, read, read_all, results_table, stamp, write

PROTOCOL = {"name": "knn", "data": "cifar10", "k": 20, "train": {"split": "train", "images": 500}}


def result(top1=0.5, subject="encoder", notes=(), digest="abc", **protocol):
    return Result(
        PROTOCOL | protocol,
        subject,
        {"digest": digest},
        (Score("kNN", top1),),
        "a vote",
        tuple(notes),
        {"top5": 0.9},
        {"date": "d"},
    )


def text_of(rows):
    return results_table(rows).text()


def test_a_result_survives_its_file(tmp_path):
    made = dataclasses.replace(
        result(), scores=(Score("1 label", 0.5, 0.4, 0.6), Score("5 labels", 0.7, 0.65, 0.75))
    )
    path = write(tmp_path, made)
    assert path.parent == tmp_path / "eval"
    assert read(path) == made
    assert read_all(tmp_path) == [made]
    assert json.loads(path.read_text())["stamp"] == made.stamp == stamp(made.protocol)


def test_the_stamp_hashes_the_whole_protocol_and_nothing_else():
    assert result(0.5).stamp == result(0.6, subject="raw pixels").stamp
    assert (
        len(
            {
                result().stamp,
                result(k=10).stamp,
                result(train={"split": "train", "images": 501}).stamp,
                result(data="stl10").stamp,
            }
        )
        == 4
    )
    assert stamp({"a": 1, "b": 2}) == stamp({"b": 2, "a": 1})


def test_protocols_and_subjects_have_files_of_their_own(tmp_path):
    every = [
        result(),
        result(k=10),
        result(subject="raw pixels"),
        result(subject="untrained encoder"),
        result(data="../../photos of ü"),
    ]
    every += [result(digest="other weights"), result(data="x" * 300)]
    paths = {write(tmp_path, one) for one in every}
    assert len(paths) == 7
    assert {path.parent for path in paths} == {tmp_path / "eval"}


def test_results_are_ordered_by_protocol(tmp_path):
    for name in ("finetune", "fewshot", "someones-own", "linear", "knn", "linear-cached"):
        write(tmp_path, result(name=name))
    found = [one.protocol["name"] for one in read_all(tmp_path)]
    assert found == ["knn", "linear-cached", "linear", "fewshot", "finetune", "someones-own"]


def test_nan_is_written_as_null(tmp_path):
    path = write(
        tmp_path,
        dataclasses.replace(
            result(), details={"curves": [{"test_loss": float("nan"), "test_top1": 0.1}]}
        ),
    )
    assert read(path).details == {"curves": [{"test_loss": None, "test_top1": 0.1}]}


def test_files_changed_by_hand_are_refused(tmp_path):
    path = write(tmp_path, result())
    path.write_text(path.read_text().replace('"k": 20', '"k": 1'))
    with pytest.raises(UserError, match="changed by hand"):
        read(path)
    for text in ("", "[]", "{}", '{"stamp": "x", "scores": []}', "no JSON"):
        path.write_text(text)
        with pytest.raises(UserError, match="not the result of an evaluation"):
            read(path)


def test_numbers_of_one_protocol_share_a_column():
    lines = text_of([("a", [result(0.5)]), ("b", [result(0.625)])]).splitlines()
    assert lines[0].split() == ["kNN"]
    assert [line.split() for line in lines[2:4]] == [["a", "50.0%"], ["b", "62.5%"]]
    assert "not comparable" not in "\n".join(lines)
    assert f"stamp {result().stamp}" in lines[5]


def test_numbers_of_different_protocols_have_columns_of_their_own():
    text = text_of(
        [
            ("a", [result(0.5)]),
            ("b", [result(0.625, k=10, train={"split": "train", "images": 501})]),
        ]
    )
    lines = text.splitlines()
    assert "kNN (a)" in lines[0]
    assert "kNN (b)" in lines[0]
    assert [line.split() for line in lines[2:4]] == [["a", "50.0%", "-"], ["b", "-", "62.5%"]]
    assert "not comparable: knn (a) and knn (b) (k 20 and 10, train.images 500 and 501)" in text


def test_intervals_and_notes():
    made = dataclasses.replace(
        result(notes=["two classes"]), scores=(Score("1 label", 0.5, 0.4, 0.6),)
    )
    text = text_of([("a", [made]), ("b", [made])])
    assert "50.0% ± 10.0%" in text
    assert text.count("note: two classes") == 1


def test_reading_results_does_not_import_torch():
    code = "import sys, smi.evaluation.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
