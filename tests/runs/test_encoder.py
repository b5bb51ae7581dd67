"""Load encoders of runs and files, and transform their input."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models._hub import save_for_hf
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import smi
from smi.data import load as load_images
from smi.device import Runtime
from smi.errors import UserError
from smi.evaluation import extract
from smi.nn import create_encoder
from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import Pretrained, has_header, read_weights, source_path

HEADER = {
    "encoder": {"name": "support.homemade.Net"},
    "image_size": 16,
    "mean": [0.5, 0.4, 0.3],
    "std": [0.2, 0.3, 0.4],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "mine"
    overrides = {
        "encoder": "support.homemade.Net",
        "epochs": 1,
        "batch_size": 32,
        "data.images": 64,
        "log.probe_every": 0,
    }
    smi.pretrain("digits", out=folder, overrides=overrides, runtime=Runtime(device="cpu"))
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write random weights of an encoder for squares of 24 pixels that are resized to 16."""
    encoder = create_encoder("support.homemade.Net", image_size=16)
    torch.nn.init.normal_(encoder.network.norm.running_mean)
    path = tmp_path / "net.safetensors"
    save_encoder(
        path,
        encoder.network.state_dict(),
        HEADER | {"resolution": 24, "about": {"method": "SMI", "epoch": 3}},
    )
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Write wide, EXIF-rotated, transparent, palette and grey images.

    The JPEGs are so large that they are decoded at a fraction of their size.
    """
    folder = tmp_path / "pictures"
    folder.mkdir()
    colours = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    large = Image.fromarray(colours).resize((300, 200), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[0x0112] = 6
    large.save(folder / "a.jpg")
    large.save(folder / "b.jpg", exif=turned)
    alpha = Image.fromarray(np.arange(54, dtype=np.uint8).reshape(6, 9) * 4).resize((300, 200))
    Image.merge("RGBA", (*large.split(), alpha)).save(folder / "c.png")
    large.quantize(16).save(folder / "d.png")
    large.convert("L").resize((10, 12)).save(folder / "e.png")
    return sorted(folder.iterdir())


def test_a_run_and_its_file_are_one_encoder(run):
    ours, filed = smi.load(run), smi.load(run / "encoder.safetensors")
    assert not ours.training
    assert not filed.training
    x = torch.randn(5, 3, 8, 8)
    with torch.inference_mode():
        h = ours(x)
        assert torch.equal(h, filed(x))
    assert h.shape == (5, ours.dim)
    for name in ("settings", "image_size", "resolution", "mean", "std", "dim"):
        assert getattr(ours, name) == getattr(filed, name)
    assert (ours.source, filed.source) == (run, run / "encoder.safetensors")
    assert (
        ours.about
        == filed.about
        == {"method": "SMI", "data": "digits", "seed": 0, "step": 2, "epoch": 1}
    )
    assert ours.digest() == filed.digest()


def test_a_run_gives_its_last_checkpoint(run, tmp_path):
    """An unfinished run has no encoder.safetensors."""
    shutil.copytree(run, tmp_path / "other")
    state = torch.load(tmp_path / "other" / "checkpoints" / "last.pt", weights_only=True)
    state["method"]["encoder.network.conv.weight"] *= 2
    torch.save(state, tmp_path / "other" / "checkpoints" / "last.pt")
    changed = smi.load(tmp_path / "other")
    assert torch.equal(changed.network.conv.weight, 2 * smi.load(run).network.conv.weight)
    assert changed.digest() != smi.load(run).digest()


def test_a_folder_with_only_the_exported_file(file):
    folder = file.parent / "exported"
    folder.mkdir()
    shutil.copy(file, folder / "encoder.safetensors")
    assert smi.load(folder).digest() == smi.load(file).digest()


def test_the_digest_is_of_names_values_and_shapes(file, tmp_path):
    encoder = smi.load(file)
    first = encoder.digest()
    assert first == smi.load(str(file)).digest()
    with torch.no_grad():
        encoder.network.norm.running_var[3] += 1e-3
    assert encoder.digest() != first


def test_the_transform_is_what_evaluation_reads(file, pictures):
    """Compare to the bit, for every kind of input."""
    encoder = smi.load(file)
    store = load_images(
        pictures[0].parent, "pretrain", resolution=24, max_cache_bytes=0, num_workers=1
    )
    reference = extract(encoder, store, mean=encoder.mean, std=encoder.std, size=16)
    pixels = store[:]
    store.close()
    x = encoder.transform(pictures)
    assert (x.shape, x.dtype) == ((5, 3, 16, 16), torch.float32)
    with torch.inference_mode():
        assert torch.equal(encoder(x), reference)
    assert torch.equal(encoder.transform(pixels), x)
    assert torch.equal(encoder.transform(pixels[2]), x[2])
    for i, path in enumerate(pictures):
        with Image.open(path) as image:
            assert torch.equal(encoder.transform(str(path)), x[i])
            assert torch.equal(encoder.transform(image), x[i])
    assert torch.equal(
        encoder.transform([Image.open(io.BytesIO(path.read_bytes())) for path in pictures]), x
    )
    assert not torch.equal(x[0], x[1])  # turned
    assert not torch.equal(x[0], x[2])  # on white


def test_the_transform_of_arrays(file, pictures):
    encoder = smi.load(file)
    with Image.open(pictures[2]) as image:
        colours, grey = np.asarray(image.convert("RGB")), np.asarray(image.convert("L"))
        transparent = np.asarray(image)
        assert torch.equal(encoder.transform(transparent), encoder.transform(image))
        assert torch.equal(encoder.transform(grey), encoder.transform(image.convert("L")))
        one = encoder.transform(image.convert("RGB"))
    assert torch.equal(encoder.transform(colours), one)
    assert torch.equal(encoder.transform(grey[..., None]), encoder.transform(grey))
    several = encoder.transform([colours, pictures[0], grey])
    assert several.shape == (3, 3, 16, 16)
    assert torch.equal(several[0], one)
    assert torch.equal(encoder.transform(np.stack([colours, colours])), torch.stack([one, one]))


def test_the_transform_of_a_run_and_of_its_encoder_are_the_same(run, pictures):
    ours, loaded = smi.Run(run).encoder(), smi.load(run)
    assert torch.equal(ours.transform(pictures), loaded.transform(pictures))
    assert ours.digest() == loaded.digest()
    assert ours.about == loaded.about
    assert not ours.training


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_of_torchvision_takes_the_transform(file, pictures, num_workers):
    encoder = smi.load(file)
    dataset = ImageFolder(pictures[0].parent.parent, transform=encoder.transform)
    assert dataset[0][0].shape == (3, 16, 16)
    ((x, labels),) = DataLoader(dataset, batch_size=len(dataset), num_workers=num_workers)
    assert torch.equal(labels, torch.zeros(5, dtype=torch.long))
    opened = [image.convert("RGB") for image in map(Image.open, pictures)]  # as torchvision does
    assert torch.equal(x, encoder.transform(opened))
    with torch.inference_mode():
        assert encoder(x).shape == (5, encoder.dim)


def test_images_of_more_than_8_bits_are_scaled_as_in_pretraining(file, tmp_path):
    weights, about = read_weights(file)
    save_encoder(tmp_path / "deep.safetensors", weights, about | {"value_range": [100, 1120]})
    encoder, before = smi.load(tmp_path / "deep.safetensors"), smi.load(file)
    assert encoder.value_range == encoder.untrained().value_range == (100, 1120)
    assert before.value_range is None
    assert encoder.digest() != before.digest()
    values = np.random.default_rng(0).integers(100, 1121, (24, 24)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    pixels = torch.from_numpy((values - 100 + 2) // 4).to(torch.uint8).expand(3, 24, 24)
    with Image.open(tmp_path / "deep.png") as opened:
        for image in (tmp_path / "deep.png", opened):
            assert torch.equal(encoder.transform(image), encoder.transform(pixels))
        upper = torch.from_numpy(values // 256).to(torch.uint8).expand(3, 24, 24)
        assert torch.equal(before.transform(opened), before.transform(upper))
    grey = np.full((24, 24), 7, dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    same = before.transform(torch.from_numpy(grey).expand(3, 24, 24))
    assert torch.equal(encoder.transform(tmp_path / "grey.png"), same)


def test_the_given_image_is_not_changed(file, pictures):
    with Image.open(pictures[0]) as image:
        smi.load(file).transform(image)
        assert image.size == (300, 200)
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(pictures[0])))


def test_the_default_resolution_is_the_image_size(tmp_path):
    path = tmp_path / "net.safetensors"
    save_encoder(
        path,
        create_encoder("support.homemade.Net", image_size=16).network.state_dict(),
        HEADER | {"resolution": None},
    )
    encoder = smi.load(path)
    assert isinstance(encoder, Pretrained)
    assert (encoder.resolution, encoder.image_size, encoder.about) == (16, 16, {})


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.zeros(1, 3, 8, 8), "must be uint8 [N, 3, H, H], not float32 [1, 3, 8, 8]"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), "not uint8 [8, 8, 3]"),
        (torch.zeros(3, 8, 9, dtype=torch.uint8), "not uint8 [3, 8, 9]"),
        ("nowhere.png", "nowhere.png cannot be read: No such file or directory"),
        (Path("empty.png"), "empty.png cannot be read: empty file"),
        ("text.jpg", "text.jpg cannot be read: not an image in a supported format"),
        ("cut.png", "cut.png cannot be read: "),
        (["whole.png", "."], ". cannot be read: Is a directory"),
        (np.zeros((3, 8, 8), dtype=np.uint8), "array of uint8 [3, 8, 8] cannot be read: arrays"),
        (np.zeros((2, 3, 8, 8), dtype=np.uint8), "the array of uint8 [3, 8, 8] cannot be read"),
        (np.zeros((8, 8, 3)), "the array of float64 [8, 8, 3] cannot be read: "),
        (np.zeros((8, 8)), "cannot be read: floating-point pixels without a stated range"),
        (np.zeros((0, 8, 3), dtype=np.uint8), "the array of uint8 [0, 8, 3] cannot be read"),
        ([torch.zeros(3, 8, 8, dtype=torch.uint8)], "the tensor of uint8 [3, 8, 8] cannot be read"),
        (Image.new("F", (4, 4)), "a PIL image (F, 4 × 4 pixels) cannot be read: floating-point"),
        ([], "the list is empty"),
        (np.zeros((0, 8, 8, 3), dtype=np.uint8), "the list is empty"),
        (None, "an object of the type NoneType cannot be read: give a file, a PIL image or an"),
        (b"cat.jpg", "an object of the type bytes cannot be read"),
    ],
)
def test_an_unreadable_image_is_a_sentence(file, tmp_path, monkeypatch, images, says):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (30, 30), "red").save("whole.png")
    Path("empty.png").touch()
    Path("text.jpg").write_text("hello")
    noise = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8)).save(
        noise, "PNG"
    )
    Path("cut.png").write_bytes(noise.getvalue()[:900])
    with pytest.raises(UserError) as caught:
        smi.load(file).transform(images)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def header(**changes: object) -> dict[str, str]:
    return {
        "smi": json.dumps(
            {name: value for name, value in (HEADER | changes).items() if value is not None}
        )
    }


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (None, "does not name the network of its weights"),
        ({"format": "pt"}, "does not name the network of its weights"),
        (header(mean=None), "is damaged: mean is missing"),
        (
            header(encoder={"name": "resnet-small"}),
            "cannot be loaded: resnet-small has 1,232,944 parameters, and the file 257",
        ),
        (header(encoder={"name": "support.homemade.Net", "width": 9}), "size mismatch"),
        (
            header(encoder={"name": "resnet-smal"}),
            "there is no encoder 'resnet-smal': did you mean resnet-small?",
        ),
        ({"smi": "{"}, "cannot be loaded: "),
        ({"smi": "[]"}, "its header does not describe an encoder"),
        (header(image_size=20_000), "images must have 1 to 2048 pixels a side"),
        (header(mean=[1]), "mean must be three numbers"),
        (header(std=[0, 0, 0]), "std must be above 0"),
        (header(std=[1, 1, float("nan")]), "std must be three numbers"),
        (header(encoder={"name": "resnet-small", "layers": [10**9] * 4}), "is too large"),
        (header(encoder={"name": "resnet-small", "channels": [65_536] * 4}), "parameters, and"),
        (header(digest="0" * 16), "its weights have changed since they were written"),
    ],
)
def test_a_file_of_another_kind_is_a_sentence(tmp_path, metadata, says):
    path = tmp_path / "net.safetensors"
    save_file(
        create_encoder("support.homemade.Net", image_size=16).network.state_dict(), path, metadata
    )
    with pytest.raises(UserError) as caught:
        smi.load(path)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_file_is_a_sentence(file):
    whole = file.read_bytes()
    for damaged in (whole[:-10], whole[:30], b"", b"hello, world"):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="is not a safetensors file: give the folder of a run"):
            smi.load(file)


def test_a_missing_run_or_encoder_is_a_sentence(run, tmp_path):
    with pytest.raises(UserError, match="there is no run or encoder nowhere/mine"):
        smi.load("nowhere/mine")
    with pytest.raises(UserError, match="is not a run: it has no config"):
        smi.load(tmp_path)
    (tmp_path / "begun").mkdir()
    shutil.copy(run / "config.yaml", tmp_path / "begun" / "config.yaml")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        smi.load(tmp_path / "begun")
    (tmp_path / "begun" / "config.yaml").write_text("method: {name: SMI}\n")
    with pytest.raises(UserError, match="is damaged: it has no section 'data'"):
        smi.load(tmp_path / "begun")


def test_a_file_of_weights_runs_nothing(tmp_path: Path) -> None:
    """The header may name a network of timm, and nothing else that could be called."""
    for settings in (
        {"name": "os.mkdir", "path": str(tmp_path / "ran")},
        {"name": "pathlib.Path", "self": "x"},
    ):
        save_encoder(
            tmp_path / "evil.safetensors",
            {"weight": torch.zeros(1)},
            HEADER | {"encoder": settings},
        )
        with pytest.raises(UserError, match="names code to run"):
            smi.load(tmp_path / "evil.safetensors")
    assert not (tmp_path / "ran").exists()


def test_the_root_of_datasets_is_not_published_with_the_encoder(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"root": "/home/someone/secret"}))
    encoder = smi.load(folder)
    assert encoder.root == "/home/someone/secret"
    assert "secret" not in json.dumps([encoder.about, encoder.origin()])
    encoder.about["data"] = "/home/someone/secret"
    assert "secret" not in json.dumps(encoder.origin())


# ------------------------------------------------------------------- networks and files of timm


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Write weights of a small ResNet with a classifier, as others publish them."""
    network = timm.create_model("test_resnet", num_classes=3)
    torch.nn.init.normal_(network.bn1.running_mean)
    path = tmp_path / "weights.pth"
    torch.save({"state_dict": network.state_dict(), "epoch": 9}, path)
    return path


