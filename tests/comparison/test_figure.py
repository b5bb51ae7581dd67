"""The figure of a comparison, as plotly draws it and as a page in a browser."""

import pytest

from smi.comparison.comparison import Comparison, Row, TrainedRun
from smi.comparison.figure import draw_comparison, write_comparison_figure
from smi.evaluation.results import Result, Score
from support.comparisons import make_row, make_sweep


@pytest.mark.parametrize(
    ("values", "positions", "scores", "labels"),
    [
        ((0.001, 0.1), [-3, -1], [81, 91], ["0.001", "0.1"]),
        ((0.0, 0.1), [0, 0.1], [81, 91], ["0", "0.1"]),  # 0 has no logarithm
        (((8, 8), (16, 16)), [0, 1], [91, 81], ["(16, 16)", "(8, 8)"]),  # in the order of rows
        (([8], [16]), [0, 1], [91, 81], ["[16]", "[8]"]),
    ],
)
def test_a_sweep_is_drawn_against_its_values(values, positions, scores, labels):
    figure = draw_comparison(make_sweep(values))
    a, b = figure.data[0], figure.data[1]
    assert list(a.x) == pytest.approx(positions)
    assert list(a.y) == pytest.approx(scores)
    assert list(figure.layout.xaxis.tickvals) == pytest.approx(positions)
    assert list(figure.layout.xaxis.ticktext) == labels
    assert list(b.y) == pytest.approx([71, 71])  # a horizontal line
    assert b.x[1] > max(a.x)  # its interval does not overlap others
    assert list(b.error_y.array) == pytest.approx([0, 100 * 4.3027 * 0.01 / 3**0.5], rel=1e-3)
    assert a.marker.symbol != b.marker.symbol
    assert a.line.dash != b.line.dash
    assert f"Differences are to A {values[1]}, paired by seed" in figure.layout.annotations[-1].text


def test_without_a_sweep_rows_are_listed():
    rows = (make_row("SMI", {0: 0.9, 1: 0.8}), make_row("BarlowTwins", {0: 0.7, 1: 0.9}))
    figure = draw_comparison(Comparison(rows, (0, 1), None, {}))
    scores = figure.data[:2]
    assert [trace.y[0] for trace in scores] == ["SMI", "Barlow Twins"]
    assert [trace.x[0] for trace in scores] == pytest.approx([85, 80])
    assert [trace.text[0].split(",")[0] for trace in scores] == ["SMI: 85.00", "BarlowTwins: 80.00"]
    assert len({axis.domain[0] for axis in figure.select_xaxes()}) == 2
    titles = [axis.title.text for axis in figure.select_xaxes()]
    assert titles == [
        "kNN, %",
        "kNN: difference, points",
        "ms per step; black: the loss",
        "peak memory, MB",
    ]


def test_costs_can_be_left_out_and_one_row_has_no_differences():
    comparison = Comparison((make_row("SMI", {0: 0.9}),), (0,), None, {})
    figure = draw_comparison(comparison, costs=False)
    assert [axis.title.text for axis in figure.select_xaxes()] == ["kNN, %"]
    assert figure.data[0].error_x.visible is False


def test_a_dataset_name_that_is_not_text(tmp_path):
    protocol = {"name": "knn", "data": "caf\udce9\n/"}
    result = Result(protocol, "encoder", {}, (Score("kNN", 0.5),), "nearest neighbours")
    row = Row("SMI", None, "SMI", (TrainedRun(0, "", "", (result,)),))
    comparison = Comparison((row,), (0,), None, {})
    assert "caf\\udce9\\n/" in draw_comparison(comparison).layout.annotations[-1].text
    write_comparison_figure(comparison, tmp_path / "figure.html")
    assert "caf\\\\udce9\\\\n" in (tmp_path / "figure.html").read_text(encoding="utf-8")


def test_the_page_fits_a_telephone_and_names_are_not_html(page, tmp_path):
    sweep = make_sweep((0.001, 0.1), methods=("A", "<i>B&amp;</i>"))
    write_comparison_figure(sweep, tmp_path / "figure.html")
    for width, columns in ((1000, 2), (390, 1)):
        page.set_viewport_size({"width": width, "height": 700})
        page.goto((tmp_path / "figure.html").as_uri())
        page.wait_for_selector(".legendtext")
        assert page.locator(".legendtext").all_text_contents() == ["A", "<i>B&amp;</i>"]
        lefts = page.evaluate(
            "[...document.querySelectorAll('.draglayer .nsewdrag')]"
            ".map(r => Math.round(r.getBoundingClientRect().x))"
        )
        assert len(lefts) == 4
        assert len(set(lefts)) == columns
        assert page.evaluate("document.documentElement.scrollWidth") <= width
