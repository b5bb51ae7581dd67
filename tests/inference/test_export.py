"""Exports, each loaded again by its target library."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from string import Template

import numpy as np
import onnxruntime
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import smi
from smi.cli import main
from smi.errors import UserError
from smi.inference import export as exporting
from smi.inference import load_script
from smi.inference.export import export
from smi.inference.verify_export import sample_photographs
from smi.nn import create_encoder
from smi.nn.encoders import SMALL_RESNET_ARGUMENTS, STEM_SHAPES
from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import read_weights, source_path

TESTS = Path(__file__).parents[1]
SMI = Path(sys.executable).with_name("smi")
CLOSE = 1e-5


@pytest.fixture(autouse=True)
def _our_modules(monkeypatch):
    monkeypatch.syspath_prepend(TESTS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    smi.pretrain(
        "digits",
        out=out,
        overrides={
            "epochs": 1,
            "batch_size": 128,
            "log.probe_images": 200,
            "method.widths": [16, 16],
        },
    )
    return out


def encoder_file(
    folder: Path,
    name: str,
    image_size: int,
    *,
    resolution: int | None = None,
    data: str = "digits",
    **settings,
) -> Path:
    """Write an encoder as a run does, with changed weights and batch norm statistics."""
    encoder = create_encoder(name, image_size=image_size, **settings)
    with torch.no_grad():
        for weights in encoder.parameters():
            weights.add_(0.02 * torch.randn_like(weights))
        for _ in range(3):
            encoder(torch.randn(8, 3, image_size, image_size))
    about = {
        "encoder": {"name": name, **settings},
        "image_size": image_size,
        "resolution": resolution,
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.25, 0.3),
        "about": {"method": "SMI", "data": data, "epoch": 3},
    }
    save_encoder(folder / "encoder.safetensors", encoder.network.state_dict(), about)
    return folder / "encoder.safetensors"


def features(source: Path, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return smi.load(source)(x)


def assert_same(model: torch.nn.Module, source: Path, size: int) -> None:
    x = torch.randn(5, 3, size, size)
    expected = features(source, x)
    with torch.inference_mode():
        found = model.eval()(x)
    assert expected.std() > 0.01  # features that vary
    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def replace_stem(
    model: torch.nn.Module, width: int, kernel: int, stride: int, padding: int
) -> torch.nn.Module:
    model.conv1 = torch.nn.Conv2d(3, width, kernel, stride=stride, padding=padding, bias=False)
    model.maxpool = torch.nn.Identity()
    return model


# -------------------------------------------------------------------------------------- the command


def test_the_command_exports_a_run_and_describes_it(finished):
    arguments = [str(SMI), "export", str(finished), "--to", "timm"]
    result = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    out = finished / "export" / "timm"
    written, dim, *how, difference = result.stdout.splitlines()
    assert written.startswith(f"{out}: model.safetensors (")
    assert dim == "256 features of images of 8 × 8 pixels"
    assert "timm has no cifar stem" in how[0]
    assert all(str(out / "load.py") in line for line in how)
    assert difference == "largest difference 0 on 16 images of digits"
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors",
        "preprocessing.json",
        "load.py",
    }
    assert [path.name for path in out.parent.iterdir()] == ["timm"]
    about = json.loads((out / "preprocessing.json").read_text())
    assert about["input_size"] == [3, 8, 8]
    assert about["num_features"] == 256
    assert about["encoder"] == {"name": "resnet-small", "stem": "cifar"}
    assert about["origin"]["method"] == "SMI"
    assert about["origin"]["data"] == "digits"
    assert about["origin"]["epoch"] == 1.0
    mean, std = smi.Run(finished).normalization
    assert (tuple(about["mean"]), tuple(about["std"])) == (mean, std)
    again = smi.load(out)
    assert again.digest() == smi.load(finished).digest()
    assert (again.mean, again.std, again.image_size, again.about["epoch"]) == (mean, std, 8, 1.0)


def test_a_mistake_is_one_sentence(finished, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["smi", "export", str(finished), "--to", "tim"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.err == "smi: there is no format 'tim': did you mean timm?\n"
    assert captured.out == ""


# ---------------------------------------------------------------------------------- printed lines


def smi_and_libraries() -> dict[str, object]:
    return {
        "onnxruntime": onnxruntime,
        "runpy": runpy,
        "smi": smi,
        "timm": timm,
        "torch": torch,
        "torchvision": torchvision,
    }


def run_printed(output: str, names: dict[str, object]) -> dict[str, object]:
    """Run the lines of Python that an export prints: all but the first two and the last."""
    for line in output.splitlines()[2:-1]:
        exec(line, names)
    return names


@pytest.mark.parametrize(
    ("to", "name", "size", "resolution", "settings"),
    [
        ("timm", "resnet18", 64, None, {"stem": "standard", "layers": [1, 1, 1, 1]}),
        ("timm", "resnet18", 56, 64, {"stem": "standard", "layers": [1, 1, 1, 1]}),
        ("timm", "resnet-small", 20, None, {}),
        ("timm", "vit_tiny_patch16_224", 32, None, {"depth": 2}),
        ("torchvision", "resnet18", 64, None, {"stem": "standard"}),
        ("torchvision", "resnet18", 8, None, {}),
        ("safetensors", "resnet-small", 20, 24, {}),
        ("onnx", "resnet-small", 20, 24, {}),
    ],
)
def test_the_printed_lines_give_our_features_of_a_photograph(
    tmp_path, capsys, monkeypatch, to, name, size, resolution, settings
):
    monkeypatch.chdir(tmp_path)
    Path("my 'photos'").mkdir()
    source = encoder_file(Path("my 'photos'"), name, size, resolution=resolution, **settings)
    photograph = sample_photographs()[0]
    expected = features(source, smi.load(source).transform([photograph]))
    export(source, to=to)
    output = capsys.readouterr().out
    names = run_printed(output, {**smi_and_libraries(), "image": photograph})
    if to == "onnx":
        h = torch.from_numpy(names["h"])
    elif to == "safetensors":
        h = names["encoder"](names["encoder"].transform([photograph]))
    else:
        x = names["transform"](photograph)
        h = names["model"](x if x.ndim == 4 else x[None])
    assert f"3, {size}, {size}]" in output or to == "safetensors"
    assert expected.std() > 0.01
    assert torch.cosine_similarity(h, expected).item() > 0.999
    if "create_transform" not in output:  # timm resizes by other fractions of a pixel
        torch.testing.assert_close(h, expected, rtol=0, atol=1e-4)


# --------------------------------------------------------------------------------------------- timm


@pytest.mark.parametrize(
    ("name", "size", "settings"),
    [
        ("resnet18", 64, {"stem": "standard", "layers": [1, 1, 1, 1]}),
        ("resnet-small", 72, {}),
        ("vit_tiny_patch16_224", 32, {"depth": 2}),
    ],
)
def test_timm_loads_it_without_load_py(tmp_path, capsys, name, size, settings):
    source = encoder_file(tmp_path, name, size, **settings)
    out = export(source, to="timm")
    assert out == tmp_path / "export-timm"
    config = json.loads((out / "config.json").read_text())
    file = str(out / "model.safetensors")
    assert_same(
        timm.create_model(
            config["architecture"], num_classes=0, checkpoint_path=file, **config["model_args"]
        ),
        source,
        size,
    )
    found = run_printed(capsys.readouterr().out, smi_and_libraries())
    assert_same(found["model"], source, size)
    assert tuple(timm.data.resolve_model_data_config(found["model"])["mean"]) == (0.5, 0.4, 0.3)


@pytest.mark.parametrize(("narrow", "width", "stride"), [(False, 64, 1), (True, 32, 2)])
def test_timm_refuses_weights_of_another_stem(tmp_path, narrow, width, stride):
    size = 20
    source = (
        encoder_file(tmp_path, "resnet-small", size)
        if narrow
        else encoder_file(tmp_path, "resnet18", size, layers=[1, 1, 1, 1])
    )
    out = export(source, to="timm")
    assert not (out / "config.json").exists()
    arguments = (
        {name: value for name, value in SMALL_RESNET_ARGUMENTS.items() if name != "zero_init_last"}
        if narrow
        else {"layers": [1, 1, 1, 1]}
    )
    file = str(out / "model.safetensors")
    with pytest.raises(RuntimeError, match="conv1"):
        timm.create_model("resnet18", num_classes=0, checkpoint_path=file, **arguments)
    model = timm.create_model("resnet18", num_classes=0, **arguments)
    replace_stem(model, width, *STEM_SHAPES["cifar" if stride == 1 else "half"])
    timm.models.load_checkpoint(model, file)
    assert_same(model, source, size)


# -------------------------------------------------------------------------------------- torchvision


@pytest.mark.parametrize(("stem", "size"), [("standard", 32), ("cifar", 8), ("quarter", 64)])
def test_torchvision_loads_it_strictly(tmp_path, capsys, stem, size):
    source = encoder_file(tmp_path, "resnet18", size, stem=stem)
    out = export(source, to="torchvision")
    model = torchvision.models.resnet18()
    model.fc = torch.nn.Identity()
    if stem != "standard":
        replace_stem(model, 64, *STEM_SHAPES[stem])
    model.load_state_dict(torch.load(out / "model.pth", weights_only=True), strict=True)
    assert_same(model, source, size)
    assert ("has no" in capsys.readouterr().out) == (stem != "standard")


@pytest.mark.parametrize(
    ("name", "settings"),
    [("resnet-small", {}), ("vit_tiny_patch16_224", {"depth": 1}), ("convnext_atto", {})],
)
def test_networks_that_torchvision_lacks_are_refused(tmp_path, name, settings):
    source = encoder_file(tmp_path, name, 32, **settings)
    with pytest.raises(UserError, match=f"torchvision has no {name}.*--to timm or onnx") as caught:
        export(source, to="torchvision")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_resnet_that_differs_from_torchvisions_is_not_written(tmp_path):
    source = encoder_file(tmp_path, "resnet18", 32, layers=[1, 1, 1, 1])
    with pytest.raises(
        UserError, match=r"cannot be loaded and run again, so nothing was written.*Missing key"
    ):
        export(source, to="torchvision")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


# --------------------------------------------------------------------------------------------- ONNX


@pytest.mark.parametrize(
    ("name", "size", "beside"),
    [
        ("resnet-small", 20, False),
        ("support.homemade.Net", 8, False),
        ("support.homemade.Net", 8, True),
    ],
)
def test_onnx_takes_any_batch_size(tmp_path, monkeypatch, capfd, name, size, beside):
    if beside:
        monkeypatch.setattr(exporting, "MAX_ONNX_BYTES", 0)
    source = encoder_file(tmp_path, name, size)
    out = export(source, to="onnx")
    captured = capfd.readouterr()
    assert len(captured.out.splitlines()) == 5
    assert captured.err == ""
    assert (out / "model.onnx.data").exists() == beside
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 5):
        x = torch.randn(n, 3, size, size)
        (found,) = session.run(["features"], {"images": x.numpy()})
        np.testing.assert_allclose(found, features(source, x).numpy(), rtol=0, atol=CLOSE)


def test_an_error_of_the_onnx_exporter_is_one_sentence(tmp_path, monkeypatch):
    def refuses(*_, **__):
        raise RuntimeError("data-dependent\nbranch")

    monkeypatch.setattr(torch.onnx, "export", refuses)
    with pytest.raises(
        UserError, match=r"support\.homemade\.Net cannot be written as ONNX: data-dependent branch"
    ):
        export(encoder_file(tmp_path, "support.homemade.Net", 8), to="onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]


# ----------------------------------------------------------------------------- a user's own network


def test_safetensors_of_a_users_own_network(tmp_path):
    from support.homemade import Net

    source = encoder_file(tmp_path, "support.homemade.Net", 8, width=6)
    out = export(source, to="safetensors", out=tmp_path / "out")
    model = Net(width=6)
    model.load_state_dict(load_file(out / "encoder.safetensors"))
    assert_same(model, source, 8)
    assert smi.load(out).digest() == smi.load(source).digest()
    assert smi.load(out).settings == {"name": "support.homemade.Net", "width": 6}


@pytest.mark.parametrize("to", ["timm", "torchvision"])
def test_other_libraries_lack_a_users_own_network(tmp_path, to):
    with pytest.raises(
        UserError,
        match=f"{to} has no support.homemade.Net, a network of your own: "
        "export it --to onnx or safetensors",
    ):
        export(encoder_file(tmp_path, "support.homemade.Net", 8), to=to)


# ------------------------------------------------------------------------------- the shipped script


@pytest.mark.parametrize(
    ("to", "name", "absent"),
    [
        ("onnx", "support.homemade.Net", ["torch", "smi", "homemade"]),
        ("timm", "resnet-small", ["smi"]),
    ],
)
def test_the_script_runs_without_smi(tmp_path, to, name, absent):
    source = encoder_file(tmp_path, name, 20)
    out = export(source, to=to)
    picture = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(
        picture
    )
    for package in absent:  # a fresh environment has none of these
        (tmp_path / "absent" / package).mkdir(parents=True)
        (tmp_path / "absent" / package / "__init__.py").write_text("raise ImportError('not here')")
    result = subprocess.run(
        [sys.executable, out / "load.py", picture],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "absent"), "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    expected = features(source, smi.load(source).transform([picture]))
    assert result.stdout.startswith(f"{picture}: {list(expected.shape)} ")
    numbers = [float(word) for word in result.stdout.split("]")[1].split()[:5]]
    assert numbers == pytest.approx(expected[0, :5].tolist(), abs=2e-4)
    assert len(set(numbers)) > 1


def test_a_margin_is_cropped_off_and_said(tmp_path, capsys):
    """timm's own transform then makes nearly the same input."""
    settings = {"stem": "standard", "layers": [1, 1, 1, 1]}
    source = encoder_file(tmp_path, "resnet18", 56, resolution=64, **settings)
    out = export(source, to="timm")
    said = capsys.readouterr().out.splitlines()[1]
    assert said == (
        "512 features of images of 56 × 56 pixels: resize the shorter side to 64, keep the centre "
        "of 56 × 56"
    )
    about = json.loads((out / "preprocessing.json").read_text())
    assert about["resize_shorter_side"] == 64
    assert about["center_crop"] == about["resize"] == [56, 56]
    config = json.loads((out / "config.json").read_text())["pretrained_cfg"]
    assert config["crop_pct"] == 0.875
    config["input_size"] = tuple(config["input_size"])
    config.pop("num_classes")
    transform = timm.data.create_transform(**config)
    photograph = sample_photographs()[0]
    ours = smi.load(source).transform(photograph)
    difference = (transform(photograph) - ours).abs()
    assert difference.max() < 8 / 255 / 0.2  # the long side is cropped by another fraction
    assert difference.mean() < 0.3 / 255 / 0.2


