"""Start runs from weights: what they begin with, what they record, and how they resume."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf

import smi
from smi import imports
from smi.config import resolve as resolving
from smi.config.resolve import read_recipe
from smi.errors import UserError
from smi.nn.weights import digest_of
from smi.runs import start as starts
from smi.runs.checkpoint import save_encoder
from smi.training import configure as configuring
from smi.training import session, step
from smi.training.configure import configure
from support.digits import digits, same, same_run, tiny
from support.homemade import Agreement, Net
from support.two_processes import finish, is_rank_0, start_two

FEW = {"data.images": 256, "batch_size": 64, "log.probe_images": 100, "log.every": 2}  # 4 steps
NET = "support.homemade.Net"
TINY = {"encoder": NET, "epochs": 1, "method.widths": [8, 8]}
CPU = torch.device("cpu")
RECIPE = {
    "data": {"source": "digits"},
    "views": {"policy": "digits"},
    "encoder": NET,
    "optimizer": {"name": "AdamW", "lr": 1e-3, "weight_decay": 1e-4},
    "epochs": 1,
    "batch_size": 64,
}


def make_net() -> Net:
    """Make a network by a function, which a file of weights may not call."""
    return Net()


class Broken(Agreement):
    """Fail in the first step."""

    def forward(self, views, batch):
        raise ValueError("it is broken")


def net(seed: int = 1) -> Net:
    """Return a network whose weights and statistics no run has by itself."""
    torch.manual_seed(seed)
    network = Net()
    torch.nn.init.normal_(network.norm.running_mean, std=0.1)
    torch.nn.init.uniform_(network.norm.running_var, 0.5, 2)
    return network


@pytest.fixture
def weights(tmp_path) -> Path:
    """Write a file of tensors that does not name its network."""
    path = tmp_path / "weights.safetensors"
    save_file(net().state_dict(), path)
    return path


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """Pretrain a run to start from."""
    return tiny(tmp_path_factory.mktemp("runs") / "earlier", **FEW, seed=7).folder


@pytest.fixture
def begun(monkeypatch) -> list[dict[str, torch.Tensor]]:
    """Return a list that gets the state of each method before its first step."""
    states = []
    original = session.train

    def train(job, *words, **more):
        states.append({name: t.clone() for name, t in job.method.state_dict().items()})
        return original(job, *words, **more)

    monkeypatch.setattr(session, "train", train)
    return states


def part(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


class Killed(BaseException):
    """Stand for the end of a process."""


@contextlib.contextmanager
def killed_in_step(number: int):
    """End training in the middle of a step, without a checkpoint of it."""
    original = step.gradient_norm
    steps = []

    def norm(parameters):
        steps.append(1)
        if len(steps) == number:
            raise Killed
        return original(parameters)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(step, "gradient_norm", norm)
        yield
        pytest.fail("training was not killed")


# --------------------------------------------------------------------------------------- the start


def test_a_run_begins_at_exactly_the_weights(weights, tmp_path, begun, capsys):
    run = tiny(tmp_path / "a", init=str(weights), **FEW)
    same(part(begun[0], "encoder.network."), load_file(weights))
    same(load_file(run.start), load_file(weights))
    assert run.config["init"] == {
        "source": str(weights),
        "digest": digest_of(load_file(weights)),
        "statistics": "keep",
    }
    assert run.init_source == str(weights)
    assert f"start      {weights}, batch norm statistics kept" in capsys.readouterr().out
    start = smi.load(run.start)
    assert (start.about["step"], start.about["epoch"]) == (0, 0)
    assert smi.load(run).off_the_shelf().digest() == start.digest()
    trained = load_file(run.folder / "encoder.safetensors")
    assert not torch.equal(trained["conv.weight"], load_file(weights)["conv.weight"])


def test_a_run_from_scratch_has_no_start(earlier):
    run = smi.Run(earlier)
    assert not run.start.exists()
    assert run.init_source is None
    assert run.config["init"] == {"source": None, "digest": None, "statistics": "keep"}
    assert [line["step"] for line in run.probes()] == [0, 4]


def test_methods_that_are_compared_begin_at_the_same_encoder(weights, tmp_path, begun):
    overrides = {"init": str(weights), "encoder": NET, "epochs": 1}
    for method in ("SMI", "BarlowTwins", "DINO"):
        smi.pretrain(
            "digits", out=tmp_path / method, method=method, overrides=overrides | FEW, quiet=True
        )
    for state in begun:
        same(part(state, "encoder.network."), load_file(weights))
    teacher = smi.Run(tmp_path / "DINO").exported_encoder
    same(part(begun[2], f"{teacher}.network."), load_file(weights))


def test_the_start_is_probed_before_the_first_step(weights, tmp_path):
    run = tiny(tmp_path / "a", init=str(weights), **FEW)
    assert [line["step"] for line in run.probes()] == [0, 4]
    first = run.lines()[0]
    assert (first["step"], first["epoch"]) == (0, 0)
    assert 0 < first["probe"]["knn"] < 1
    again = tiny(tmp_path / "b", init=str(weights), **FEW, **{"optimizer.lr": 0.1})
    assert again.probes()[0] == run.probes()[0]
    without = tiny(tmp_path / "c", init=str(weights), **FEW, **{"log.probe_every": 0})
    assert without.probes() == []


@pytest.mark.parametrize("method", ["SMI", "DINO"])
@pytest.mark.parametrize("statistics", ["keep", "update"])
def test_batch_norm_statistics_are_kept_or_updated(statistics, method, weights, tmp_path):
    overrides = {
        "encoder": NET,
        "epochs": 1,
        "init": str(weights),
        "init.statistics": statistics,
    }
    run = smi.pretrain(
        "digits", out=tmp_path / "a", method=method, overrides=overrides | FEW, quiet=True
    )
    trained, start = smi.load(run, student=True).network.norm, load_file(weights)
    kept = torch.equal(trained.running_mean, start["norm.running_mean"])
    assert kept is (statistics == "keep")
    assert (trained.num_batches_tracked.item() == 0) is (statistics == "keep")
    assert not torch.equal(trained.weight, start["norm.weight"])


def test_a_run_takes_the_encoder_of_another_run(earlier, tmp_path, smi_here):
    out = tmp_path / "a"
    words = ["--epochs", "1", "--method.widths", "[8, 8]", "--data.images", "256"]
    done = smi_here(*digits(out, *words, "--init", str(earlier)))
    assert done.returncode == 0, done.stderr
    assert f"start      {earlier}, batch norm statistics kept" in done.stdout
    run = smi.Run(out)
    assert run.init_source == str(earlier)
    same(load_file(run.start), load_file(earlier / "encoder.safetensors"))
    source = smi.load(earlier)
    assert (tuple(run.config["views"]["mean"]), tuple(run.config["views"]["std"])) == (
        source.mean,
        source.std,
    )


def test_a_network_made_by_a_function(tmp_path, monkeypatch):
    """Files may name the function that the user named before, and no other."""
    path = tmp_path / "weights.pth"
    torch.save(net().state_dict(), path)
    overrides = FEW | {"encoder": f"{__name__}.make_net", "select": "best", "data.validation": 0.2}
    run = tiny(tmp_path / "a", init=str(path), **overrides)
    encoder = smi.load(run)
    same(dict(encoder.off_the_shelf().network.state_dict()), dict(net().state_dict()))
    assert smi.load(run.start).dim == encoder.dim
    monkeypatch.setattr(imports, "_named", set())
    with pytest.raises(UserError, match="names code to run"):
        smi.load(run.start)


# --------------------------------------------------------------------------- mean, std and size


def configured(requested: dict[str, object], folder: Path, device: torch.device = CPU):
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    return configure(recipe, requested, folder=folder / "none", device=device)


@pytest.fixture
def named(tmp_path) -> Path:
    """Write an encoder of smi for images of 12 pixels."""
    path = tmp_path / "named.safetensors"
    header = {"encoder": {"name": NET, "width": 8}, "image_size": 12}
    header |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    save_encoder(path, net().state_dict(), header)
    return path


def test_the_input_follows_the_weights(named, tmp_path):
    config = configured({"init": str(named)}, tmp_path).config
    assert config.views.size == 12
    assert (config.views.mean, config.views.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert config.encoder == {"name": NET, "width": 8}
    assert config.data.resolution is None


def test_the_input_is_that_of_settings_where_they_are_set(named, tmp_path):
    requested = {"init": str(named), "views.size": 8, "views.mean": [0, 0, 0.5]}
    config = configured(requested, tmp_path).config
    assert config.views.size == 8
    assert (config.views.mean, config.views.std) == ((0, 0, 0.5), (0.4, 0.5, 0.6))
    of_recipe = configure("digits", {"init": str(named)}, folder=tmp_path / "none", device=CPU)
    assert of_recipe.config.views.size == 8
    assert of_recipe.config.views.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("data", "device", "sizes", "resolution"),
    [
        ("digits", "cpu", (96, 128), None),
        ("photos", "cpu", (96, 128), 146),
        ("photos", "cuda", (160, None), None),
    ],
)
def test_views_of_large_weights_are_smaller_on_a_cpu(data, device, sizes, resolution, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_efficientnet", num_classes=3).state_dict(), path)
    requested = {"data": data, "encoder": "test_efficientnet", "init": str(path)}
    found = configured(requested, tmp_path, torch.device(device))
    assert (found.config.views.size, found.config.views.input_size) == sizes
    assert found.config.data.resolution == resolution
    assert found.config.views.mean == (0.485, 0.456, 0.406)
    (note,) = found.notes
    assert note.startswith(f"the classifier of {path} is dropped (classifier.")


def test_a_network_of_ones_own_keeps_the_input_of_the_views(weights, tmp_path):
    requested = {"init": str(weights), "views.size": 8}
    found = configured(requested, tmp_path)
    assert (found.config.views.mean, found.config.views.std) == (None, None)
    same(found.weights, dict(net().state_dict()))
    assert found.notes == ()


def test_the_network_of_the_weights_is_taken_unless_another_is_named(named, tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"named.safetensors does not fit ResNet: .*missing"):
        configured({"init": str(named), "encoder": "test_resnet"}, tmp_path)
    with pytest.raises(UserError, match=r"other.pth does not fit Net: .*missing \(conv.weight"):
        configured({"init": str(tmp_path / "other.pth"), "views.size": 8}, tmp_path)


def test_a_folder_of_timm_as_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = timm.create_model("test_efficientnet", num_classes=3)
    save_for_hf(network, tmp_path / "saved", safe_serialization=True)
    for requested in (
        {"encoder": "local-dir:saved", "init": "timm"},
        {"init": f"local-dir:{tmp_path / 'saved'}"},
    ):
        found = configured(requested, tmp_path)
        assert found.config.encoder == {"name": "test_efficientnet"}
        assert found.config.init.source == f"local-dir:{tmp_path / 'saved'}"
        assert torch.equal(found.weights["conv_stem.weight"], network.conv_stem.weight)
    scratch = configured({"encoder": "local-dir:saved", "views.size": 32}, tmp_path)
    assert scratch.config.encoder == {"name": "test_efficientnet"}
    assert scratch.weights is None


def test_an_unknown_source_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match=r"there are no weights 'nowhere\.pth'"):
        tiny(tmp_path / "a", init="nowhere.pth", **FEW)
    assert not (tmp_path / "a").exists()


# ------------------------------------------------------------------------- repeating and resuming


def test_the_configuration_of_a_run_repeats_it(weights, tmp_path):
    run = tiny(tmp_path / "a", init=str(weights), **FEW)
    smi.pretrain(run.folder / "config.yaml", out=tmp_path / "b", quiet=True)
    same_run(run.folder, tmp_path / "b")
    for name in ("encoder.safetensors", "start.safetensors", "config.yaml"):
        assert (run.folder / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_other_weights_than_those_of_the_configuration_are_refused(weights, tmp_path):
    run = tiny(tmp_path / "a", init=str(weights), **FEW)
    old, new = (digest_of(net(seed).state_dict()) for seed in (1, 2))
    save_file(net(2).state_dict(), weights)
    with pytest.raises(UserError) as error:
        smi.pretrain(run.folder / "config.yaml", out=tmp_path / "b", quiet=True)
    assert str(error.value) == (
        f"the weights of {weights} are not those of the configuration: their digest is {new}, "
        f"and {old} is recorded"
    )
    assert not (tmp_path / "b").exists()


def test_a_changed_file_is_refused_when_a_run_is_resumed(weights, tmp_path):
    with killed_in_step(3):
        tiny(tmp_path / "a", init=str(weights), **FEW)
    old, new = (digest_of(net(seed).state_dict()) for seed in (1, 2))
    save_file(net(2).state_dict(), weights)
    with pytest.raises(UserError) as error:
        tiny(tmp_path / "a", init=str(weights), **FEW)
    assert f"init.digest is {old} in the folder, {new} was requested" in str(error.value)
    overrides = TINY | FEW | {"init": str(weights)}
    assert smi.pretrain("digits", out=tmp_path / "a", overrides=overrides, fresh=True).finished


def photographs(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for label in ("ant", "bee"):
        (folder / label).mkdir(parents=True)
        for i in range(20):
            pixels = random.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder


def adapt(out: Path, photos: Path, init: str) -> smi.Run:
    """Continue from a small network by the recipe for it, on a folder of images."""
    overrides = {
        "encoder": "test_efficientnet",
        "init": init,
        "method.widths": [8, 8],
        "epochs": 1,
        "batch_size": 16,
        "log.save_every": 0.5,
    }
    return smi.pretrain("adapt", data=photos, out=out, overrides=overrides, quiet=True)


RESUMED = FEW | {"epochs": 2, "log.save_every": 0.5}


@pytest.mark.parametrize("lost", ["kept", "removed"])
@pytest.mark.parametrize("kind", ["file", "relative", "run", "export", "function"])
def test_a_killed_run_resumes_also_without_its_source(
    kind, lost, weights, earlier, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = RESUMED
    source = weights
    if kind == "run":
        source = Path(shutil.copytree(earlier, tmp_path / "source"))
    elif kind == "export":
        source = tmp_path / "export"
        source.mkdir()
        shutil.copy(earlier / "encoder.safetensors", source)
    elif kind == "function":
        settings = RESUMED | {"encoder": f"{__name__}.make_net"}
    given = source.name if kind == "relative" else str(source)
    whole = tiny(tmp_path / "whole", init=given, **settings)
    with killed_in_step(6):
        tiny(tmp_path / "cut", init=given, **settings)
    assert not smi.Run(tmp_path / "cut").finished
    if lost == "removed":
        source.rename(tmp_path / "elsewhere")
    resumed = tiny(tmp_path / "cut", init=given, **settings)
    assert resumed.finished
    assert resumed.state()["step"] == 8
    same_run(whole.folder, resumed.folder)
    for name in ("encoder.safetensors", "start.safetensors", "config.yaml"):
        assert (whole.folder / name).read_bytes() == (resumed.folder / name).read_bytes()


def test_a_run_that_lost_its_folder_of_timm_resumes(tmp_path):
    network = timm.create_model("test_resnet", num_classes=3)
    save_for_hf(network, tmp_path / "saved", safe_serialization=True)
    settings = FEW | {"encoder": f"local-dir:{tmp_path / 'saved'}", "encoder.stem": "standard"}
    with killed_in_step(3):
        tiny(tmp_path / "a", init="timm", **settings)
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    resumed = tiny(tmp_path / "a", init="timm", **settings)
    assert resumed.init_source == f"local-dir:{tmp_path / 'saved'}"
    assert resumed.config["encoder"] == {"name": "test_resnet", "stem": "standard"}
    assert torch.equal(load_file(resumed.start)["bn1.weight"], network.bn1.weight)


def test_a_run_whose_weights_left_the_cache_of_the_hub_resumes(tmp_path, monkeypatch):
    network = timm.create_model("test_resnet", num_classes=0)
    monkeypatch.setattr(starts, "timm_weights", lambda settings, size: network.state_dict())
    settings = FEW | {"encoder": "test_resnet", "encoder.stem": "standard", "init": "timm"}
    with killed_in_step(3):
        tiny(tmp_path / "a", **settings)

    def missing(settings, size):
        raise UserError("the weights are not in the hub's cache")

    monkeypatch.setattr(starts, "timm_weights", missing)
    resumed = tiny(tmp_path / "a", **settings)
    assert resumed.init_source == "timm"
    same(load_file(resumed.start), dict(network.state_dict()))
    with pytest.raises(UserError, match="not in the hub's cache"):
        tiny(tmp_path / "b", **settings)
    with pytest.raises(UserError, match="not in the hub's cache"):
        smi.pretrain("digits", out=tmp_path / "a", overrides=TINY | settings, fresh=True)


def test_the_recipe_for_a_folder_resumes_without_its_source(tmp_path, monkeypatch):
    """Views and stored images are smaller than those of the weights, on a CPU."""
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    photos = photographs(tmp_path / "photos")
    path = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_efficientnet", num_classes=3).state_dict(), path)
    with killed_in_step(2):
        adapt(tmp_path / "a", photos, str(path))
    path.unlink()
    run = adapt(tmp_path / "a", photos, str(path))
    assert run.finished
    views = run.config["views"]
    assert (views["size"], views["input_size"], run.config["data"]["resolution"]) == (96, 128, 146)
    assert run.config["views"]["mean"] == [0.485, 0.456, 0.406]
    assert run.config["select"] == "best"
    assert [line["step"] for line in run.probes()] == [0, 2]
    encoder = smi.load(run)
    assert (encoder.image_size, encoder.resolution) == (128, 146)


def test_a_run_with_a_chosen_recipe_keeps_its_epochs(tmp_path, monkeypatch):
    """Another version of this package may choose other epochs for the same images."""
    settings = {"encoder": "support.homemade.Net", "method.widths": [8, 8], "batch_size": 807}
    settings |= {"log.probe_every": 0}

    def start() -> smi.Run:
        return smi.pretrain(data="digits", out=tmp_path / "a", overrides=settings)

    monkeypatch.setattr("smi.config.choose.CPU_IMAGES", 12 * 1614)
    with killed_in_step(3):
        start()
    monkeypatch.setattr("smi.config.choose.CPU_IMAGES", 20 * 1614)
    run = start()
    assert run.finished
    assert run.config["epochs"] == 12
    other = smi.pretrain(data="digits", out=tmp_path / "b", overrides=settings)
    assert other.config["epochs"] == 20


def test_a_source_that_is_not_that_of_the_run_is_not_replaced(weights, tmp_path):
    with killed_in_step(3):
        tiny(tmp_path / "a", init=str(weights), **FEW)
    weights.unlink()
    for other in ("other.safetensors", str(tmp_path), str(tmp_path / "b" / "weights.safetensors")):
        with pytest.raises(UserError):
            tiny(tmp_path / "a", init=other, **FEW)


# ------------------------------------------------------------------------- before the first step


def test_a_batch_that_does_not_fit_is_halved_after_the_first_probe(weights, tmp_path, capsys):
    overrides = FEW | {"encoder": NET, "epochs": 1, "init": str(weights)}
    out = tmp_path / "a"
    method = "support.homemade.Large"
    run = smi.pretrain("digits", out=out, method=method, overrides=overrides)
    assert run.finished
    assert "Training starts again with 16;" in capsys.readouterr().err
    assert (run.config["batch_size"], run.facts.requested_batch_size) == (16, 64)
    assert [line["step"] for line in run.probes()] == [0, 16]
    same(load_file(run.start), load_file(weights))


def test_a_run_that_fails_in_its_first_step_does_not_take_the_folder(weights, tmp_path):
    overrides = FEW | {"encoder": NET, "epochs": 1, "init": str(weights)}
    with pytest.raises(UserError, match="it is broken"):
        smi.pretrain("digits", out=tmp_path / "a", method=f"{__name__}.Broken", overrides=overrides)
    assert [line["step"] for line in smi.Run(tmp_path / "a").lines()] == [0]
    save_file(net(2).state_dict(), weights)
    held_out = {"select": "best", "data.validation": 0.2}
    run = tiny(tmp_path / "a", init=str(weights), **FEW, **held_out)
    assert [line["step"] for line in run.lines()] == [0, 2, 4, 4]
    same(load_file(run.start), dict(net(2).state_dict()))


# ------------------------------------------------------------------------------- several processes


def fail(*words: object) -> None:
    raise UserError("rank 1 reads weights")


def train_together(folder: Path) -> None:
    """Train by two processes, with weights that only rank 0 can read."""
    if not is_rank_0():
        configuring.find_start = fail
        starts.read_tensors = fail
    original = session.train

    def train(job, *words, **more):
        print("begins at", digest_of(job.method.encoder.network.state_dict()))
        original(job, *words, **more)
        print("ends at", digest_of(job.method.encoder.network.state_dict()))

    session.train = train
    overrides = FEW | {"method": "BarlowTwins"}  # which synchronises batch norms
    tiny(folder / "run", init=str(folder / "weights.safetensors"), **overrides)


def test_two_processes_start_from_weights_that_only_rank_0_can_read(weights, tmp_path):
    results = finish(start_two(__file__, tmp_path))
    for code, output, errors in results:
        assert code == 0, errors
        assert f"begins at {digest_of(load_file(weights))}" in output
    ends = [
        next(line for line in output.splitlines() if line.startswith("ends"))
        for _, output, _ in results
    ]
    run = smi.Run(tmp_path / "run")
    trained = load_file(run.folder / "encoder.safetensors")
    assert ends == [f"ends at {digest_of(trained)}"] * 2
    same(load_file(run.start), load_file(weights))
    assert torch.equal(trained["norm.running_mean"], load_file(weights)["norm.running_mean"])
    assert [line["step"] for line in run.probes()] == [0, 4]
    assert json.loads((run.folder / "run.json").read_text())["world_size"] == 2


@pytest.fixture
def resnet_file(tmp_path) -> Path:
    """Return a file of a ResNet with a 7 x 7 stem, in timm's layout."""
    torch.save(
        timm.create_model("resnet10t", stem_type="", num_classes=0).state_dict(), tmp_path / "r.pth"
    )
    return tmp_path / "r.pth"


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, (96, 128, 146)),
        ({"views.size": 48}, (48, None, None)),
        ({"views.size": 48, "views.input_size": 64}, (48, 64, None)),
        ({"data.resolution": 70}, (96, 128, 70)),
    ],
)
def test_files_are_stored_for_the_views_that_are_made(settings, sizes, resnet_file, tmp_path):
    requested = {"data": str(photographs(tmp_path / "photos")), "init": str(resnet_file)}
    requested |= {"encoder": "resnet10t", "encoder.stem_type": ""} | settings
    config = configure("adapt", requested, folder=tmp_path / "a", device=CPU).config
    assert (config.views.size, config.views.input_size, config.data.resolution) == sizes


