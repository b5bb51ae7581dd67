"""Read weights of files and of a made-up cache of the hub, and load them into networks."""

import contextlib
import json
import os
import pickle
import socket
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from smi.errors import UserError
from smi.nn import create_encoder
from smi.nn.weights import (
    Input,
    digest_of,
    hub_network,
    hub_weights,
    input_of,
    is_cached,
    load_weights,
    read_tensors,
    timm_weights,
)

SIZE = 96  # pixels: large enough for the standard stem
HUB = "timm/test_resnet.r160_in1k"


class Small(nn.Module):
    """Name all tensors with a prefix that training scripts use, too."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, x):
        return self.backbone(x).mean(dim=(2, 3))


class Code:
    """Make a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def resnet(num_classes: int = 5) -> nn.Module:
    """Return a small ResNet of timm with a classifier and batch norm statistics of its own."""
    network = timm.create_model("test_resnet", num_classes=num_classes).eval()
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return network


def without_classifier(network: nn.Module) -> nn.Module:
    network.reset_classifier(0)
    return network.eval()


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(dict(content), path)
    else:
        torch.save(content, path)
    return path


def sentence(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Fail if anything opens a connection, also if its error is caught."""
    calls = []
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, lambda *words: calls.append(words) or 1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: calls.append(words) or [])
    yield
    assert calls == []


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`hub(repository, {file: content})`: put files into an empty cache of the hub, offline."""
    from huggingface_hub import constants

    cache = tmp_path / "cache of the hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def add(repository: str, files: dict[str, object], revision: str = "main") -> Path:
        folder = cache / f"models--{repository.replace('/', '--')}"
        commit = f"{len(revision):040x}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
        for name, content in files.items():
            path = folder / "snapshots" / commit / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".json"):
                path.write_text(json.dumps(content))
            else:
                write(path, content)
        return cache

    add.cache = cache
    return add


CONFIG = {
    "architecture": "test_resnet",
    "num_classes": 5,
    "pretrained_cfg": {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "input_size": [3, SIZE, SIZE],
    },
}


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", [".safetensors", ".pth", ".pt", ".bin", ".pth.tar"])
def test_the_layout_of_timm_from_every_kind_of_file(kind, tmp_path):
    network = resnet()
    tensors = read_tensors(write(tmp_path / f"weights{kind}", network.state_dict()))
    encoder = create_encoder("test_resnet", image_size=SIZE).eval()
    (note,) = load_weights(encoder.network, tensors, "weights")
    assert note.startswith("the classifier of weights is dropped (fc.")
    x = torch.randn(2, 3, SIZE, SIZE)
    assert torch.equal(encoder(x), without_classifier(network)(x))


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "network"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.module.", "module.encoder."])
def test_tensors_inside_a_checkpoint_of_a_training_script(key, prefix, tmp_path):
    network = without_classifier(resnet())
    state = {f"{prefix}{name}": tensor for name, tensor in network.state_dict().items()}
    content = {key: state, "epoch": 3, "optimizer": {"lr": 0.1}, "name": "mine"}
    tensors = read_tensors(write(tmp_path / "checkpoint.pth", content))
    encoder = create_encoder("test_resnet", image_size=SIZE)
    assert load_weights(encoder.network, tensors, "checkpoint.pth") == []
    assert digest_of(encoder.network.state_dict()) == digest_of(network.state_dict())


@pytest.mark.parametrize("prefix", ["", "module.", "model.network."])
def test_a_prefix_that_belongs_to_the_network_stays(prefix, tmp_path):
    network, copy = Small(), Small()
    nn.init.normal_(network.backbone[1].running_mean)
    state = {f"{prefix}{name}": tensor for name, tensor in network.state_dict().items()}
    tensors = read_tensors(write(tmp_path / "small.safetensors", state))
    assert load_weights(copy, tensors, "small.safetensors") == []
    assert digest_of(copy.state_dict()) == digest_of(network.state_dict())


def test_the_layout_of_torchvision():
    torch.manual_seed(3)
    theirs = torchvision.models.resnet18(weights=None).eval()
    for norm in theirs.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    encoder = create_encoder("resnet18", image_size=SIZE).eval()
    (note,) = load_weights(encoder.network, theirs.state_dict(), "torchvision")
    assert "fc.weight, fc.bias" in note
    theirs.fc = nn.Identity()
    x = torch.randn(2, 3, SIZE, SIZE)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(x), theirs(x))


