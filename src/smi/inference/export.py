"""Export an encoder for other libraries: weights, preprocessing, and a script that loads them.

export("runs/mine", to="timm")
# runs/mine/export/timm: model.safetensors, config.json, preprocessing.json, load.py

Before the folder gets its name, its own load.py loads the encoder again, and the features of both
are compared on real images. A classifier is one network here, from pixels to probabilities.
"""

import contextlib
import importlib.util
import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from smi import __version__
from smi.device import Runtime
from smi.errors import UserError
from smi.files import disk_errors, expand, sync, write_json, write_text
from smi.inference.card import write_description
from smi.inference.classifier import is_classifier, load_classifier
from smi.inference.export_folder import PREPROCESSING, default_folder, whole_folder
from smi.inference.export_network import FORMATS, SCRIPT, Network
from smi.inference.hub import check_repository, upload
from smi.inference.load_script import load_script
from smi.inference.verify_export import compare_features, reason_of, verification_images
from smi.nn.weights import EXPORT_KEY, HUB_CONFIG, HUB_SCHEME
from smi.runs.checkpoint import save, save_encoder
from smi.runs.encoder import Pretrained, load
from smi.terminal import printable, quietly, say, suggest
from smi.views.normalisation import KEPT_SHARE, kept_side

MAX_ONNX_BYTES = 1_900_000_000  # one file holds up to 2 GB, so larger weights go beside it


def export(
    source: str | Path,
    *,
    to: str,
    out: str | Path | None = None,
    data: str | Path | None = None,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Write an encoder or a classifier, whole and verified or not at all, and return the folder.

    folder = export("runs/mine", to="onnx")

    to: safetensors, timm, torchvision, onnx, hf-hub, or hf-hub:ORG/NAME, which also uploads the
    folder to Hugging Face's hub. A classifier can only be written as ONNX. out: None is
    export/FORMAT in the folder of a run or classifier, export-FORMAT beside a file, or
    NAME-export/FORMAT for an encoder of timm. data: images for the comparison; None takes the
    dataset of the pretraining, or two photographs if it is not available. Only `root` of the
    runtime is used.
    """
    _check_format(to)
    to, uploads, repository = to.partition(":")
    license = check_repository(repository) if uploads else {}
    encoder, network, classes = _load(source, to)
    folder = expand(out) if out is not None else default_folder(encoder.source, to)
    place = f"{HUB_SCHEME}{repository}" if uploads else str(folder)
    with quietly(quiet):
        with whole_folder(folder) as partial:
            images, dataset = verification_images(encoder, data, runtime.root)
            with disk_errors(f"writing {folder}"):
                _write(partial, encoder, network, to, classes)
                if to == "hf-hub":
                    title = repository or (network.label if out is None else folder.resolve().name)
                    page = place if uploads else "."
                    write_description(
                        partial, encoder, network, place=page, title=title, license=license
                    )
                for written in partial.iterdir():
                    sync(written)
            difference = compare_features(partial, encoder, images, to, _output(classes))
        say(_describe_files(folder, FORMATS[to].file))
        outputs = (
            f"{_output(classes)} of {encoder.dim:,} classes, for"
            if classes
            else (f"{encoder.dim:,} features of")
        )
        say(f"{outputs} {_describe_input(encoder)}")
        if uploads:
            commit, private = upload(folder, repository, f"Upload {network.label}")
            place += f"@{commit}"  # of this upload, also when the repository has a newer one
        if to == "hf-hub":
            lines = network.how_to_load_from_hub(place, encoder.image_size)
        else:
            lines = network.how_to_load(folder, to, encoder.image_size, _output(classes))
        for line in lines:
            say(line)
        shown = f"{difference:.1e}" if difference else "0"
        say(f"largest difference {shown} on {len(images)} images of {dataset}")
        if uploads:
            say(f"uploaded to {HUB_SCHEME}{repository}: {_describe_access(private)}")
    return folder


def _load(source: str | Path, to: str) -> tuple[Pretrained, Network, tuple[str, ...]]:
    """Return what is exported, how its network is built, and the classes of a classifier."""
    if not is_classifier(source):
        encoder = load(source)
        network = Network.of(encoder)
        network.check(to)
        return encoder, network, ()
    if to != "onnx":
        raise UserError(
            f"{printable(str(source))} is a classifier, which is exported --to onnx: for {to}, "
            "export the run or the encoder that it was trained on"
        )
    classifier = load_classifier(source)
    return classifier.from_pixels(), Network.of(classifier.encoder), classifier.classes


def _output(classes: tuple[str, ...]) -> str:
    """Return the name of the network's output."""
    return "probabilities" if classes else "features"


def _describe_access(private: bool) -> str:
    """Say who can load an uploaded encoder."""
    return "private, until you change it on its page" if private else "public"


def _check_format(to: str) -> None:
    """Raise a UserError if the format is unknown or its packages are missing."""
    name = "hf-hub" if to.startswith(HUB_SCHEME) else to
    if name not in FORMATS:
        raise UserError(f"there is no format {to!r}: {suggest(to, FORMATS)}")
    form = FORMATS[name]
    if missing := [name for name in form.imports if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"{to} needs {missing[0]}, which is not installed: pip install {form.install}"
        )


def _describe_files(folder: Path, weights: str) -> str:
    """List the files of an export, with the size of the weights."""
    names = sorted(path.name for path in folder.iterdir())
    names.remove(weights)
    megabytes = (folder / weights).stat().st_size / 1e6
    return f"{folder}: {weights} ({megabytes:.1f} MB), {', '.join(names)}"


def _describe_input(encoder: Pretrained) -> str:
    """Describe the images that the network takes, and the crop that makes them."""
    size, side = encoder.image_size, encoder.resolution
    kept = kept_side(side, size)
    crop = f": resize the shorter side to {side}, keep the centre of {kept} × {kept}"
    resize = f", resize it to {size} × {size}" if kept != size else ""
    return f"images of {size} × {size} pixels" + (crop + resize if kept < side else "")


# ---------------------------------------------------------------------------------------- writing


def _write(
    folder: Path, encoder: Pretrained, network: Network, to: str, classes: tuple[str, ...]
) -> None:
    """Write all files of an export."""
    weights = encoder.network.state_dict()
    path = folder / FORMATS[to].file
    if to == "onnx":
        _write_onnx(path, encoder, _output(classes))
        if classes:
            _name_classes(path, classes)
    elif to == "torchvision":
        save(
            path,
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()},
        )
    else:
        save_encoder(path, weights, _header(encoder, network))
    if to == "hf-hub":
        exported = {"version": __version__, "encoder": network.settings, "digest": encoder.digest()}
        config = _timm_config(encoder, network) | {EXPORT_KEY: exported}
        write_json(folder / HUB_CONFIG, config)
    # With a changed stem, timm would build a network that these weights do not fit.
    if to == "timm" and not network.outside_timm:
        write_json(folder / HUB_CONFIG, _timm_config(encoder, network))
    about = _preprocessing(encoder, network, to)
    if classes:
        about["num_classes"] = about.pop("num_features")
        about["classes"] = list(classes)
    write_json(folder / PREPROCESSING, about)
    write_text(folder / SCRIPT, load_script(network, encoder.dim, to, _output(classes)))


