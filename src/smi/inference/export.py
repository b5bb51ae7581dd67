"""An encoder for other libraries: a folder with its weights, its preprocessing, and a script that loads it without smi.

export("runs/mine", to="timm")      # runs/mine/export/timm: model.safetensors, config.json, preprocessing.json, load.py

What was written is loaded again by its own load.py and compared with the encoder on real images before the folder gets its name.
"""

import contextlib
import difflib
import importlib.util
import io
import json
import os
import runpy
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from smi import __version__
from smi.data import load as load_images
from smi.errors import UserError
from smi.files import disk_errors, expand, sync
from smi.nn.encoders import SMALL_RESNET, Stem, stem_of, timm_terms
from smi.runs.checkpoint import save, save_encoder
from smi.runs.encoder import Pretrained, load
from smi.seeds import permutation

TOLERANCE = 1e-4  # between our features and those of the export, and between our input and that of its load.py
NUM_IMAGES = 16
LARGEST_ONNX = 1_900_000_000  # bytes: one file cannot be larger than 2 GB, so weights beyond that lie beside it
RESULTS = "eval"  # what `smi evaluate` may have put there
PREPROCESSING, SCRIPT, CONFIG = "preprocessing.json", "load.py", "config.json"


@dataclass(frozen=True)
class Format:
    file: str
    imports: tuple[str, ...]  # what its load.py imports, beside torch
    install: str  # of what might not be there


FORMATS = {
    "safetensors": Format("encoder.safetensors", ("safetensors",), "safetensors"),
    "timm": Format("model.safetensors", ("timm",), "timm"),
    "torchvision": Format("model.pth", ("torchvision",), "torchvision"),
    "onnx": Format("model.onnx", ("onnx", "onnxscript", "onnxruntime"), "'smi-ssl[onnx]'"),
}
WRITTEN = {
    PREPROCESSING,
    SCRIPT,
    CONFIG,
    "model.onnx.data",
    "__pycache__",
    *(known.file for known in FORMATS.values()),
}


def export(
    source: str | Path,
    *,
    to: str,
    out: str | Path | None = None,
    data: str | Path | None = None,
    root: str | Path | None = None,
) -> Path:
    """Write the encoder of a run, or of a file, to a folder; it is there whole and checked, or not at all.

    to: safetensors, timm, torchvision or onnx. out: default export/FORMAT in the run's folder, export-FORMAT beside a file. data: images
    to compare on; default what the run was pretrained on, or two photographs where that is not here.
    """
    if to not in FORMATS:
        close = difflib.get_close_matches(to.lower(), FORMATS, 1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(FORMATS)}"
        raise UserError(f"there is no format {to!r}: {hint}")
    form = FORMATS[to]
    if missing := [name for name in form.imports if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"{to} needs {missing[0]}, which is not installed: pip install {form.install}"
        )
    encoder = load(source)
    network = Network.of(encoder)
    network.check(to)
    folder = expand(out) if out is not None else _default_folder(encoder.source, to)
    with _whole_folder(folder) as partial:
        images, which = _images(encoder, data, root)
        with disk_errors(f"writing {folder}"):
            _write(partial, encoder, network, to)
        difference = _compare(partial, encoder, images, to)
    names = sorted(path.name for path in folder.iterdir())
    names.remove(form.file)
    size = (folder / form.file).stat().st_size / 1e6
    print(f"{folder}: {form.file} ({size:.1f} MB), {', '.join(names)}")
    print(
        f"{encoder.dim:,} features of images of {encoder.image_size} × {encoder.image_size} pixels"
    )
    print(network.how_to_load(folder, to))
    print(
        f"largest difference {f'{difference:.1e}' if difference else '0'} on {len(images)} images of {which}"
    )
    return folder


# --------------------------------------------------------------------------------------------------------------- what it is made of


