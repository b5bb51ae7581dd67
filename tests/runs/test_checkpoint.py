"""Write files whole or not at all, and read checkpoints safely."""

import json
import os
import threading
import zipfile

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from smi.errors import DiskError, UserError
from smi.files import write_text, write_whole
from smi.nn.weights import digest_of
from smi.runs import checkpoint
from smi.runs.checkpoint import Writer, load, save, save_encoder, snapshot


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "last.pt"
    save(path, {"step": 1, "method": {"weight": torch.ones(3)}})

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


def test_the_sentence_about_a_refused_pickle_does_not_advise_to_run_it(tmp_path):
    torch.save({"step": 1, "method": nn.Linear(2, 2)}, tmp_path / "last.pt")
    with pytest.raises(UserError, match="holds more than tensors and plain values") as refusal:
        load(tmp_path / "last.pt")
    assert "weights_only" not in str(refusal.value)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ([1, 2], "it is not a checkpoint of a run"),
        ({"method": {}}, "does not say at which step"),
        ({"step": -1, "method": {}}, "does not say at which step"),
        ({"step": 10**20, "method": {}}, "does not say at which step"),
        ({"step": 1}, "has no weights of a method"),
        ({"step": 1, "method": {"weight": 1.5}}, "has no weights of a method"),
    ],
)
def test_a_checkpoint_of_a_wrong_structure_is_a_sentence(tmp_path, state, reason):
    torch.save(state, tmp_path / "last.pt")
    with pytest.raises(UserError, match=reason):
        load(tmp_path / "last.pt")


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04", bytes(1000)])
def test_a_damaged_checkpoint_is_a_sentence(tmp_path, content):
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "last.pt")


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "last.pt"
    save(path, {"step": 1, "method": {"weight": torch.full((1000,), 7.0)}})
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((9,), 7.0).numpy().tobytes()) + 101] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="has changed since it was written"):
        load(path)


def test_a_checkpoint_that_expands_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "last.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**6))
    with pytest.raises(UserError, match="is not a checkpoint of a run"):
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
        about = json.loads(file.metadata()["smi"])
        assert about["encoder"] == "x"
        assert about["digest"] == digest_of({"w": torch.ones(2, 2)})
        assert torch.equal(file.get_tensor("w"), torch.ones(2, 2))


def test_a_kept_checkpoint_stays_when_the_next_one_is_written(tmp_path, monkeypatch):
    last = tmp_path / "last.pt"
    save(last, {"step": 1, "method": {}}, tmp_path / "epoch-1.pt")
    assert last.samefile(tmp_path / "epoch-1.pt")  # not written twice

    def refuse(*paths):
        raise OSError("this file system has no links")

    monkeypatch.setattr(checkpoint.os, "link", refuse)
    save(last, {"step": 2, "method": {}}, tmp_path / "epoch-2.pt")
    save(last, {"step": 3, "method": {}})
    save(last, {"step": 4, "method": {}}, tmp_path / "epoch-1.pt")  # a resumed run writes one again
    steps = {path.stem: load(path)["step"] for path in tmp_path.iterdir()}
    assert steps == {"last": 4, "epoch-1": 4, "epoch-2": 2}


def test_a_kept_checkpoint_has_its_own_name_first(tmp_path, monkeypatch):
    """A run that is killed before `last.pt` is replaced repeats the steps, and both files."""
    save(tmp_path / "last.pt", {"step": 1, "method": {}})
    written = []

    def write(path, write_partial):
        written.append(path.name)
        write_whole(path, write_partial)

    monkeypatch.setattr(checkpoint, "write_whole", write)
    save(tmp_path / "last.pt", {"step": 2, "method": {}}, tmp_path / "epoch-1.pt")
    assert written == ["epoch-1.pt", "last.pt"]
    assert load(tmp_path / "last.pt") == load(tmp_path / "epoch-1.pt")


def test_an_encoder_is_written_as_safetensors_writes_it(tmp_path, monkeypatch):
    from safetensors import safe_open
    from safetensors.torch import save_file

    weights = {"b": torch.ones(3), "a": torch.arange(4), "c": torch.ones(2, dtype=torch.float64)}
    save_encoder(tmp_path / "e.safetensors", weights, {"encoder": "x"})
    with safe_open(tmp_path / "e.safetensors", "pt") as file:
        save_file(weights, tmp_path / "other.safetensors", file.metadata())
    other = (tmp_path / "other.safetensors").read_bytes()
    assert (tmp_path / "e.safetensors").read_bytes() == other