def test_a_resumed_run_keeps_its_sizes_on_another_device(resnet_file, tmp_path):
    requested = {"data": str(photographs(tmp_path / "photos")), "init": str(resnet_file)}
    requested |= {"encoder": "resnet10t", "encoder.stem_type": ""}
    configured = configure("adapt", requested, folder=tmp_path / "a", device=CPU)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text(configured.config.text())
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1}\n')
    smi.Run(tmp_path / "a").write_start(configured.weights, {})
    cuda = torch.device("cuda")
    assert (
        configure("adapt", requested, folder=tmp_path / "a", device=cuda).config
        == configured.config
    )
    assert configure("adapt", requested, folder=tmp_path / "b", device=cuda).config.views.size > 96


@pytest.mark.parametrize(("size", "stem"), [(32, None), (48, "standard"), (80, None)])
def test_a_trained_stem_is_kept_above_32_pixels(size, stem, resnet_file, tmp_path):
    requested = {"data": "digits", "init": str(resnet_file), "views.size": size}
    requested |= {"encoder": "resnet10t", "encoder.stem_type": ""}
    configured = configure("adapt", requested, folder=tmp_path / "a", device=CPU)
    assert configured.config.encoder.get("stem") == stem
    assert configured.weights["conv1.weight"].shape[-1] == (3 if size == 32 else 7)
    assert ("the 7 x 7 stem is folded to 3 x 3" in configured.notes) == (size == 32)


