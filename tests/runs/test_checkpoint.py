"""Write files whole or not at all, and read checkpoints safely."""

import json

import pytest
import torch

from smi.errors import UserError
from smi.files import write_text, write_whole
from smi.runs.checkpoint import load, save, save_encoder


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "last.pt"
    save(path, {"step": 1, "weights": torch.ones(3)})

    def fail(partial):
        partial.write_bytes(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_whole(path, fail)
    assert load(path)["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("sprung",))

    torch.save({"step": Trap()}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "bad.pt")


def test_a_damaged_checkpoint_is_a_sentence(tmp_path):
    (tmp_path / "last.pt").write_bytes(b"garbage")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "last.pt")


def test_text_and_encoder(tmp_path):
    from safetensors import safe_open

    write_text(tmp_path / "a.txt", "ä\n")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "ä\n"
    write_text(
        tmp_path / "a.json", json.dumps("ä\udce9", ensure_ascii=False)
    )  # a file's name need not be text
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == "ä\udce9"
    save_encoder(tmp_path / "e.safetensors", {"w": torch.ones(2, 2).T}, {"encoder": "x"})
    with safe_open(tmp_path / "e.safetensors", "pt") as file:
        assert file.metadata() == {"smi": '{"encoder": "x"}'}
        assert torch.equal(file.get_tensor("w"), torch.ones(2, 2))