@dataclass(frozen=True)
class Network:
    """How others make the network before it gets its weights."""

    settings: dict[str, Any]  # what `create_encoder` makes the same of
    name: str  # as timm has it; of a user's own, the import path
    arguments: dict[str, Any]
    stem: Stem
    width: int  # channels after a stem that is not the standard one

    @classmethod
    def of(cls, encoder: Pretrained) -> "Network":
        settings = dict(encoder.settings)
        label = settings["name"]
        if "." in label:
            return cls(settings, label, _without(settings, "name", "stem"), "standard", 0)
        settings.pop(
            "checkpoint_path", None
        )  # weights it began with, on the disk of whoever trained it
        stem = settings["stem"] = stem_of(
            encoder.network, label, encoder.image_size, settings.get("stem")
        )
        name, arguments = timm_terms(label, encoder.image_size, _without(settings, "name", "stem"))
        width = (
            0 if stem == "standard" else int(encoder.network.get_parameter("conv1.weight").shape[0])
        )
        return cls(settings, name, arguments, stem, width)

    @property
    def label(self) -> str:
        return str(self.settings["name"])

    @property
    def own(self) -> bool:
        return "." in self.name

    def check(self, to: str) -> None:
        """Whether that library has such a network."""
        if to not in ("timm", "torchvision"):
            return
        if self.own:
            raise UserError(
                f"{to} has no {self.name}, a network of your own: export it --to onnx or safetensors"
            )
        if to == "torchvision":
            models = importlib.import_module("torchvision.models")
            resnet = self.name.startswith(("resnet", "resnext", "wide_resnet")) and hasattr(
                models, self.name
            )
            if self.label == SMALL_RESNET or not resnet:
                raise UserError(
                    f"torchvision has no {self.label} with the same names of parameters, as it has of resnet18, resnet50 and their like: "
                    "export it --to timm or onnx"
                )

    def make(self, to: str, *more: str) -> list[str]:
        """The lines of Python that make it, its stem included."""
        given = [f"{name}={_literal(value)}" for name, value in self.arguments.items()]
        if self.own:
            lines = _call(f"model = {self.name.rpartition('.')[2]}", *given)
        elif to == "torchvision":
            lines = [
                *_call(f"model = torchvision.models.{self.name}"),
                "model.fc = torch.nn.Identity()  # features, not classes",
            ]
        else:
            lines = _call(
                "model = timm.create_model", _literal(self.name), "num_classes=0", *more, *given
            )
        if self.stem != "standard":
            stride = 1 if self.stem == "cifar" else 2
            lines += [
                f"# The stem is for small images: a convolution of 3 x 3 with stride {stride}, and no pooling.",
                f"model.conv1 = torch.nn.Conv2d(3, {self.width}, 3, stride={stride}, padding=1, bias=False)",
                "model.maxpool = torch.nn.Identity()",
            ]
        return lines

    def how_to_load(self, folder: Path, to: str) -> str:
        file = _literal(str(folder / FORMATS[to].file))
        if to == "safetensors":
            return f"smi.load({_literal(str(folder))}), or without smi load() of its load.py"
        if to == "onnx":
            return f"onnxruntime.InferenceSession({file}): images [batch, 3, S, S] to features"
        if self.stem != "standard":
            return f"{to} has no {self.stem} stem: load() of {folder / SCRIPT} makes the network with {to}, replaces its stem, and loads it"
        if to == "torchvision":
            return f"model.load_state_dict(torch.load({file}, weights_only=True)), of torchvision.models.{self.name}() without its fc"
        given = [f"{name}={_literal(value)}" for name, value in self.arguments.items()]
        return f"timm.create_model({', '.join([_literal(self.name), 'num_classes=0', f'checkpoint_path={file}', *given])})"


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _call(function: str, *arguments: str) -> list[str]:
    line = f"{function}({', '.join(arguments)})"
    return (
        [line]
        if len(line) <= 110
        else [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]
    )


# ------------------------------------------------------------------------------------------------------------------------ writing


