"""Sentences, names and progress bars, and how a caller silences them."""

import io
import json
import sys

import pytest

from smi.terminal import (
    Progress,
    announce,
    announce_once,
    aside,
    counted,
    duration,
    has_colours,
    is_quiet,
    printable,
    printable_json,
    quietly,
    say,
    suggest,
)


def test_say_prints_on_stdout_and_announce_on_stderr(capsys):
    say("result")
    announce("warning: [bold]not markup[/bold]")
    out, err = capsys.readouterr()
    assert out == "result\n"
    assert err == "warning: [bold]not markup[/bold]\n"


def test_results_can_go_aside_so_that_stdout_holds_only_json(capsys):
    with aside():
        say("epoch 1")
    say("{}")
    assert capsys.readouterr() == ("{}\n", "epoch 1\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_colours_and_a_file_has_none(monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    text = "Loss    GMACs\n------  -----\nSMI       0.1\n\nwarning  it falls\nno warning  here"
    monkeypatch.setattr(sys, "stdout", Terminal())
    say(text)
    lines = sys.stdout.getvalue().splitlines()
    assert lines[0] == "\x1b[1mLoss    GMACs\x1b[0m"
    assert lines[4] == "\x1b[33mwarning\x1b[0m  it falls"
    assert [lines[i] for i in (1, 2, 3, 5)] == [text.splitlines()[i] for i in (1, 2, 3, 5)]
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    say(text)
    assert sys.stdout.getvalue() == f"{text}\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not has_colours(Terminal())


def test_a_name_cannot_bring_colours_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    say("\x1b[31mred.png")
    assert "\x1b" not in sys.stdout.getvalue()


def test_quietly_silences_both_and_ends_with_the_block(capsys):
    with quietly():
        assert is_quiet()
        say("a")
        announce("b")
        with quietly(False):  # a quiet caller stays quiet, whatever it calls
            assert is_quiet()
            say("c")
    assert not is_quiet()
    with quietly(False):
        say("d")
    assert capsys.readouterr() == ("d\n", "")


def test_a_sentence_that_was_silenced_is_said_later_and_then_never_again(capsys):
    with quietly():
        announce_once("said once")
    assert capsys.readouterr().err == ""
    announce_once("said once")
    announce_once("said once")
    assert capsys.readouterr().err == "said once\n"


def test_quietly_ends_after_an_error():
    with pytest.raises(KeyError), quietly():
        raise KeyError
    assert not is_quiet()


def test_long_sentences_are_not_wrapped(capsys):
    announce("word " * 100)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat.jpg", "cat.jpg"),
        ("Käfer é.png", "Käfer é.png"),
        ("a\nb\x1b[31m", r"a\nb\x1b[31m"),
        ("\udcff", r"\udcff"),
    ],
)
def test_names_that_cannot_be_printed_are_escaped(text, expected):
    assert printable(text) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (5400, "1.5 h")]
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected


def test_suggest_names_the_closest_or_lists_all():
    assert suggest("epoch", ["epochs", "seed"]) == "did you mean epochs?"
    assert suggest("barlowtwin", ["SMI", "BarlowTwins"]) == "did you mean BarlowTwins?"
    assert suggest("lr", ["learning"], prefix="optimizer.") == "choose one of learning"
    assert suggest("lrr", ["lr"], prefix="optimizer.") == "did you mean optimizer.lr?"
    assert suggest("x", []) == "there are none"


def test_a_progress_bar_prints_nothing_where_there_is_no_terminal(capsys):
    with Progress("decoding", 4, "images") as progress:
        progress.advance(4)
    with Progress("loading", 4, "bytes", done=2) as progress:
        progress.advance(2)
    assert capsys.readouterr() == ("", "")


def test_a_progress_bar_counts_on_a_terminal_unless_silenced(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for quiet in (False, True):
        monkeypatch.setattr(sys, "stderr", Terminal())
        with quietly(quiet), Progress("decoding", 4, "images") as progress:
            progress.advance(3)
        assert ("3/4" in sys.stderr.getvalue()) is not quiet


def test_there_is_no_bar_in_a_file_that_shall_have_colours(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress("decoding", 4, "images") as progress:
        progress.advance(3)
    assert capsys.readouterr().err == ""


def test_json_is_printable_and_means_the_same():
    names = {"a\x1b[31m\n": ["\x9b", "\u202e", "\udcff", "é 日本 🦋", " \u2028"]}
    text = printable_json(json.dumps(names, indent=2, ensure_ascii=False))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "é 日本 🦋" in text
    assert json.loads(text) == names


def test_without_a_terminal_progress_is_lines(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr("smi.terminal.time.monotonic", lambda: now)
    with Progress("decoding", 4000, "images") as progress:
        for seconds in (1, 1.5, 3, 9, 3, 20):
            now += seconds
            progress.advance(100)
    assert capsys.readouterr().err == (
        "decoding: 200 of 4,000 images\ndecoding: 400 of 4,000 images\ndecoding: 600 of 4,000 "
        "images\n"
    )
    with quietly(), Progress("decoding", None, "images") as progress:
        now += 60
        progress.advance(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 images"),
        (1, "1 image"),
        (1.0, "1 image"),
        (2.5, "2.5 images"),
        (1614, "1,614 images"),
    ],
)
def test_a_number_with_its_noun(number, text):
    assert counted(number, "image") == text
