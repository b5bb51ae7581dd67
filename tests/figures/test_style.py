"""Test the looks and the names of runs in figures."""

import pytest

from smi.errors import UserError
from smi.figures.style import DASHES, accuracy_range, look, looks, looks_by_method
from smi.methods import METHOD_NAMES
from smi.runs.names import name_runs
from smi.runs.run import Run
from support.figures import caption, draw
from support.made_up import write_run


def test_runs_look_the_same_everywhere_and_differ_without_colour(pair, tmp_path):
    sweep = [write_run(tmp_path / str(weight), weight=weight) for weight in (0.001, 0.1, 1.0)]
    names = name_runs([*pair, *sweep])
    assert list(names) == [
        "SMI, λ = 0.01",
        "Barlow Twins",
        "SMI, λ = 0.001",
        "SMI, λ = 0.1",
        "SMI, λ = 1",
    ]
    found = looks(names)
    assert len({look.dash for look in found.values()}) == 5
    assert len({look.symbol for look in found.values()}) == 5
    for name in ("gradient-norm", "feature-std", "ratio"):
        figure = draw(name, [*pair, *sweep])
        assert {t.name: t.line.dash for t in figure.data} == {
            label: look.dash for label, look in found.items()
        }
    assert looks({"only": pair[1]})["only"].dash == DASHES[1]  # a method's own, alone too


def test_names_tell_runs_apart(tmp_path):
    runs = [write_run(tmp_path / "x" / str(seed), seed=seed) for seed in (0, 1)]
    assert list(name_runs(runs)) == ["SMI, seed 0", "SMI, seed 1"]
    same = [write_run(tmp_path / name) for name in ("one", "two")]
    assert list(name_runs(same)) == ["SMI, one", "SMI, two"]
    other = write_run(tmp_path / "other", data="cifar10")
    assert list(name_runs([runs[0], other])) == ["SMI, digits", "SMI, cifar10"]
    with pytest.raises(UserError, match="given twice"):
        name_runs([runs[0], Run(runs[0].folder)])


def test_names_are_escaped(tmp_path):
    runs = [write_run(tmp_path / name, data="/elsewhere/<b>&amp;") for name in ("<i>one", "two")]
    figure = draw("ratio", runs)
    assert [t.name for t in figure.data] == ["SMI, &lt;i&gt;one", "SMI, two"]
    assert "&lt;b&gt;&amp;amp;" in caption(figure)


def test_a_method_looks_like_its_position_in_the_list_of_methods():
    found = looks_by_method({name: name for name in reversed(METHOD_NAMES)})
    assert found == {name: look(number) for number, name in enumerate(METHOD_NAMES)}
    own = looks_by_method({"mine": "my.Method", "SMI": "SMI", "again": "SMI"})
    assert own["SMI"] == look(0)
    assert len(set(own.values())) == 3


def test_the_axis_of_accuracies_skips_values_that_are_missing():
    assert accuracy_range([None, 50.0, float("nan"), 99.5]) == [50 - 0.06 * 49.5, 100.0]
    assert accuracy_range([None]) == [0.0, 100.0]