def _write(folder: Path, encoder: Pretrained, network: Network, to: str) -> None:
    weights = encoder.network.state_dict()
    path = folder / FORMATS[to].file
    header = {
        "encoder": network.settings,
        "image_size": encoder.image_size,
        "resolution": encoder.resolution,
        "mean": encoder.mean,
        "std": encoder.std,
        "about": encoder.origin(),
    }
    if to == "onnx":
        _write_onnx(path, encoder)
    elif to == "torchvision":
        save(
            path,
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()},
        )
    else:
        save_encoder(path, weights, header)
    if (
        to == "timm" and network.stem == "standard"
    ):  # with another stem timm would make a network of it that these weights do not fit
        _write_json(folder / CONFIG, _timm_config(encoder, network))
    _write_json(folder / PREPROCESSING, _preprocessing(encoder, network, to))
    (folder / SCRIPT).write_text(_script(encoder, network, to), encoding="utf-8")
    for written in folder.iterdir():
        sync(written)


def _write_onnx(path: Path, encoder: Pretrained) -> None:
    size = encoder.image_size
    num_bytes = sum(tensor.nbytes for tensor in encoder.network.state_dict().values())
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter(
            "ignore"
        )  # the exporter's, about itself; whether it did well is seen when its work is run
        try:
            torch.onnx.export(
                encoder.network,
                (torch.zeros(2, 3, size, size),),
                str(path),
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=num_bytes > LARGEST_ONNX,
                verbose=False,
            )
        except OSError:
            raise
        except Exception as error:  # a network of anyone's may fail anywhere in it
            said = " ".join(str(error).split())[:200]
            raise UserError(
                f"the encoder {encoder.settings['name']} cannot be written as ONNX: {said}"
            ) from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _preprocessing(encoder: Pretrained, network: Network, to: str) -> dict[str, Any]:
    side = encoder.resolution
    return {
        "input_size": [3, encoder.image_size, encoder.image_size],
        "color": "RGB",
        "resize_shorter_side": side,
        "center_crop": [side, side],
        "resize": [encoder.image_size, encoder.image_size],
        "interpolation": "bilinear",
        "antialias": True,
        "range": [0.0, 1.0],
        "mean": list(encoder.mean),
        "std": list(encoder.std),
        "num_features": encoder.dim,
        "format": to,
        "file": FORMATS[to].file,
        "encoder": network.settings,
        "origin": encoder.origin() | {"smi": __version__},
    }


def _timm_config(encoder: Pretrained, network: Network) -> dict[str, Any]:
    """config.json as timm writes it for the Hugging Face Hub."""
    return {
        "architecture": network.name,
        "num_classes": 0,
        "num_features": encoder.dim,
        "model_args": network.arguments,
        "pretrained_cfg": {
            "input_size": [3, encoder.image_size, encoder.image_size],
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(encoder.mean),
            "std": list(encoder.std),
            "num_classes": 0,
        },
    }


def _script(encoder: Pretrained, network: Network, to: str) -> str:
    file = f'HERE / "{FORMATS[to].file}"'
    imports, needs = ["torch"], to
    if to == "onnx":
        imports, needs = ["onnxruntime"], "onnxruntime, numpy and Pillow"
        lines = [f'return onnxruntime.InferenceSession({file}, providers=["CPUExecutionProvider"])']
    elif to == "timm":
        imports += ["timm"]
        if network.stem == "standard":
            lines = network.make(to, f"checkpoint_path=str({file})")
        else:
            lines = [
                *network.make(to),
                f"timm.models.load_checkpoint(model, str({file}))  # strict",
            ]
    elif to == "torchvision":
        imports += ["torchvision"]
        lines = [
            *network.make(to),
            f"model.load_state_dict(torch.load({file}, weights_only=True), strict=True)",
        ]
    else:
        imports += ["safetensors.torch"] if network.own else ["safetensors.torch", "timm"]
        needs = f"safetensors, torch, numpy, Pillow and {network.name.rpartition('.')[0] if network.own else 'timm'}"
        lines = [
            *network.make(to),
            f"model.load_state_dict(safetensors.torch.load_file({file}), strict=True)",
        ]
    if to != "onnx":
        lines.append("return model.eval()")
    module, _, name = network.name.rpartition(".")
    return LOAD.substitute(
        label=network.label,
        dim=encoder.dim,
        needs=needs,
        imports="\n".join(
            [
                "import numpy as np",
                *(f"import {name}" for name in sorted(imports)),
                "from PIL import Image, ImageOps",
            ]
        ),
        own=f"\nfrom {module} import {name}\n" if network.own and to != "onnx" else "",
        load="\n".join(f"    {line}" for line in lines),
        kind="array" if to == "onnx" else "tensor",
        result="x" if to == "onnx" else "torch.from_numpy(x)",
        features=ONNX_FEATURES if to == "onnx" else TORCH_FEATURES,
    )