@pytest.mark.parametrize(("size", "resolution"), [(8, None), (8, 13), (16, 8), (14, 16)])
def test_load_py_preprocesses_as_smi_does(tmp_path, size, resolution):
    source = encoder_file(tmp_path, "support.homemade.Net", size, resolution=resolution)
    encoder = smi.load(source)
    preprocess = runpy.run_path(str(export(source, to="safetensors") / "load.py"))["preprocess"]
    noise = np.random.default_rng(0).integers(0, 256, (50, 37, 4), dtype=np.uint8)
    photograph = Image.fromarray(
        np.kron(noise[..., :3], np.ones((9, 9, 1), dtype=np.uint8))
    )  # large enough to be decoded at a fraction
    turned = Image.Exif()
    turned[0x0112] = 6
    images = {
        "photograph.jpg": photograph,
        "transparent.png": Image.fromarray(noise),
        "grey.png": photograph.convert("L"),
        "palette.gif": photograph.convert("P"),
        "print.jpg": photograph.convert("CMYK"),
        "deep.png": Image.fromarray(noise[..., 0].astype(np.uint16) * 257),
        "turned.jpg": photograph,
    }
    for name, image in images.items():
        image.save(tmp_path / name, **({"exif": turned} if name == "turned.jpg" else {}))
        # A rotated image is resized in another order, with rounding between the two sides.
        allowed = 1.01 / 255 / 0.2 if name == "turned.jpg" else CLOSE
        with Image.open(tmp_path / name) as opened:
            found = preprocess(opened)
        torch.testing.assert_close(
            found,
            encoder.transform([tmp_path / name]),
            rtol=0,
            atol=allowed,
            msg=lambda text, name=name: name + text,
        )


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_load_py_scales_more_than_8_bits(tmp_path, dtype):
    source = encoder_file(tmp_path, "support.homemade.Net", 8)
    weights, about = read_weights(source)
    save_encoder(source, weights, about | {"value_range": [100.5, 3000]})
    folder = export(source, to="safetensors")
    assert smi.load(folder).value_range == (100.5, 3000)
    preprocess = runpy.run_path(str(folder / "load.py"))["preprocess"]
    values = np.random.default_rng(0).integers(0, 4096, (20, 16)).astype(dtype)
    Image.fromarray(values).save(tmp_path / "deep.tif")
    with Image.open(tmp_path / "deep.tif") as opened:
        found = preprocess(opened)
    expected = smi.load(source).transform([tmp_path / "deep.tif"])
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


