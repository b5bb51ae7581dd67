import json
import subprocess
import sys
from pathlib import Path

import pytest

from smi.cli import main
from smi.data.describe import describe_data, describe_folder
from smi.data.folders import read_folder
from support.pictures import Draw, enormous


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["smi", "data", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def messy(tmp_path: Path, draw: Draw) -> Path:
    root = tmp_path / "messy"
    for i in range(4):
        draw(root / "train" / "cat" / f"{i}.jpg", i)
        draw(root / "train" / "dog" / f"{i}.png", 10 + i, size=(40, 60))
    draw(root / "val" / "dog" / "x.png", 20)
    (root / "val" / "dog" / "same.png").write_bytes((root / "train" / "dog" / "0.png").read_bytes())
    (root / "val" / "cat").mkdir()
    (root / "val" / "cat" / "again.jpg").write_bytes(
        (root / "train" / "cat" / "0.jpg").read_bytes()
    )
    draw(root / "train" / "cat" / "really.png", 30, format="JPEG")
    (root / "train" / "cat" / "empty.jpg").touch()
    (root / "train" / "cat" / "text.jpg").write_text("hello")
    (root / "train" / "dog" / "cut.png").write_bytes(
        (root / "train" / "dog" / "1.png").read_bytes()[:70]
    )
    enormous(root / "train" / "dog" / "enormous.png")
    (root / "notes.txt").touch()
    draw(root / "spare" / "y.png", 40)
    return root


def test_a_messy_folder(messy: Path) -> None:
    description = describe_folder(read_folder(messy))
    assert description.num_files == 16
    assert description.splits == {"train": 13, "val": 3}
    assert description.classes == {"cat": 8, "dog": 8}
    assert description.formats == {"JPEG": 6, "PNG": 6}
    assert description.sides == (16, 16, 40)
    assert [bad.path for bad in description.unreadable] == [
        f"train/{name}"
        for name in ("cat/empty.jpg", "cat/text.jpg", "dog/cut.png", "dog/enormous.png")
    ]
    assert "200 megapixels" in description.unreadable[-1].reason
    assert [(bad.path, bad.reason) for bad in description.misnamed] == [
        ("train/cat/really.png", "is JPEG")
    ]
    assert description.duplicates == [
        ["train/cat/0.jpg", "val/cat/again.jpg"],
        ["train/dog/0.png", "val/dog/same.png"],
    ]
    assert description.across_splits == 2
    assert description.ignored == ["notes.txt"]
    assert description.unused == 1
    assert description.pretraining_images == 9
    assert description.cached


def test_the_text_of_a_messy_folder(
    messy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(messy)) == 0
    text = capsys.readouterr().out
    assert "train/cat/empty.jpg: empty file" in text
    assert "train/cat/really.png is JPEG" in text
    assert "2 files repeat another; 2 images are in train and in val" in text
    assert "Pretraining would stop: " in text
    assert "needs 16 or more" in text
    assert "Pretraining would use 9 images at 256 px, decoded once" in describe_data(messy).text()


def test_a_split_that_would_be_refused_is_foretold(messy: Path) -> None:
    text = describe_data(messy).text()
    assert "Pretraining would stop, because 4 of the 13 files of train are unreadable" in text
    assert "Evaluation would stop" not in text
    for name in ("empty.jpg", "text.jpg"):
        (messy / "train" / "cat" / name).rename(messy / "val" / "cat" / name)
    for name in ("cut.png", "enormous.png"):
        (messy / "train" / "dog" / name).unlink()
    text = describe_data(messy).text()
    assert "Evaluation would stop, because 2 of the 5 files of val are unreadable" in text
    assert "Pretraining would stop" not in text


def test_json_holds_the_whole_description(
    messy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(messy), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pretraining_images"] == 9
    assert len(document["unreadable"]) == 4


def test_an_unlabelled_folder(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(tmp_path / "flat" / "a.png")
    assert run(monkeypatch, str(tmp_path / "flat")) == 0
    text = capsys.readouterr().out
    assert "splits      train 1\n" in text
    assert "everything except accuracy works" in text


def test_from_python_it_returns_text_and_plain_data(
    messy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    description = describe_data(messy, quiet=True)
    assert description == describe_folder(read_folder(messy))
    assert description.text().startswith(f"{messy}\n  files       16 named like images")
    assert json.loads(json.dumps(description.plain()))["splits"] == {"train": 13, "val": 3}
    digits = describe_data("digits")
    assert digits.text().startswith("digits: 8 x 8 pixels\n")
    assert digits.plain()["classes"] == tuple("0123456789")
    assert capsys.readouterr().out == ""


def test_names_that_cannot_be_printed_are_escaped(tmp_path: Path, draw: Draw) -> None:
    draw(tmp_path / "flat" / "a\nb.png")
    (tmp_path / "flat" / "c\nd.txt").touch()
    assert "              c\\nd.txt\n" in describe_data(tmp_path / "flat").text()


def test_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "digits", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert sum(summary["splits"].values()) == 1797
    assert run(monkeypatch, "digits") == 0
    assert "nothing to download" in capsys.readouterr().out


def test_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "cifr10") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "smi: there is no dataset or folder 'cifr10': did you mean cifar10?\n"


def test_a_script_without_a_main_guard_can_load(tmp_path: Path, draw: Draw) -> None:
    """Check that workers do not import the user's script, which would start workers again."""
    draw(tmp_path / "set" / "a.png")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path = {sys.path!r} + sys.path\n"
        f"from smi.data import load\nprint(load({str(tmp_path / 'set')!r})[:].shape)\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert ran.stdout == "torch.Size([1, 3, 256, 256])\n"


def test_neither_help_nor_describing_needs_torch() -> None:
    program = (
        "import sys; import smi.cli, smi.data.describe, smi.data.decoder; "
        "smi.data.describe.describe_data('digits').text(); sys.exit('torch' in sys.modules)"
    )
    paths = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=paths, check=False).returncode == 0