ONNX_FEATURES = """\
    return model.run(["features"], {"images": x})[0]"""
TORCH_FEATURES = """\
    with torch.inference_mode():
        return model(x)"""
LOAD = Template('''\
"""The encoder $label: $dim features of an image. Needs $needs.

model = load()
h = features(model, preprocess(Image.open("cat.jpg")))    # [1, $dim]

From a terminal: python load.py IMAGE...
"""

import json
import sys
from pathlib import Path

$imports
$own
HERE = Path(__file__).resolve().parent
ABOUT = json.loads((HERE / "preprocessing.json").read_text(encoding="utf-8"))


def load():
    """The model, on the CPU."""
$load


def preprocess(image):
    """A PIL image to a $kind of float32 [1, 3, S, S]: the middle square of the image, resized and normalised."""
    side, size = ABOUT["resize_shorter_side"], ABOUT["input_size"][-1]
    image.draft(image.mode, (side, side))  # a large JPEG is decoded at a fraction of its size, as it was in training
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits: the upper 8 count
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
    elif image.mode != "CMYK":
        image = image.convert("RGB")
    if image.size != (side, side):
        short = min(image.size)
        left, top = (image.width - short) / 2, (image.height - short) / 2
        image = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + short, top + short))
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    # Each channel as floats, so that the second size is not rounded to grey levels.
    channels = [channel.convert("F").resize((size, size), Image.Resampling.BILINEAR) for channel in image.convert("RGB").split()]
    mean, std = (np.array(ABOUT[name], dtype=np.float32)[:, None, None] for name in ("mean", "std"))
    x = ((np.stack([np.asarray(channel) for channel in channels]) / 255 - mean) / std)[None]
    return $result


def features(model, x):
    """Of [N, 3, S, S], any N: [N, $dim]."""
$features


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python load.py IMAGE...")
    model = load()
    for path in sys.argv[1:]:
        with Image.open(path) as image:
            h = features(model, preprocess(image))
        print(f"{path}: {list(h.shape)}", *(f"{value:.4f}" for value in h[0, :5].tolist()), "...")
''')


# ---------------------------------------------------------------------------------------------------------------------- comparing


def _images(
    encoder: Pretrained, data: str | Path | None, root: str | Path | None
) -> tuple[list[Image.Image], str]:
    """Some real images, and what they are of."""
    source = data if data is not None else encoder.about.get("data")
    if source is not None:
        try:
            return _some_of(source, encoder.resolution, root or encoder.root), str(source)
        except UserError:
            if data is not None:
                raise
    return _photographs(), "two photographs of scikit-learn" + (
        f" ({source} is not here)" if source is not None else ""
    )


def _some_of(source: str | Path, resolution: int, root: str | Path | None) -> list[Image.Image]:
    # Few images are wanted: from a folder these alone are decoded, to the very pixels that a cache of all would hold.
    try:
        store = load_images(source, "val", resolution=resolution, root=root, largest_cache=0)
    except UserError:  # a folder of few images may hold out none
        store = load_images(source, "train", resolution=resolution, root=root, largest_cache=0)
    try:
        pixels = store[permutation(len(store), 0, 0)[:NUM_IMAGES]]
    finally:
        store.close()
    return [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in pixels]


