"""The figure of a comparison, as plotly draws it and as a page in a browser."""

from dataclasses import replace

import pytest

from smi.comparison.comparison import Comparison, OffTheShelf, Row, TrainedRun
from smi.comparison.figure import draw_comparison, write_comparison_figure
from smi.evaluation.results import Result, Score
from support.comparisons import make_result, make_row, make_sweep

START = OffTheShelf("timm", "resnet18", "0", (make_result(0.75),))


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


@pytest.mark.parametrize("value", [None, 0.1])
def test_no_score_and_no_error_bar_is_beyond_100_percent(value):
    row = make_row("SMI", {0: 0.99, 1: 1.0, 2: 0.93}, value)
    figure = draw_comparison(
        Comparison((row,), (0, 1, 2), "key" if value else None, {}), costs=False
    )
    (score,) = figure.data
    bars, places = (score.error_x, score.x) if value is None else (score.error_y, score.y)
    axis = figure.layout.xaxis if value is None else figure.layout.yaxis
    assert places[0] + bars.array[0] == pytest.approx(100)
    assert bars.arrayminus[0] > bars.array[0]
    assert axis.range[0] < places[0] - bars.arrayminus[0]
    assert axis.range[1] == 100
    assert score.text[0].startswith("SMI" if value is None else "SMI 0.1")
    assert "to 100.00" in score.text[0]


def test_costs_can_be_left_out_and_one_row_has_no_differences():
    comparison = Comparison((make_row("SMI", {0: 0.9}),), (0,), None, {})
    figure = draw_comparison(comparison, costs=False)
    assert [axis.title.text for axis in figure.select_xaxes()] == ["kNN, %"]
    assert figure.data[0].error_x.visible is False


def test_the_weights_off_the_shelf_are_a_row_and_gains_have_panels():
    rows = (make_row("SMI", {0: 0.9, 1: 0.8}), make_row("SimCLR", {0: 0.7, 1: 0.9}))
    figure = draw_comparison(Comparison(rows, (0, 1), None, {}, START))
    titles = [axis.title.text for axis in figure.select_xaxes()]
    assert titles == [
        "kNN, %",
        "kNN: difference",
        "kNN: gain",
        "ms per step; black: the loss",
        "peak memory, MB",
    ]
    lefts = [axis.domain[0] for axis in figure.select_xaxes()]
    assert lefts[0] < lefts[1] < lefts[2]
    assert lefts[3:] == lefts[:2]
    on_axis = {(t.xaxis, t.y[0]): t.x[0] for t in figure.data if t.type == "scatter"}
    assert on_axis["x", "off the shelf"] == 75
    assert on_axis["x3", "SMI"] == pytest.approx(10)
    assert on_axis["x3", "off the shelf"] == 0
    assert list(figure.layout.yaxis.categoryarray) == ["off the shelf", "SimCLR", "SMI"]
    assert list(figure.layout.yaxis4.categoryarray) == ["SimCLR", "SMI"]  # it has no costs
    assert "off the shelf (dotted)" in figure.layout.meta["caption"]


def test_a_sweep_has_a_line_at_the_weights_off_the_shelf():
    figure = draw_comparison(replace(make_sweep((0.001, 0.1)), off_the_shelf=START), costs=False)
    (start,) = [
        trace for trace in figure.data if trace.name == "off the shelf" and trace.showlegend
    ]
    assert list(start.y) == [75]
    assert 75 in [shape.y0 for shape in figure.layout.shapes]
    assert [axis.title.text for axis in figure.select_yaxes()][2] == "kNN: gain"


def test_one_method_has_gains_beside_its_scores():
    comparison = Comparison((make_row("SMI", {0: 0.9}),), (0,), None, {}, START)
    figure = draw_comparison(comparison, costs=False)
    assert [axis.title.text for axis in figure.select_xaxes()] == ["kNN, %", "kNN: gain, points"]


def test_a_dataset_name_that_is_not_text(tmp_path):
    protocol = {"name": "knn", "data": "caf\udce9\n/"}
    result = Result(protocol, "encoder", {}, (Score("kNN", 0.5),), "nearest neighbours")
    row = Row("SMI", None, "SMI", (TrainedRun(0, "", "", (result,)),))
    comparison = Comparison((row,), (0,), None, {})
    assert "caf\\udce9\\n/" in draw_comparison(comparison).layout.annotations[-1].text
    write_comparison_figure(comparison, tmp_path / "figure.html")
    assert "caf\\\\udce9\\\\n" in (tmp_path / "figure.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("start", [None, START])
def test_the_page_fits_a_telephone_and_names_are_not_html(page, tmp_path, start):
    sweep = make_sweep((0.001, 0.1), methods=("A", "<i>B&amp;</i>"))
    write_comparison_figure(replace(sweep, off_the_shelf=start), tmp_path / "figure.html")
    names = ["A", "<i>B&amp;</i>", *(["off the shelf"] if start else [])]
    for width, columns in ((1000, 3 if start else 2), (390, 1)):
        page.set_viewport_size({"width": width, "height": 700})
        page.goto((tmp_path / "figure.html").as_uri())
        page.wait_for_selector(".legendtext")
        assert page.locator(".legendtext").all_text_contents() == names
        lefts = page.evaluate(
            "[...document.querySelectorAll('.draglayer .nsewdrag')]"
            ".map(r => Math.round(r.getBoundingClientRect().x))"
        )
        assert len(lefts) == (5 if start else 4)
        assert len(set(lefts)) == columns
        assert page.evaluate("document.documentElement.scrollWidth") <= width