@pytest.mark.parametrize("size", [40, 100])
def test_a_run_with_a_small_stem_is_continued_at_any_size(size, tmp_path):
    encoder = smi.nn.create_encoder("test_resnet", image_size=48)
    header = {"encoder": {"name": "test_resnet"}, "image_size": 48, "mean": [0.5] * 3}
    header |= {"std": [0.5] * 3, "about": {}}
    save_encoder(tmp_path / "e.safetensors", encoder.network.state_dict(), header)
    requested = {"data": "digits", "init": str(tmp_path / "e.safetensors"), "views.size": size}
    configured = configure("adapt", requested, folder=tmp_path / "a", device=CPU)
    assert configured.config.encoder == {"name": "test_resnet", "stem": "cifar"}
    assert digest_of(configured.weights) == digest_of(encoder.network.state_dict())


# ------------------------------------------------------------------------- size of whole images


def test_whole_images_may_be_larger_than_views(tmp_path, capsys):
    """Probes, the encoder's file and everything that reads it take the size of whole images."""
    run = tiny(tmp_path / "a", **FEW, **{"views.input_size": 12})
    assert "2 of 8 px, for whole images of 12 px" in capsys.readouterr().out
    assert run.config["views"]["size"] == 8
    for encoder in (smi.load(run), smi.load(run.folder / "encoder.safetensors")):
        assert encoder.image_size == 12
    measured = smi.evaluate([run.folder], protocols=["knn"], quiet=True).rows[0][1]
    file = smi.evaluate([run.folder / "encoder.safetensors"], protocols=["knn"], quiet=True)
    smaller = tiny(tmp_path / "b", **FEW)
    same(
        dict(smi.load(smaller).network.state_dict()), dict(smi.load(run).network.state_dict())
    )  # it changes no step
    other = smi.evaluate([smaller.folder], protocols=["knn"], quiet=True).rows[0][1]
    assert measured[0].scores == file.rows[0][1][0].scores
    assert measured[0].scores != other[0].scores
    assert run.probes()[-1]["probe"]["knn"] != smaller.probes()[-1]["probe"]["knn"]


