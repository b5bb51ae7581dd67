"""The one table type: text, Markdown, CSV and JSON."""

import csv
import io
import json

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
    assert list(csv.reader(io.StringIO(table.csv())))[1:] == [list(row) for row in rows]


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