# ------------------------------------------------------------------------------ whole or not at all


def test_an_export_that_differs_is_not_written_and_the_old_one_is_kept(tmp_path, monkeypatch):
    source = encoder_file(tmp_path, "support.homemade.Net", 8)
    out = export(source, to="safetensors", out=tmp_path / "deep" / "out")
    before = files(tmp_path)
    right = exporting.save_encoder

    def wrong(path, weights, about):
        right(
            path,
            {
                name: tensor + 3e-3 if name == "conv.weight" else tensor
                for name, tensor in weights.items()
            },
            about,
        )

    monkeypatch.setattr(exporting, "save_encoder", wrong)
    for place in (out, tmp_path / "deeper" / "still" / "out"):
        with pytest.raises(
            UserError,
            match=r"safetensors's features differ from the encoder's by up to \S+, above 1e-04",
        ) as caught:
            export(source, to="safetensors", out=place)
        assert "\n" not in str(caught.value)
        assert files(tmp_path) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", source.name]
        assert list((tmp_path / "deep").iterdir()) == [out]


def test_wrong_preprocessing_is_an_error(tmp_path, monkeypatch):
    template = load_script.LOAD_TEMPLATE.template
    wrong = template.replace("Resampling.BILINEAR", "Resampling.BICUBIC")
    monkeypatch.setattr(load_script, "LOAD_TEMPLATE", Template(wrong))
    with pytest.raises(
        UserError, match=r"inputs of the export's load\.py differ from the encoder's by up to"
    ):
        export(encoder_file(tmp_path, "support.homemade.Net", 8), to="safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]


def test_nan_features_are_an_error(tmp_path):
    source = encoder_file(tmp_path, "support.homemade.Net", 8)
    weights = load_file(source) | {"norm.bias": torch.full((8,), torch.nan)}
    with safe_open(source, "pt") as file:
        about = json.loads(file.metadata()["smi"])
    save_encoder(source, weights, about)
    with pytest.raises(UserError, match="by up to nan"):
        export(source, to="safetensors")


def test_a_second_export_replaces_the_first(tmp_path):
    source, out = encoder_file(tmp_path, "resnet18", 8, layers=[1, 1, 1, 1]), tmp_path / "out"
    out.mkdir()  # an empty folder may be replaced
    export(source, to="timm", out=out)
    (out / "__pycache__").mkdir()  # load.py was imported
    (out / "eval").mkdir()
    (out / "eval" / "knn.json").write_text("a result")  # it was evaluated, which is kept
    export(source, to="safetensors", out=out)
    assert {path.name for path in out.iterdir()} == {
        "encoder.safetensors",
        "preprocessing.json",
        "load.py",
        "eval",
    }
    assert (out / "eval" / "knn.json").read_text() == "a result"
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, "out"]
    assert out.stat().st_mode & 0o777 == 0o755
    assert (
        export(out, to="timm") == tmp_path / "export-timm"
    )  # an export can be exported, and lands beside it


