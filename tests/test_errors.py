"""An error is one line that can be printed."""

import pytest

from smi.errors import MAX_LENGTH, TrainingError, UserError


@pytest.mark.parametrize("kind", [UserError, TrainingError])
def test_a_name_cannot_change_the_terminal_or_fill_it(kind):
    error = str(kind("a\nb \x1b[31m \u202e \udcff " + "x" * 5000 + ": do this"))
    assert error.isprintable()
    assert len(error) <= MAX_LENGTH
    assert error.startswith(r"a\nb \x1b[31m \u202e \udcff xxx")
    assert error.endswith("x: do this")
    assert len(str(kind("\x1b" * 1000))) <= MAX_LENGTH


def test_a_plain_sentence_stays_as_it_is():
    assert str(UserError("there is no file ä.png: name another")) == (
        "there is no file ä.png: name another"
    )