def _write_onnx(path: Path, encoder: Pretrained, output: str) -> None:
    size = encoder.image_size
    num_bytes = sum(tensor.nbytes for tensor in encoder.network.state_dict().values())
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # The exporter warns about itself; the comparison shows whether it worked.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                encoder.network,
                (torch.zeros(2, 3, size, size),),
                str(path),
                input_names=["images"],
                output_names=[output],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=num_bytes > MAX_ONNX_BYTES,
                verbose=False,
            )
        except OSError:
            raise
        except Exception as error:  # a user's own network may fail anywhere in the exporter
            raise UserError(
                f"the encoder {encoder.settings['name']} cannot be written as ONNX: "
                f"{reason_of(error)}"
            ) from error


def _name_classes(path: Path, classes: tuple[str, ...]) -> None:
    """Add the names of the classes to an ONNX file, as JSON, so that it is all one needs."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    onnx.helper.set_model_props(model, {"classes": json.dumps(classes)})
    onnx.save(model, str(path))


def _header(encoder: Pretrained, network: Network) -> dict[str, Any]:
    """Return the metadata of a safetensors file, from which `smi.load` builds the encoder."""
    return {
        "encoder": network.settings,
        "image_size": encoder.image_size,
        "resolution": encoder.resolution,
        "mean": encoder.mean,
        "std": encoder.std,
        "about": encoder.origin(),
    } | _value_range(encoder)


def _preprocessing(encoder: Pretrained, network: Network, to: str) -> dict[str, Any]:
    """Return the content of preprocessing.json."""
    side = encoder.resolution
    kept = kept_side(side, encoder.image_size)
    return {
        "input_size": [3, encoder.image_size, encoder.image_size],
        "color": "RGB",
        "resize_shorter_side": side,
        "center_crop": [kept, kept],
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
    } | _value_range(encoder)


def _value_range(encoder: Pretrained) -> dict[str, Any]:
    """Return the values that become 0 and 255 in images of more than 8 bits, if there are any."""
    return {} if encoder.value_range is None else {"value_range": list(encoder.value_range)}


def _timm_config(encoder: Pretrained, network: Network) -> dict[str, Any]:
    """Return config.json as timm writes it for the Hugging Face Hub.

    A network that timm cannot build has a name by which timm's error says so.
    """
    only_ours = f"{network.label} of smi: {network.outside_timm}"
    return {
        "architecture": only_ours if network.outside_timm else network.name,
        "num_classes": 0,
        "num_features": encoder.dim,
        "model_args": {} if network.outside_timm else network.arguments,
        "pretrained_cfg": {
            "input_size": [3, encoder.image_size, encoder.image_size],
            "interpolation": "bilinear",
            "crop_pct": KEPT_SHARE if encoder.resolution > encoder.image_size else 1.0,
            "crop_mode": "center",
            "mean": list(encoder.mean),
            "std": list(encoder.std),
            "num_classes": 0,
        },
    }
