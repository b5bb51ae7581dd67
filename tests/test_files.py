"""Paths, locks, and files that are written whole or not at all."""

import json
import math
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from smi.errors import UserError
from smi.files import (
    as_list,
    cache_home,
    data_home,
    disk_errors,
    exchange,
    expand,
    finite,
    free_bytes,
    lock,
    lock_or_fail,
    make_folder,
    sync_below,
    temporary_folder,
    try_lock,
    write_json,
    write_text,
    write_whole,
)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "own"))
    assert cache_home() == tmp_path / "own"
    assert data_home() == tmp_path / "own" / "data"
    monkeypatch.delenv("SMI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "smi"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_home() == Path.home() / ".cache" / "smi"


def test_an_unknown_home_folder_is_a_sentence():
    assert expand("~/x") == Path.home() / "x"
    with pytest.raises(UserError, match="begins with a home folder that cannot be found"):
        expand("~nobody-has-this-name/x")


def test_one_source_or_several():
    class Folder:
        def __fspath__(self):
            return "runs/a"

    assert as_list("runs/a") == ["runs/a"]
    assert as_list(Path("runs/a")) == as_list(Folder()) == [Path("runs/a")]
    assert as_list(["a", Path("b"), Folder()]) == ["a", Path("b"), Path("runs/a")]
    assert as_list(()) == []


def test_free_bytes_of_a_folder_that_does_not_exist(tmp_path):
    assert free_bytes(tmp_path / "a" / "b") > 0


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.txt"
    write_text(path, "old")

    def fail(partial):
        partial.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.txt"
    write_text(path, "old")
    code = (
        "import os, sys; from pathlib import Path; from smi.files import write_whole\n"
        "def write(partial):\n    partial.write_text('half'); os.kill(os.getpid(), 9)\n"
        "write_whole(Path(sys.argv[1]), write)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -9
    assert path.read_text() == "old"


def test_two_processes_write_a_file_one_after_the_other(tmp_path):
    path = tmp_path / "x.txt"
    code = (
        "import sys, time; from pathlib import Path; from smi.files import write_whole\n"
        "def write(partial):\n"
        "    with partial.open('w') as file:\n"
        "        for _ in range(20):\n"
        "            file.write(sys.argv[2]); file.flush(); time.sleep(0.01)\n"
        "for _ in range(3):\n    write_whole(Path(sys.argv[1]), write)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), word]) for word in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert path.read_text() in ("a" * 20, "b" * 20)
    assert list(tmp_path.iterdir()) == [path]


def test_the_names_of_new_folders_are_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("smi.files.sync", flushed.append)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert flushed == [tmp_path / "a", tmp_path]
    (tmp_path / "a" / "x").write_text("")
    sync_below(tmp_path / "a")
    assert flushed[2:] == [tmp_path / "a" / "x", tmp_path / "a", tmp_path / "a" / "b"]


def test_a_temporary_folder_is_removed_also_after_a_kill(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from smi.files import temporary_folder\n"
        "with temporary_folder(Path(sys.argv[1]), 'x-') as folder:\n"
        "    (folder / 'a').write_text('')\n"
        "    print(folder.name, flush=True)\n"
        "    os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    left = tmp_path / killed.stdout.strip()
    assert left.is_dir()
    (tmp_path / "x-own").mkdir()  # not one of ours
    with temporary_folder(tmp_path, "x-") as folder:
        assert not left.exists()
        with temporary_folder(tmp_path, "x-") as second:
            assert folder.is_dir()  # in use
            assert second.is_dir()
        assert not second.exists()
        folder.rename(tmp_path / "kept")
    assert {path.name for path in tmp_path.iterdir()} == {"x-own", "kept"}


def test_two_folders_exchange_their_names(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    exchanged = exchange(tmp_path / "a", tmp_path / "b")
    assert exchanged == (sys.platform == "linux")
    assert (tmp_path / "a" / "x").read_text() == ("b" if exchanged else "a")
    assert not exchange(tmp_path / "a", tmp_path / "none")


def test_json_has_null_for_nan_and_infinity(tmp_path):
    write_json(tmp_path / "x.json", {"a": [math.nan, 1.5, (math.inf, -math.inf)], "b": {"c": 0}})
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {"a": [None, 1.5, [None, None]], "b": {"c": 0}}
    assert text.endswith("}\n")
    assert finite("nan") == "nan"
    assert finite(10**400) == 10**400


def test_file_names_that_are_not_text_can_be_written(tmp_path):
    write_text(tmp_path / "x.txt", "a\udcff.png")
    assert (tmp_path / "x.txt").read_bytes() == rb"a\udcff.png"


HOLD = (
    "import sys; from pathlib import Path; from smi.files import lock\n"
    "with lock(Path(sys.argv[1]), 'waiting'):\n    print('locked', flush=True); sys.stdin.read()"
)


def test_a_lock_is_held_by_one_process_and_freed_when_it_dies(tmp_path, capsys):
    path = tmp_path / "below" / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(UserError, match="it is taken"), lock_or_fail(path, "it is taken"):
        pass
    holder.kill()
    holder.communicate()
    with lock_or_fail(path, "it is taken"), pytest.raises(UserError), lock_or_fail(path, "again"):
        pass
    with lock(path, "waiting"):
        pass
    assert capsys.readouterr().err == ""


def test_a_lock_that_is_taken_is_announced_and_waited_for(tmp_path):
    path = tmp_path / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    holder.stdout.readline()
    waiter = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert waiter.stderr.readline() == b"waiting\n"
    holder.communicate()
    assert waiter.stdout.readline() == b"locked\n"
    waiter.communicate()


def test_errors_of_the_disk_are_sentences(tmp_path):
    with (
        pytest.raises(
            UserError, match=r"writing x failed: No such file or directory \(.*/none/x\)"
        ),
        disk_errors("writing x"),
    ):
        (tmp_path / "none" / "x").write_text("")
    with pytest.raises(UserError, match=r"writing x failed: odd$"), disk_errors("writing x"):
        raise OSError("odd")


def test_files_need_neither_torch_nor_rich():
    code = "import sys, smi.files, smi.cli; sys.exit(bool({'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0


def test_a_lock_may_be_released_by_another_thread(tmp_path):
    held = try_lock(tmp_path / ".lock")
    assert try_lock(tmp_path / ".lock") is None
    thread = threading.Thread(target=held.release)
    thread.start()
    thread.join()
    again = try_lock(tmp_path / ".lock")
    assert again is not None
    again.release()
    assert (tmp_path / ".lock").exists()


def test_on_windows_folders_are_not_flushed(tmp_path, monkeypatch):
    opened = []
    plain_open = os.open
    monkeypatch.setattr("smi.files.WINDOWS", True)
    monkeypatch.setattr(
        "smi.files.os.open", lambda path, *rest: opened.append(path) or plain_open(path, *rest)
    )
    write_text(tmp_path / "a.txt", "whole")
    assert set(opened) == {tmp_path / "a.txt.partial"}
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_files_have_the_usual_mode_whoever_writes_them(tmp_path):
    (tmp_path / "plain").touch()

    def write_privately(partial):
        partial.touch(0o600)

    write_whole(tmp_path / "whole", write_privately)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "whole")}
    assert len(modes) == 1


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a.json.partial").symlink_to(tmp_path / "victim")
    write_json(tmp_path / "a.json", {"x": 1})
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "a.json").is_symlink()
    os.link(tmp_path / "victim", tmp_path / "b.json.partial")
    write_json(tmp_path / "b.json", {"x": 1})
    assert (tmp_path / "victim").read_text() == "mine"