def test_other_folders_are_not_replaced(tmp_path, monkeypatch):
    source, out = encoder_file(tmp_path, "support.homemade.Net", 8), tmp_path / "out"
    for name, said in (
        ("thesis.tex", "is not an export"),
        ("preprocessing.json", "holds thesis.tex, which is not part of an export"),
    ):
        out.mkdir(exist_ok=True)
        (out / name).write_text("years")
        with pytest.raises(UserError, match=said):
            export(source, to="safetensors", out=out)
    with pytest.raises(UserError, match="is a file"):
        export(source, to="safetensors", out=source)
    assert set(files(out).values()) == {b"years"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^\. is or holds the working directory"):
        export(source, to="safetensors", out=".")
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, "out"]


# ------------------------------------------------------------------------ images for the comparison


def test_images_of_a_folder_are_not_cached(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(3):
        Image.fromarray(
            np.random.default_rng(i).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        ).save(folder / f"{i}.png")
    source = encoder_file(tmp_path, "support.homemade.Net", 8, data=str(folder))
    out = export(source, to="safetensors")
    assert (
        capsys.readouterr().out.splitlines()[-1] == f"largest difference 0 on 3 images of {folder}"
    )
    assert not list((tmp_path / "cache").rglob("*.npy"))
    # The folder means nothing to others, so none of what leaves this machine names it.
    assert not [name for name, content in files(out).items() if str(folder).encode() in content]
    with pytest.raises(UserError, match="there is no dataset or folder 'nowhere'"):
        export(source, to="safetensors", data="nowhere")


def test_photographs_are_the_fallback_for_missing_images(tmp_path, capsys):
    source = encoder_file(tmp_path, "support.homemade.Net", 8, data=str(tmp_path / "gone"))
    export(source, to="safetensors")
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "largest difference 0 on 16 images of two photographs of scikit-learn "
        f"({tmp_path / 'gone'} is not available)"
    )
    pieces = sample_photographs()
    assert len({piece.tobytes() for piece in pieces}) == 16


