"""The one table type: text, Markdown, CSV and JSON."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smi.tables import Group, Table, percent, yes

SIMPLE = Table.of(["Method", "kNN"], [["SMI", "52.7%"], ["Barlow Twins", "-"]], notes=["one seed"])
GROUPED = Table(
    (Group("", ("Data",)), Group("paper", ("BT", "SMI")), Group("here", ("SMI",))),
    ((("digits",), ("1.0", "20.0"), ("3.25",)), (("a|b",), ("-", "-"), ("-",))),
    "Table 9. A title",
    ("A note.",),
    ({"data": "digits", "smi": 20.0}, {"data": "a|b", "other": None}),
)


def test_text_aligns_the_first_column_to_the_left_and_the_others_to_the_right():
    assert SIMPLE.text().splitlines() == [
        "Method          kNN",
        "------------  -----",
        "SMI           52.7%",
        "Barlow Twins      -",
        "",
        "one seed",
    ]


def test_text_separates_groups_of_columns():
    assert GROUPED.text().splitlines() == [
        "Table 9. A title",
        "",
        "       ┃   paper   ┃ here",
        "Data   ┃  BT   SMI ┃  SMI",
        "━━━━━━━╋━━━━━━━━━━━╋━━━━━",
        "digits ┃ 1.0  20.0 ┃ 3.25",
        "a|b    ┃   -     - ┃    -",
        "",
        "A note.",
    ]


def test_markdown_escapes_pipes_and_marks_what_was_measured_here():
    assert GROUPED.markdown().splitlines() == [
        "| Data | paper: BT | paper: SMI | **here: SMI** |",
        "| :-- | --: | --: | --: |",
        "| digits | 1.0 | 20.0 | **3.25** |",
        r"| a\|b | - | - | - |",
        "",
        "A note.  ",
    ]


def test_csv_has_the_records_or_else_the_cells():
    assert GROUPED.csv() == "data,smi,other\ndigits,20.0,\na|b,,\n"
    assert SIMPLE.csv() == "Method,kNN\nSMI,52.7%\nBarlow Twins,-\n"


def test_json_has_the_records_or_else_the_cells():
    assert json.loads(GROUPED.json()) == {
        "title": "Table 9. A title",
        "rows": [{"data": "digits", "smi": 20.0}, {"data": "a|b", "other": None}],
        "notes": ["A note."],
    }
    assert SIMPLE.plain() == {
        "rows": [{"Method": "SMI", "kNN": "52.7%"}, {"Method": "Barlow Twins", "kNN": "-"}],
        "notes": ["one seed"],
    }


def test_format_is_the_method_of_that_name():
    for form in ("text", "markdown", "csv", "json"):
        assert SIMPLE.format(form) == getattr(SIMPLE, form)()


cell = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)


@given(st.lists(st.tuples(cell, cell, cell), max_size=5))
def test_every_cell_survives_csv(rows):
    table = Table.of(["a", "b", "c"], rows)
    read = list(csv.reader(io.StringIO(table.csv())))[1:]
    for line, row in zip(read, rows, strict=True):
        for cell, text in zip(line, row, strict=True):
            assert cell == text or (cell == f"'{text}" and text[0] in "=+-@")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("\t=1", "'\\t=1"),
        ("-0.5", "-0.5"),
        ("+1.2 ± 0.3", "+1.2 ± 0.3"),
        ("-1.5e-05", "-1.5e-05"),
        ("-", "-"),
        ("SMI", "SMI"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_a_spreadsheet_computes_nothing_from_a_name(text, written):
    assert list(csv.reader(io.StringIO(Table.of(["a"], [[text]]).csv())))[1] == [written]
    record = Table.of([], [], records=[{text: text, "n": -1}])
    assert list(csv.reader(io.StringIO(record.csv()))) == [[written, "n"], [written, "-1"]]


def test_markdown_and_text_show_names_as_they_are():
    name = "<img src=x>[a](b) | \x1b[31m\u202e\n"
    table = Table.of(["a"], [[name]], notes=[name], title=name)
    markdown = table.markdown()
    assert "<" not in markdown
    assert "](" not in markdown.replace(r"\](", "")
    for shown in (markdown, table.text()):
        assert r"\x1b[31m\u202e\n" in shown
        assert all(c.isprintable() or c == "\n" for c in shown)


@given(st.lists(st.tuples(cell, cell), max_size=5))
def test_all_lines_of_a_text_are_as_wide_as_the_rule(rows):
    lines = Table.of(["first", "second"], rows).text().splitlines()
    assert all(len(line) <= len(lines[1]) for line in lines)


def test_cells():
    assert [yes(True), yes(False), yes(None)] == ["yes", "no", "-"]
    assert [percent(None), percent(73.2), percent(90.64), percent(90.6049)] == [
        "-",
        "73.2",
        "90.64",
        "90.6",
    ]


def test_latex_has_rules_and_escapes():
    assert SIMPLE.latex().splitlines() == [
        "% ",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"Method & kNN \\",
        r"\midrule",
        r"SMI & 52.7\% \\",
        r"Barlow Twins & - \\",
        r"\bottomrule",
        r"\end{tabular}",
        "% one seed",
    ]
    hostile = Table.of(["a_b"], [[r"\input{x} & 1 ± 2"]]).latex()
    assert r"a\_b" in hostile
    assert r"\textbackslash{}input\{x\} \& 1 $\pm$ 2" in hostile