def test_files_without_counters_of_batches_are_complete():
    """Old versions of PyTorch did not count batches."""
    network = without_classifier(resnet())
    tensors = {
        name: tensor
        for name, tensor in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    encoder = create_encoder("test_resnet", image_size=SIZE)
    assert load_weights(encoder.network, tensors, "old.pth") == []
    assert torch.equal(encoder.network.bn1.running_mean, network.bn1.running_mean)


def test_half_precision_is_converted():
    network = without_classifier(resnet()).half()
    encoder = create_encoder("test_resnet", image_size=SIZE)
    load_weights(encoder.network, network.state_dict(), "half.safetensors")
    assert encoder.network.bn1.weight.dtype == torch.float32
    assert torch.equal(encoder.network.bn1.running_mean, network.bn1.running_mean.float())


def test_weights_that_do_not_fit_are_named_in_one_sentence():
    network = without_classifier(resnet())
    tensors = dict(network.state_dict())
    del tensors["bn1.weight"]
    tensors["layer1.0.conv1.weight"] = torch.zeros(2, 2, 3, 3)
    tensors |= {f"projector.{i}.weight": torch.zeros(2) for i in range(5)}
    encoder = create_encoder("test_resnet", image_size=SIZE)
    before = digest_of(encoder.network.state_dict())
    with pytest.raises(UserError) as error:
        load_weights(encoder.network, tensors, "mine.pth")
    text = sentence(error)
    assert text.startswith("mine.pth does not fit ResNet: 1 tensor is missing (bn1.weight), ")
    assert (
        "5 tensors are not part of it (projector.0.weight, projector.1.weight, "
        "projector.2.weight, …), " in text
    )
    assert "1 tensor is of another shape (layer1.0.conv1.weight is [2, 2, 3, 3] instead of" in text
    assert text.endswith("Name the network of the weights with --encoder")
    assert digest_of(encoder.network.state_dict()) == before


def test_the_weights_of_another_network_are_refused():
    vit = create_encoder("test_vit", image_size=SIZE)
    for network, other in ((vit, resnet()), (create_encoder("test_resnet"), vit.network)):
        with pytest.raises(UserError) as error:
            load_weights(network.network, other.state_dict(), "other.pth")
        assert "does not fit" in sentence(error)
        assert "missing" in str(error.value)
    with pytest.raises(UserError, match="tensors are missing"):
        load_weights(vit.network, {}, "nothing")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_with_code_is_refused_and_not_run(legacy, tmp_path):
    path = tmp_path / "evil.pth"
    content = {"state_dict": {"weight": torch.zeros(2)}, "code": Code(tmp_path / "ran")}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError) as error:
        read_tensors(path)
    assert "holds more than tensors, and reading it could run code" in sentence(error)
    assert not (tmp_path / "ran").exists()


