"""A user's own encoder or method, by its import path."""

import sys

import pytest

from smi.errors import UserError
from smi.imports import import_path, refused


def test_also_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine_for_this_test.py").write_text("class Net: ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert import_path("mine_for_this_test.Net").__name__ == "Net"
    assert import_path("collections.abc.Mapping").__name__ == "Mapping"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("Net", "Net is not an import path: write it as package.module.Name"),
        (".a.Net", "is not an import path"),
        ("a.", "is not an import path"),
        ("no_such_module.Net", "there is no module 'no_such_module'"),
        ("math.Net", "math has no 'Net'"),
    ],
)
def test_a_wrong_path_is_a_sentence(path, sentence):
    with pytest.raises(UserError, match=sentence):
        import_path(path)


def test_a_refusal_is_one_line():
    error = refused(TypeError("wrong\n  argument" + "x" * 400), "Net")
    assert str(error).startswith("Net failed: wrong argumentxxx")
    assert "\n" not in str(error)
    assert len(str(error)) < 340
    assert "KeyError" in str(refused(KeyError(), "Net"))