def test_a_network_of_timm_with_the_weights_of_a_file(published, pictures, capsys):
    encoder = smi.load(f"timm:test_resnet.r160_in1k@{published}")
    note = f"the classifier of {published} is dropped (fc.weight, fc.bias)"
    assert note in "".join(capsys.readouterr())
    assert not encoder.training
    network = timm.create_model("test_resnet", num_classes=3).eval()
    network.load_state_dict(torch.load(published, weights_only=True)["state_dict"])
    network.reset_classifier(0)
    x = encoder.transform(pictures)
    assert x.shape == (5, 3, 160, 160)
    with torch.inference_mode():
        assert torch.equal(encoder(x), network(x))
    assert (encoder.mean, encoder.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (encoder.image_size, encoder.resolution) == (160, 183)
    assert encoder.settings == {"name": "test_resnet.r160_in1k"}
    assert (encoder.about, encoder.origin(), encoder.off_the_shelf()) == ({}, {}, None)
    assert encoder.digest() == smi.load(f"timm:test_resnet.r160_in1k@{published}").digest()
    assert encoder.untrained().digest() != encoder.digest()


def test_the_transform_has_the_input_of_the_weights(tmp_path):
    network = timm.create_model("test_resnet", num_classes=3)
    save_for_hf(network, tmp_path / "saved", safe_serialization=True)
    path = tmp_path / "saved" / "config.json"
    config = json.loads(path.read_text())
    config["pretrained_cfg"] |= {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.8],
        "input_size": [3, 112, 112],
    }
    path.write_text(json.dumps(config))
    encoder = smi.load(f"local-dir:{tmp_path / 'saved'}")
    assert (encoder.image_size, encoder.resolution) == (112, 128)
    assert torch.equal(encoder.network.conv1[0].weight, network.conv1[0].weight)
    pixels = torch.full((1, 3, 128, 128), 51, dtype=torch.uint8)
    x = encoder.transform(pixels)
    assert x.shape == (1, 3, 112, 112)
    expected = (torch.tensor([0.2] * 3) - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor(
        [0.4, 0.5, 0.8]
    )
    torch.testing.assert_close(x, expected.view(1, 3, 1, 1).expand_as(x))
    assert encoder(x).shape == (1, encoder.dim)


def test_published_weights_have_no_student(published, tmp_path):
    save_for_hf(timm.create_model("test_resnet"), tmp_path / "saved", safe_serialization=True)
    for source in (f"timm:test_resnet@{published}", f"local-dir:{tmp_path / 'saved'}"):
        with pytest.raises(UserError, match="is one encoder, without a student beside it"):
            smi.load(source, student=True)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("timm:resnet81", "there is no encoder 'resnet81': did you mean resnet"),
        ("timm:resnet18.a1_in1", "did you mean resnet18.a1_in1k?"),
        ("timm:test_resnet@nowhere.pth", "there is no file nowhere.pth"),
        ("timm:test_vit@weights.pth", "weights.pth does not fit VisionTransformer: "),
        ("timm:support.homemade.Net@weights.pth", "timm does not know the input of timm:support"),
        ("timm:test_resnet@config.yaml", "config.yaml holds no weights"),
        ("local-dir:nowhere", "local-dir:nowhere cannot be read"),
    ],
)
def test_mistakes_in_names_of_timm_are_sentences(source, says, published, monkeypatch):
    monkeypatch.chdir(published.parent)
    Path("config.yaml").write_text("epochs: 3")
    with pytest.raises(UserError) as caught:
        smi.load(source)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_path_of_a_source(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert source_path("~/mine") == tmp_path / "mine"
    assert source_path(tmp_path / "a b") == tmp_path / "a b"
    assert source_path("timm:resnet18.a1_in1k") == Path("timm-resnet18.a1_in1k")
    assert source_path("timm:resnet18@a b/c.pth") == Path("timm-resnet18-a-b-c.pth")
    assert source_path("hf-hub:org/name@v1") == Path("hf-hub-org-name-v1")


def test_which_files_name_their_network(file, published, tmp_path):
    assert has_header(file)
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign.safetensors", {"format": "pt"})
    for path in (published, tmp_path / "foreign.safetensors", tmp_path / "nowhere.safetensors"):
        assert not has_header(path)
    weights, about = read_weights(file)
    assert about["resolution"] == 24
    assert torch.equal(weights["conv.weight"], smi.load(file).network.conv.weight)


def test_a_run_without_weights_at_its_start_is_not_off_the_shelf(run):
    assert smi.load(run).off_the_shelf() is None
    assert smi.load(run / "encoder.safetensors").off_the_shelf() is None