def test_other_objects_than_tensors_are_refused(tmp_path):
    objects = (nn.Linear(2, 2), {"args": Namespace(lr=1)}, Code(tmp_path / "ran"))
    for i, content in enumerate(objects):
        with pytest.raises(UserError, match="holds more than tensors"):
            read_tensors(write(tmp_path / f"{i}.pth", content))
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"x": Code(tmp_path / "ran")}))
    with pytest.raises(UserError, match="holds no weights"):
        read_tensors(tmp_path / "plain.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [{}, [1, 2], torch.zeros(3), {"epoch": 3}, {"model": {}}])
def test_a_file_without_named_tensors_is_a_sentence(content, tmp_path):
    with pytest.raises(UserError, match="holds no weights: there are no tensors in it"):
        read_tensors(write(tmp_path / "weights.pth", content))


@pytest.mark.parametrize("kind", [".safetensors", ".pth", ".bin"])
def test_an_empty_or_missing_file_is_a_sentence(kind, tmp_path):
    path = tmp_path / f"weights{kind}"
    with pytest.raises(UserError, match=f"there is no file {path}"):
        read_tensors(path)
    path.touch()
    with pytest.raises(UserError) as error:
        read_tensors(path)
    assert sentence(error) == f"{path} holds no weights: it is empty"


@pytest.mark.parametrize("kind", [".safetensors", ".pth", ".old.pth"])
def test_a_damaged_file_is_a_sentence(kind, tmp_path):
    """Cut files, overwrite bytes anywhere, and read text: nothing else is raised."""
    path = tmp_path / f"weights{kind}"
    tensors = {"conv.weight": torch.randn(4, 3), "bias": torch.zeros(4)}
    if kind == ".old.pth":
        torch.save(tensors, path, _use_new_zipfile_serialization=False)
    else:
        write(path, tensors)
    whole = path.read_bytes()
    damaged = [whole[: len(whole) // 2], whole[:20], whole[:-5], b"hello world", b"{}", b"\x80\x02"]
    random = np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(whole)
        for place in random.integers(len(whole), size=8):
            changed[place] = random.integers(256)
        damaged.append(bytes(changed))
    sentences = []
    for content in damaged:
        path.write_bytes(content)
        try:
            read_tensors(path)
        except UserError as error:
            sentences.append(str(error))
    assert len(sentences) > 20
    assert all(str(path) in text and len(text.splitlines()) == 1 for text in sentences)
    path.write_bytes(b"hello world")
    with pytest.raises(UserError, match="holds no weights"):
        read_tensors(path)


# ----------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("stem", ["cifar", "half"])
def test_a_large_stem_is_folded(stem):
    """Without its first row and column it sees an image as it saw one of doubled pixels."""
    weights = without_classifier(timm.create_model("resnet18")).state_dict()
    weights["conv1.weight"][..., 0, :] = 0
    weights["conv1.weight"][..., 0] = 0
    encoder = create_encoder("resnet18", image_size=32, stem=stem)
    (note,) = load_weights(encoder.network, weights, "resnet18")
    assert note == "the 7 x 7 stem is folded to 3 x 3"
    x = torch.randn(2, 3, 32, 32)
    doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    seen = F.conv2d(doubled, weights["conv1.weight"], stride=2, padding=3)
    step = 1 if stem == "cifar" else 2
    torch.testing.assert_close(encoder.network.conv1(x), seen[..., ::step, ::step])
    rest = encoder.network.state_dict() | {"conv1.weight": weights["conv1.weight"]}
    assert digest_of(rest) == digest_of(weights)


def test_a_stem_of_other_channels_is_refused():
    weights = timm.create_model("resnet18", num_classes=0, in_chans=1).state_dict()
    encoder = create_encoder("resnet18", image_size=32)
    with pytest.raises(UserError) as error:
        load_weights(encoder.network, weights, "grey.pth")
    assert "conv1.weight is [64, 1, 7, 7] instead of [64, 3, 3, 3]" in sentence(error)
    assert str(error.value).endswith("Name the network of the weights with --encoder")


def test_a_stem_of_several_layers_is_kept_by_a_setting_that_the_sentence_names():
    weights = without_classifier(resnet()).state_dict()
    with pytest.raises(UserError) as error:
        load_weights(create_encoder("test_resnet", image_size=32).network, weights, "deep.pth")
    assert sentence(error).endswith(
        "Keep the first layers of the weights with --encoder.stem standard"
    )
    encoder = create_encoder("test_resnet", image_size=32, stem="standard")
    assert load_weights(encoder.network, weights, "deep.pth") == []


def test_position_embeddings_are_resized():
    name = "vit_tiny_patch16_224"
    weights = timm.create_model(name).state_dict()
    encoder = create_encoder(name, image_size=64).eval()
    (note,) = load_weights(encoder.network, weights, name)
    assert "head.weight, head.bias" in note
    assert weights["pos_embed"].shape == (1, 1 + 14 * 14, 192)
    assert encoder.network.pos_embed.shape == (1, 1 + 4 * 4, 192)
    assert torch.equal(encoder.network.pos_embed[:, 0], weights["pos_embed"][:, 0])
    assert torch.equal(encoder.network.norm.weight, weights["norm.weight"])
    assert encoder(torch.randn(2, 3, 64, 64)).isfinite().all()
    same = create_encoder(name, image_size=224)
    load_weights(same.network, weights, name)
    assert torch.equal(same.network.pos_embed, weights["pos_embed"])


@pytest.mark.parametrize(
    ("name", "classifier"),
    [("test_efficientnet", "classifier.weight"), ("test_convnext", "head.fc.weight")],
)
def test_the_classifier_of_other_networks_is_dropped(name, classifier):
    network = timm.create_model(name, num_classes=7).eval()
    encoder = create_encoder(name, image_size=64).eval()
    (note,) = load_weights(encoder.network, network.state_dict(), name)
    assert classifier in note
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(encoder(x), without_classifier(network)(x))


# ------------------------------------------------------------------------------------------ digest


def test_the_digest_is_that_of_names_types_shapes_and_values():
    tensors = {
        "weight": torch.randn(4, 3, 2, 2),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "count": torch.tensor(5),
        "mask": torch.tensor([True, False]),
        "none": torch.zeros(0, 3),
    }
    digest = digest_of(tensors)
    assert len(digest) == 16
    copies = {name: tensors[name].clone() for name in reversed(tensors)}
    copies["weight"] = copies["weight"].to(memory_format=torch.channels_last).requires_grad_()
    assert digest_of(copies) == digest
    others = [
        {**tensors, "weight": tensors["weight"].clone().index_fill_(0, torch.tensor(2), 1e-7)},
        {**tensors, "half": tensors["half"].half()},
        {**tensors, "count": torch.tensor(6)},
        {**tensors, "count": torch.tensor([5])},
        {**tensors, "mask": torch.tensor([True, True])},
        {**tensors, "none": torch.zeros(3, 0)},
        {"other" if name == "weight" else name: t for name, t in tensors.items()},
        {name: t for name, t in tensors.items() if name != "none"},
    ]
    assert len({digest_of(other) for other in others} | {digest}) == len(others) + 1


# ------------------------------------------------------------------------------- timm and its hub


def test_the_input_of_weights():
    resnet18 = input_of({"name": "resnet18.a1_in1k"})
    assert resnet18 == Input((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
    assert input_of({"name": "test_vit", "depth": 3}) == Input((0.5,) * 3, (0.5,) * 3, 160)
    assert input_of({"name": f"{__name__}.Small"}) is None
    with pytest.raises(UserError, match=r"did you mean resnet18\.a1_in1k\?"):
        input_of({"name": "resnet18.a1_in1"})
    with pytest.raises(UserError, match="there is no encoder 'resnet81': did you mean resnet"):
        input_of({"name": "resnet81"})


def test_weights_in_the_cache_of_the_hub(hub):
    network = resnet(1000)
    assert not is_cached("test_resnet")
    hub(HUB, {"model.safetensors": network.state_dict(), "config.json": CONFIG})
    assert is_cached("test_resnet")
    assert is_cached("test_resnet.r160_in1k")
    assert not is_cached("test_vit")
    without_classifier(network)
    for name in ("test_resnet", "test_resnet.r160_in1k"):
        tensors = timm_weights({"name": name, "stem": "cifar"}, SIZE)
        assert digest_of(tensors) == digest_of(network.state_dict())


@pytest.mark.parametrize("name", ["resnet-small", "tests.support.homemade.Net", "test_mambaout"])
def test_networks_without_weights_of_timm(name, hub):
    assert not is_cached(name)
    with pytest.raises(UserError, match=f"timm has no weights for {name}: "):
        timm_weights({"name": name}, SIZE)


def test_a_network_whose_tags_have_weights_names_them():
    with pytest.raises(UserError, match=r"timm has no weights .*choose one of .*r160_in1k"):
        timm_weights({"name": "test_resnet.r224_in22k"}, SIZE)


def test_position_embeddings_of_timm_follow_the_size(hub):
    name = "vit_tiny_patch16_224.augreg_in21k"
    network = timm.create_model(name)
    hub(f"timm/{name}", {"model.safetensors": network.state_dict()})
    tensors = timm_weights({"name": name}, 64)
    encoder = create_encoder(name, image_size=64)
    assert tensors["pos_embed"].shape == encoder.network.pos_embed.shape
    assert tensors["pos_embed"].shape[1] < network.pos_embed.shape[1]
    assert load_weights(encoder.network, tensors, "timm") == []


def test_weights_that_are_not_in_the_cache_are_a_sentence_with_the_command(hub):
    with pytest.raises(UserError) as error:
        timm_weights({"name": "test_resnet"}, SIZE)
    text = sentence(error)
    assert f"not in the hub's cache ({hub.cache})" in text
    assert f"Run `hf download {HUB}` on a machine with a network" in text
    assert "--init FILE.safetensors" in text
    for read in (hub_weights, hub_network):
        with pytest.raises(UserError) as error:
            read("hf-hub:someone/mine@v2")
        text = sentence(error)
        assert (
            f"the weights of hf-hub:someone/mine@v2 are not in the hub's cache ({hub.cache})"
            in (text)
        )
        assert "`hf download someone/mine --revision v2`" in text


def test_arguments_that_do_not_suit_the_weights_are_named(hub):
    """Layers that the weights lack are not left at random."""
    hub(HUB, {"model.safetensors": resnet(1000).state_dict()})
    with pytest.raises(UserError, match="unexpected keyword argument 'wings'"):
        timm_weights({"name": "test_resnet", "wings": 2}, SIZE)
    with pytest.raises(UserError, match="the encoder test_resnet with the weights of timm failed"):
        timm_weights({"name": "test_resnet", "layers": (2, 1, 1, 1)}, SIZE)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("place", ["hf-hub:someone/mine", "hf-hub:someone/mine@v2", "local-dir:"])
def test_a_model_of_the_hub_or_of_a_folder(place, file, hub, tmp_path):
    network = resnet()
    if place == "local-dir:":
        place = f"local-dir:{tmp_path}"
        write(tmp_path / file, network.state_dict())
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    else:
        revision = "v2" if "@" in place else "main"
        hub("someone/mine", {file: network.state_dict(), "config.json": CONFIG}, revision)
    settings, expected = hub_network(place)
    assert settings == {"name": "test_resnet"}
    assert expected == Input((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), SIZE)
    assert digest_of(hub_weights(place)) == digest_of(network.state_dict())


def test_a_local_folder_under_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG))
    write(tmp_path / "mine" / "model.safetensors", {"weight": torch.ones(2)})
    assert hub_network("local-dir:~/mine")[0] == {"name": "test_resnet"}
    assert torch.equal(hub_weights("local-dir:~/mine")["weight"], torch.ones(2))


def test_arguments_of_a_model_of_a_folder(tmp_path):
    arguments = {"num_classes": 5, "checkpoint_path": "/elsewhere", "layers": [2, 1, 1, 1]}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_args": arguments}))
    settings, _ = hub_network(f"local-dir:{tmp_path}")
    assert settings == {"name": "test_resnet", "layers": [2, 1, 1, 1]}
    assert create_encoder(**settings, image_size=SIZE).dim > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"model_args": {"name": "os.mkdir", "path": "ran"}},
        {"architecture": "resnet18.os.mkdir", "model_args": {"path": "ran"}},
    ],
)
def test_arguments_of_a_folder_do_not_run_code(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    with contextlib.suppress(UserError):
        settings, _ = hub_network("local-dir:.")
        assert settings["name"] == CONFIG["architecture"]
        assert "path" in settings  # an argument of the network, which does not take it
    assert not (tmp_path / "ran").exists()


def test_a_configuration_of_a_folder_runs_no_code(tmp_path):
    config = CONFIG | {"architecture": "os.mkdir", "model_args": {"path": str(tmp_path / "ran")}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"there is no encoder 'os\.mkdir'"):
        hub_network(f"local-dir:{tmp_path}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        json.dumps({"architecture": "test_resnet"}),
        json.dumps(CONFIG | {"pretrained_cfg": {"mean": [0.5], "std": [0.5], "input_size": [1]}}),
        json.dumps(CONFIG | {"model_args": [1]}),
    ],
)
def test_a_damaged_configuration_of_a_folder_is_a_sentence(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="does not describe a timm model") as error:
        hub_network(f"local-dir:{tmp_path}")
    assert str(tmp_path) in sentence(error)


def test_a_folder_without_files_is_a_sentence(tmp_path):
    place = f"local-dir:{tmp_path}"
    with pytest.raises(UserError, match=r"holds no model\.safetensors or pytorch_model\.bin"):
        hub_weights(place)
    with pytest.raises(UserError, match=r"holds no config\.json"):
        hub_network(place)


def test_settings_of_a_recipe_do_not_reach_the_loader_of_timm():
    for key in ("checkpoint_path", "pretrained_cfg"):
        with pytest.raises(UserError, match=f"encoder.{key} is not a setting"):
            timm_weights({"name": "resnet18.a1_in1k", key: "evil.pth"}, 64)