def test_the_size_of_whole_images_does_not_change_the_stem(tmp_path):
    """A ResNet for views of 32 pixels would have another stem for images of 80."""
    settings = {"encoder": "test_resnet", "views.size": 32, "views.input_size": 80}
    config = configured({"init": None, **settings}, tmp_path).config
    assert config.encoder == {"name": "test_resnet", "stem": "cifar"}
    config = configured({"init": None, **settings, "encoder.stem": "half"}, tmp_path).config
    assert config.encoder["stem"] == "half"


def test_whole_images_follow_only_if_nobody_chose_a_size(resnet_file, tmp_path):
    """The same number means the same, whether it is chosen or follows from the weights."""
    requested = {"data": str(photographs(tmp_path / "photos")), "init": str(resnet_file)}
    requested |= {"encoder": "resnet10t", "encoder.stem_type": ""}

    def sizes(recipe, requested):
        config = configure(recipe, requested, folder=tmp_path / "none", device=CPU).config
        return config, (config.views.size, config.views.input_size, config.data.resolution)

    chosen, found = sizes("adapt", requested | {"views.size": 96})
    assert found == (96, None, None)
    assert sizes("adapt", requested | {"views.input_size": 64})[1] == (96, 64, 144)
    (tmp_path / "config.yaml").write_text(chosen.text())
    assert sizes(tmp_path / "config.yaml", {})[0] == chosen
    default, found = sizes("adapt", requested)
    assert found == (96, 128, 146)
    (tmp_path / "config.yaml").write_text(default.text())
    assert sizes(tmp_path / "config.yaml", {})[0] == default


