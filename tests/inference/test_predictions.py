import csv
import io
import json

import pytest

from smi.errors import UserError
from smi.inference.predictions import Prediction, Predictions, check_labels_path
from support.inference import names_in

ROWS = [
    Prediction("a.jpg", "cat", 0.75, "dog", 0.2),
    Prediction("=1+1.jpg", "@SUM(A1)", 1.0, "-2", 0.0),
    Prediction("new\nline\x1b[31m.jpg", 'quo"te,', 0.5, "+3", 0.25),
]


def test_no_cell_is_a_formula_or_moves_the_terminal():
    text = Predictions(ROWS).text()
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4
    first, *rows = csv.reader(io.StringIO(text))
    assert first == ["file", "label", "confidence", "second_label", "second_confidence"]
    assert rows == [
        ["a.jpg", "cat", "0.750000", "dog", "0.200000"],
        ["'=1+1.jpg", "'@SUM(A1)", "1.000000", "'-2", "0.000000"],
        ["new\\nline\\x1b[31m.jpg", 'quo"te,', "0.500000", "'+3", "0.250000"],
    ]


@pytest.mark.parametrize("name", ["labels.csv", "labels.JSON"])
def test_files_are_written_whole(tmp_path, monkeypatch, name):
    path = tmp_path / name
    written = Predictions(ROWS).write(path)
    assert written.text() == f"{path}: labels of 3 images"
    if name == "labels.csv":
        assert path.read_text() == Predictions(ROWS).csv()
    else:
        assert json.loads(path.read_text()) == Predictions(ROWS).plain()
        assert json.loads(path.read_text())[2]["file"] == ROWS[2].file  # exact
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(UserError, match="No space left"):
        Predictions(ROWS[:1]).write(path)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("labels.txt", "must end in one of these"),
        ("nowhere/labels.csv", "there is no folder"),
        ("folder.csv", "is a folder"),
    ],
)
def test_wrong_places_are_refused(tmp_path, name, sentence):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=sentence):
        check_labels_path(tmp_path / name)
