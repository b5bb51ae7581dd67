"""Find the weights that a run starts from, by every kind of source."""

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models._hub import save_for_hf

import smi
from smi.errors import UserError
from smi.nn import create_encoder
from smi.nn.weights import Input, digest_of
from smi.runs.checkpoint import save_encoder
from smi.runs.start import absolute_start, find_start

NET = {"name": "support.homemade.Net"}
RESNET = {"name": "test_resnet"}
HALF = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mine"
    overrides = {
        "encoder": NET["name"],
        "encoder.width": 6,
        "epochs": 1,
        "batch_size": 32,
        "data.images": 64,
        "method.widths": [8, 8],
        "log.probe_every": 0,
    }
    return smi.pretrain("digits", out=out, overrides=overrides, quiet=True).folder


@pytest.fixture
def network():
    return timm.create_model("test_resnet", num_classes=3)


def test_the_weights_of_timm_are_not_read_before_they_are_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr("smi.runs.start.timm_weights", lambda *words: calls.append(words) or {})
    start = find_start("timm", RESNET | {"stem": "cifar"})
    assert (start.source, start.encoder) == ("timm", RESNET | {"stem": "cifar"})
    assert start.input == Input(HALF, HALF, 160)
    assert calls == []
    assert start.read(48) == {}
    assert calls == [(RESNET | {"stem": "cifar"}, 48)]


def test_a_run(run):
    start = find_start(str(run), RESNET)  # its own network counts
    encoder = smi.load(run)
    assert start.source == str(run)
    assert start.encoder == {"name": NET["name"], "width": 6}
    assert start.input == Input(encoder.mean, encoder.std, 8)
    assert digest_of(start.read(8)) == digest_of(encoder.network.state_dict())


@pytest.mark.parametrize("name", ["encoder.safetensors", "model.safetensors", "other.safetensors"])
def test_a_file_that_names_its_network(name, run, tmp_path):
    path = tmp_path / "export" / name
    path.parent.mkdir()
    shutil.copy(run / "encoder.safetensors", path)
    sources = [path] if name == "other.safetensors" else [path, path.parent]
    for source in sources:
        start = find_start(str(source), RESNET)
        assert start.source == str(path)
        assert start.encoder == {"name": NET["name"], "width": 6}
        assert start.input == find_start(str(run), RESNET).input
        assert digest_of(start.read(8)) == digest_of(smi.load(run).network.state_dict())


@pytest.mark.parametrize("kind", [".safetensors", ".pth"])
def test_a_foreign_file_has_the_network_and_the_input_of_the_configuration(kind, network, tmp_path):
    path = tmp_path / f"weights{kind}"
    if kind == ".pth":
        torch.save(network.state_dict(), path)
    else:
        save_file(network.state_dict(), path, {"format": "pt"})
    start = find_start(str(path), RESNET)
    assert (start.source, start.encoder) == (str(path), RESNET)
    assert start.input == Input(HALF, HALF, 160)
    assert digest_of(start.read(64)) == digest_of(network.state_dict())
    assert find_start(str(path), NET).input is None


@pytest.mark.parametrize("safe", [True, False])
def test_a_folder_that_timm_saved(safe, network, tmp_path):
    save_for_hf(network, tmp_path / "saved", safe_serialization=safe)
    source = f"local-dir:{tmp_path / 'saved'}"
    for start in (find_start(source, NET), find_start("timm", {"name": source})):
        assert (start.source, start.encoder) == (source, RESNET)
        assert start.input == Input(HALF, HALF, 160)
        assert digest_of(start.read(64)) == digest_of(network.state_dict())


def test_a_model_of_the_hub(network, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="`hf download someone/mine` on a machine with a network"):
        find_start("hf-hub:someone/mine", NET)
    folder = tmp_path / "models--someone--mine"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    save_for_hf(network, folder / "snapshots" / ("0" * 40), safe_serialization=True)
    for words in (("hf-hub:someone/mine", NET), ("timm", {"name": "hf-hub:someone/mine"})):
        start = find_start(*words)
        assert (start.source, start.encoder) == ("hf-hub:someone/mine", RESNET)
        assert digest_of(start.read(64)) == digest_of(network.state_dict())


def test_a_file_that_names_other_code_or_files_is_not_followed(tmp_path):
    header = {"image_size": 8, "mean": HALF, "std": HALF}
    save_encoder(
        tmp_path / "evil.safetensors",
        {"weight": torch.zeros(1)},
        header | {"encoder": {"name": "os.mkdir", "path": str(tmp_path / "ran")}},
    )
    with pytest.raises(UserError, match=r"names code to run, os\.mkdir"):
        find_start(str(tmp_path / "evil.safetensors"), NET)
    assert not (tmp_path / "ran").exists()
    save_encoder(
        tmp_path / "path.safetensors",
        create_encoder("test_resnet", image_size=8).network.state_dict(),
        header | {"encoder": RESNET | {"checkpoint_path": "/elsewhere.pth"}},
    )
    found = find_start(str(tmp_path / "path.safetensors"), NET)
    assert found.encoder == RESNET | {"stem": "cifar"}  # which another size must not change


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere", "there are no weights 'nowhere': give timm, the folder of a run"),
        ("nowhere/weights.pth", "there are no weights 'nowhere/weights.pth'"),
        ("folder", "folder is not a run: it has no config.yaml"),
        ("local-dir:folder", "local-dir:folder holds no config.json"),
        ("export", "does not name the network of its weights"),
    ],
)
def test_an_unknown_source_is_a_sentence(source, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("export").mkdir()
    save_file({"weight": torch.zeros(2)}, "export/model.safetensors")
    with pytest.raises(UserError, match=sentence) as error:
        find_start(source, RESNET)
    assert len(str(error.value).splitlines()) == 1


def test_a_damaged_file_is_a_sentence_when_it_is_read(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"hello world")
    with pytest.raises(UserError, match="holds no weights"):
        find_start(str(path), RESNET).read(64)


def test_the_name_of_a_foreign_files_network_is_checked(tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pth")
    with pytest.raises(UserError, match="there is no encoder 'resnet81'"):
        find_start(str(tmp_path / "weights.pth"), {"name": "resnet81"})
    with pytest.raises(UserError, match=r"timm has no weights 'resnet18\.none'"):
        find_start("timm", {"name": "resnet18.none"})


def test_sources_are_absolute_in_a_configuration(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("weights.pth").touch()
    assert absolute_start("timm") == "timm"
    assert absolute_start("hf-hub:someone/mine") == "hf-hub:someone/mine"
    assert absolute_start("local-dir:saved") == f"local-dir:{tmp_path / 'saved'}"
    assert absolute_start("local-dir:~/saved") == f"local-dir:{tmp_path / 'saved'}"
    for source in ("weights.pth", "~/weights.pth", str(tmp_path / "weights.pth")):
        assert absolute_start(source) == str(tmp_path / "weights.pth")
    monkeypatch.chdir(run.parent)
    assert absolute_start("mine") == str(run)
    assert absolute_start("nowhere") == "nowhere"


def test_a_folder_of_timm_by_a_relative_name_is_recorded_as_absolute(
    network, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save_for_hf(network, "saved", safe_serialization=True)
    start = find_start("timm", {"name": "local-dir:saved"})
    assert start.source == f"local-dir:{tmp_path / 'saved'}"
    about = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert about["architecture"] == start.encoder["name"]