def test_a_network_of_one_size_keeps_it(tmp_path):
    """Transformers have weights for each position."""
    small = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=96, **small)
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    requested = {"encoder": "vit_tiny_patch16_224", "init": str(path)}
    requested |= {f"encoder.{name}": value for name, value in small.items()}
    views = configured(requested, tmp_path).config.views
    assert (views.size, views.input_size) == (96, None)
    sizes = {"views.size": 96, "views.input_size": 128}
    for init in (str(path), None):
        with pytest.raises(UserError, match=r"vit_tiny_patch16_224 has weights for each pos"):
            configured(requested | {"init": init} | sizes, tmp_path)


def test_the_whole_images_of_a_recipe_are_for_its_own_encoder(tmp_path):
    """Another encoder takes images of the size of views if it takes no others."""
    vit = {"encoder": "vit_tiny_patch16_224", "encoder.depth": 1}
    recipe = tmp_path / "mine.yaml"

    def sizes(requested, recipe="imagenette-small"):
        folder = tmp_path / "none"
        views = configure(recipe, requested, folder=folder, device=CPU).config.views
        return views.size, views.input_size

    assert sizes({}) == (64, 96)
    assert sizes({"encoder": "resnet10t"}) == (64, 96)
    assert sizes(vit) == (64, None)
    assert sizes({"encoder": "support.homemade.OneSize"}) == (64, None)
    with pytest.raises(UserError, match="has weights for each position"):
        sizes(vit | {"views.input_size": 96})
    own = "base: imagenette-small\nencoder: {name: vit_tiny_patch16_224, depth: 1}\n"
    recipe.write_text(own)
    assert sizes({}, recipe) == (64, None)
    recipe.write_text(own + "views: {input_size: 96}")
    with pytest.raises(UserError, match="has weights for each position"):
        sizes({}, recipe)


def test_a_run_keeps_the_whole_images_of_an_earlier_recipe(tmp_path, monkeypatch):
    """Only those of a recipe of this package: a file of the user is as it is now."""
    recipe = read_recipe("digits")
    monkeypatch.setattr(resolving, "read_text", lambda name: yaml.safe_dump(recipe))
    with killed_in_step(3):
        tiny(tmp_path / "a", **FEW)
    recipe["views"]["input_size"] = 12
    run = tiny(tmp_path / "a", **FEW)
    assert run.finished
    assert run.config["views"]["input_size"] is None
    assert tiny(tmp_path / "b", **FEW).config["views"]["input_size"] == 12
    with pytest.raises(UserError, match=r"views\.input_size"):
        tiny(tmp_path / "b", **FEW | {"views.input_size": 10})


if __name__ == "__main__":
    train_together(Path(sys.argv[1]))