# --------------------------------------------------------------------- missing packages and formats


@pytest.mark.parametrize(
    ("to", "package", "said"),
    [("torchvision", "torchvision", "torchvision"), ("onnx", "onnxscript", r"'smi-ssl\[onnx\]'")],
)
def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch, to, package, said):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=f"{to} needs {package}, which is not installed: pip install {said}$"
    ):
        export(tmp_path, to=to)


def test_an_unknown_format_lists_the_formats():
    with pytest.raises(
        UserError,
        match="no format 'gguf': choose one of safetensors, timm, torchvision, hf-hub, onnx",
    ):
        export("runs/mine", to="gguf")


# ------------------------------------------------------------------------------ encoders of timm


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("to", ["safetensors", "timm", "onnx"])
def test_an_encoder_of_timm_is_exported_into_the_working_directory(published, to, capsys):
    out = export(published["folder"], to=to)
    assert out == Path(f"{source_path(published['folder'])}-export") / to
    assert out.parent.name.endswith("-hub-export")
    *_, difference = capsys.readouterr().out.splitlines()
    assert difference.endswith("on 16 images of two photographs of scikit-learn")
    if to == "onnx":
        return
    assert smi.load(out).digest() == smi.load(published["folder"]).digest()


@pytest.mark.usefixtures("home")
def test_two_encoders_of_timm_have_their_own_folders(published):
    first, second = (export(published[kind], to="timm") for kind in ("file", "folder"))
    assert first.resolve() != second.resolve()
    assert smi.load(first).image_size != smi.load(second).image_size