def _photographs() -> list[Image.Image]:
    """Pieces of the two that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    pieces = []
    for pixels in load_sample_images().images:  # uint8 [427, 640, 3]
        photograph = Image.fromarray(pixels)
        width, height = photograph.width // 2, photograph.height // 2
        corners = [
            (left * width // 3, top * height) for top in range(2) for left in range(NUM_IMAGES // 4)
        ]
        pieces += [
            photograph.crop((left, top, left + width, top + height)) for left, top in corners
        ]
    return pieces


def _compare(folder: Path, encoder: Pretrained, images: list[Image.Image], to: str) -> float:
    """The largest difference of a feature between the encoder and what load.py of the folder loads, if it is small enough."""
    # The squares of a set, and of each something that is cropped.
    shapes = [
        image
        for whole in images
        for image in (whole, whole.crop((0, 0, whole.width, max(1, whole.height * 3 // 4))))
    ]
    wanted = encoder.transform(shapes)
    x = wanted[::2].contiguous()
    try:
        shipped = runpy.run_path(str(folder / SCRIPT))
        model = shipped["load"]()
        inputs = torch.cat([torch.as_tensor(shipped["preprocess"](image)) for image in shapes])
        found = [
            torch.as_tensor(shipped["features"](model, part.numpy() if to == "onnx" else part))
            for part in (x, x[:1])
        ]
    except Exception as error:  # whatever it is, the folder is of no use
        said = " ".join(str(error).split())[:200]
        raise UserError(
            f"the export cannot be loaded and run again, so nothing was written: {said}"
        ) from error
    _largest(inputs, wanted, "inputs of the export's load.py", "the encoder's")
    with torch.inference_mode():
        expected = [encoder(part) for part in (x, x[:1])]
    return max(
        _largest(a, b, f"{to}'s features", "the encoder's")
        for a, b in zip(found, expected, strict=True)
    )


def _largest(found: Tensor, expected: Tensor, what: str, whose: str) -> float:
    if found.shape != expected.shape:
        raise UserError(
            f"{what} are {list(found.shape)} and {whose} {list(expected.shape)}, so nothing was written"
        )
    difference = (found - expected).abs().max().item()
    if not difference <= TOLERANCE:  # nor if it is no number
        raise UserError(
            f"{what} differ from {whose} by up to {difference:.1e}, above {TOLERANCE:.0e}, so nothing was written"
        )
    return difference


# ---------------------------------------------------------------------------------------------------------------------- the folder


def _default_folder(source: Path, to: str) -> Path:
    if source.is_dir():
        return source / "export" / to
    folder = source.parent
    # Beside an export, not in it: it may be replaced as a whole.
    return (
        folder.resolve().with_name(f"export-{to}")
        if (folder / PREPROCESSING).is_file()
        else folder / f"export-{to}"
    )


@contextlib.contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when all went well; else nothing is left of it, and what was there is still there."""
    place = folder.resolve()
    _refuse_others(place, folder)
    missing = [parent for parent in place.parents if not parent.exists()]
    with disk_errors(f"making {folder}"):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        partial.chmod(0o755)  # for others too, which a temporary folder is not
        yield partial
        with disk_errors(f"writing {folder}"):
            _replace(place, partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _refuse_others(place: Path, folder: Path) -> None:
    if not place.exists():
        return
    if not place.is_dir():
        raise UserError(f"{folder} is a file: choose another --out")
    names = {path.name for path in place.iterdir()}
    if names and PREPROCESSING not in names:
        raise UserError(f"{folder} exists and is no export: choose another --out")
    if others := sorted(names - WRITTEN - {RESULTS}):
        raise UserError(
            f"{folder} would be replaced, and it holds {others[0]}, which is of no export: move that away or choose another --out"
        )


def _replace(place: Path, partial: Path) -> None:
    if not place.exists():
        partial.rename(place)
        return
    if (place / RESULTS).is_dir():
        shutil.copytree(place / RESULTS, partial / RESULTS)  # each says which weights it is of
    old = Path(tempfile.mkdtemp(prefix=f".{place.name}-old-", dir=place.parent))
    os.rename(place, old)  # over the empty folder that holds the name
    try:
        partial.rename(place)
    except BaseException:
        os.rename(old, place)
        raise
    shutil.rmtree(old, ignore_errors=True)