def test_a_snapshot_has_the_same_bits_and_does_not_change_any_more():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    module.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    state = {"method": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    copied = snapshot(state)
    before = {name: value.clone() for name, value in state["method"].items()}
    moment = state["optimizer"]["state"][0]["exp_avg"].clone()
    optimizer.step()
    assert not torch.equal(state["method"]["0.weight"], before["0.weight"])
    for name, value in copied["method"].items():
        assert torch.equal(value, before[name])
        assert value.stride() == before[name].stride()
        assert not value.requires_grad
    assert torch.equal(copied["optimizer"]["state"][0]["exp_avg"], moment)
    assert copied["method"]._metadata == state["method"]._metadata
    assert copied["step"] == 1


@pytest.fixture
def slow_disk(monkeypatch):
    """Let every write wait until it is allowed."""
    allowed = threading.Semaphore(0)
    original = checkpoint.save

    def wait(*arguments):
        allowed.acquire()
        original(*arguments)

    monkeypatch.setattr(checkpoint, "save", wait)
    return allowed


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, slow_disk):
    writer = Writer()
    writer.start(tmp_path / "last.pt", {"step": 1, "method": {}})
    assert writer.busy
    writer.check()
    assert list(tmp_path.iterdir()) == []
    slow_disk.release()
    writer.wait()
    assert not writer.busy
    assert load(tmp_path / "last.pt")["step"] == 1
    writer.close()
    assert not any("smi-checkpoint" in thread.name for thread in threading.enumerate())


def test_one_checkpoint_is_written_at_a_time(tmp_path, slow_disk):
    writer = Writer()
    writer.start(tmp_path / "last.pt", {"step": 1, "method": {}})
    threading.Timer(0.1, slow_disk.release).start()
    writer.start(tmp_path / "last.pt", {"step": 2, "method": {}})  # waits for the first
    assert load(tmp_path / "last.pt")["step"] == 1
    slow_disk.release()
    writer.wait()
    assert load(tmp_path / "last.pt")["step"] == 2
    writer.close()


def test_the_error_of_a_write_is_raised_by_the_next_call(tmp_path):
    writer = Writer()
    writer.start(tmp_path / "absent" / "last.pt", {"step": 1, "method": {}})
    with pytest.raises((OSError, RuntimeError), match="absent"):
        writer.wait()
    with pytest.raises((OSError, RuntimeError), match="absent"):
        writer.check()
    writer.close()


def test_a_snapshot_of_a_gpu_waits_once_for_all_copies(monkeypatch):
    """The copies go to pinned memory and are not waited for one by one."""
    calls = []
    stream = type("Stream", (), {"synchronize": lambda self: calls.append("synchronize")})
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    empty_like = torch.empty_like

    def recorded(value, **options):
        calls.append(options["pin_memory"])
        return empty_like(value, **options | {"pin_memory": False})

    monkeypatch.setattr(torch, "empty_like", recorded)
    with FakeTensorMode():
        weights = torch.empty(2, 3, 4, 4, device="cuda").to(memory_format=torch.channels_last)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        copied = snapshot({"weights": weights, "lists": [weights, 1], "host": torch.ones(1)})
    assert calls == [True, True, False, "synchronize"]
    assert copied["weights"].device.type == copied["lists"][0].device.type == "cpu"
    assert copied["weights"].stride() == weights.stride()


def test_a_disk_that_cannot_be_read_is_not_a_damaged_checkpoint(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", {"step": 1, "method": {}})

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("zipfile.ZipFile.testzip", fail)
    with pytest.raises(DiskError, match=r"last.pt cannot be read: Input/output error"):
        load(tmp_path / "last.pt")


def test_a_kill_between_two_names_leaves_the_kept_checkpoint_alone(tmp_path):
    kept, last = tmp_path / "epoch-10.pt", tmp_path / "last.pt"
    save(kept, {"step": 100, "method": {}})
    os.link(kept, tmp_path / "last.pt.partial")  # as a kill before the rename leaves it
    save(last, {"step": 81, "method": {}})
    assert (load(kept)["step"], load(last)["step"]) == (100, 81)


def test_a_method_may_have_more_than_tensors(tmp_path):
    weights = {"weight": torch.ones(1), "_extra_state": {"n": 3}}
    save(tmp_path / "last.pt", {"step": 1, "method": weights})
    assert load(tmp_path / "last.pt")["method"]["_extra_state"] == {"n": 3}