@pytest.mark.usefixtures("home")
def test_a_tag_of_timm_is_not_part_of_the_exported_network(published, tmp_path):
    """The tag names weights, and the exported ones are others."""
    out = export(published["tag"], to="timm")
    assert json.loads((out / "config.json").read_text())["architecture"] == "resnet10t"
    script = (out / "load.py").read_text()
    assert "resnet10t.c3_in1k" not in script.partition("def load")[2]
    assert smi.load(out).settings["name"] == "resnet10t.c3_in1k"
    again = timm.create_model(f"local-dir:{out.resolve()}", pretrained=True, num_classes=0)
    assert_same(again, out, smi.load(out).image_size)


def test_a_tagged_resnet_is_exported_for_torchvision(tmp_path):
    source = encoder_file(tmp_path, "resnet18.a1_in1k", 48, stem="standard")
    out = export(source, to="torchvision")
    model = torchvision.models.resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(torch.load(out / "model.pth", weights_only=True))
    assert_same(model, source, 48)


@pytest.mark.usefixtures("home")
def test_a_network_that_torchvision_lacks_is_refused(published):
    with pytest.raises(UserError, match="torchvision has no resnet10t with the same parameter"):
        export(published["file"], to="torchvision")
    assert not list(Path(".").glob("*-export"))
