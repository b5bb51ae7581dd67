"""Load a trained encoder: of a run, from a file of weights, or one that timm publishes.

encoder = load("runs/mine")                        # or "encoder.safetensors", "timm:resnet18"
h = encoder(encoder.transform(["cat.jpg"]))        # [1, F]
dataset = ImageFolder("photos", transform=encoder.transform)
"""

import hashlib
import io
import json
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from smi.data import DATASET_NAMES
from smi.data.decoder import FORMATS, ValueRange, decode, planes
from smi.device import device_of
from smi.errors import UserError
from smi.files import check_fields, damaged, expand
from smi.imports import trust as trust_paths
from smi.nn import Encoder, create_encoder
from smi.nn.encoders import (
    LOADER_SETTINGS,
    MAX_CIFAR_STEM_SIDE,
    MAX_IMAGE_SIDE,
    is_resnet_name,
    require_size,
    require_trusted_network,
)
from smi.nn.weights import (
    SCHEMES,
    digest_of,
    hub_export,
    hub_file,
    hub_network,
    hub_weights,
    input_of,
    load_weights,
    read_tensors,
    timm_weights,
)
from smi.runs.run import CONFIG, START, Run, is_run
from smi.seeds import derive
from smi.terminal import announce, printable
from smi.views.normalisation import KEPT_SHARE, normalise
from smi.views.policies import Triple

OneImage = str | Path | Image.Image | NDArray[Any]

# The names that `smi export` gives to its files for safetensors and for timm.
WEIGHTS = ("encoder.safetensors", "model.safetensors")
TIMM_SCHEME = "timm:"
# The header of a file; earlier versions wrote no digest.
HEADER_KINDS = {
    "encoder": {"name": str},
    "image_size": int,
    "mean": list,
    "std": list,
    "resolution?": int,
    "value_range?": list,
    "about?": {"step?": int, "epoch?": (int, float), "seed?": int, "method?": str, "data?": str},
    "digest?": str,
}


class Pretrained(Encoder):
    """Hold an encoder in eval mode together with the preprocessing of its input.

    settings: the arguments of `create_encoder`.
    image_size: pixels per side of the encoder's input.
    mean, std: per channel, of pixels in [0, 1].
    resolution: pixels per side that files are decoded to, before their centre is cropped if this is
        more than image_size; None is image_size.
    value_range: the values that become 0 and 255 in images of more than 8 bits, as in pretraining;
        None if it had no such images.
    source: the folder of the run, or the file of weights.
    about: method, data, epoch, step and seed of the run, and whether this is a student beside the
        exported teacher.
    root: the folder of named datasets that the run used.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        settings: dict[str, Any],
        image_size: int,
        mean: Triple,
        std: Triple,
        resolution: int | None = None,
        value_range: Sequence[float] | None = None,
        source: Path,
        about: dict[str, Any] | None = None,
        root: str | None = None,
    ):
        super().__init__(encoder.network, encoder.dim)
        self.settings = settings
        self.image_size = image_size
        self.mean = mean
        self.std = std
        self.resolution = resolution or image_size
        self.value_range = None if value_range is None else (value_range[0], value_range[1])
        self.source = source
        self.about = about or {}
        self.root = root
        self.eval()

    def transform(self, images: OneImage | Tensor | Sequence[OneImage]) -> Tensor:
        """Return one image as evaluation reads it: float [3, S, S]. Several are [N, 3, S, S].

        dataset = ImageFolder("photos", transform=encoder.transform)

        images: a file, a PIL image, an array [H, W] or [H, W, 3], or a uint8 tensor [3, H, H];
        several as a list, an array [N, H, W, 3] or a uint8 tensor [N, 3, H, H]. Files and larger
        images are cropped at their centre (`normalise`).

        The result is on the device of the encoder, but on the CPU inside a DataLoader's worker.
        """
        if isinstance(images, Tensor):
            several = images.ndim == 4
            pixels = _check_pixels(images)
        else:
            several = _are_several(images)
            sequence = cast(Sequence[OneImage], images if several else [images])
            pixels = torch.stack(
                [square(image, self.resolution, self.value_range) for image in sequence]
            )
        if get_worker_info() is None:  # a forked worker cannot use CUDA
            pixels = pixels.to(device_of(self, None))
        x = normalise(pixels, self.mean, self.std, self.image_size)
        return x if several else x[0]

    def off_the_shelf(self) -> "Pretrained | None":
        """Load the weights that the run of this encoder started from; None if from scratch."""
        start = self.source / START
        if not start.is_file():
            return None
        return _load_file(start).to(device_of(self, None))

    def untrained(self) -> "Pretrained":
        """Build the same network as pretraining initialised it, from the seed of the run."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.about.get("seed", 0), "encoder"))
            encoder = create_encoder(**self.settings, image_size=self.image_size)
        return Pretrained(
            encoder.to(device_of(self, None)),
            settings=self.settings,
            image_size=self.image_size,
            resolution=self.resolution,
            value_range=self.value_range,
            mean=self.mean,
            std=self.std,
            source=self.source,
        )

    def origin(self) -> dict[str, Any]:
        """Return the part of `about` that may be published: without paths of this machine."""
        return {
            name: value
            for name, value in self.about.items()
            if name != "data" or value in DATASET_NAMES
        }

    def digest(self) -> str:
        """Hash weights and preprocessing: equal encoders have equal digests on any machine.

        The crop of evaluation follows from the two sizes; the protocol of a result names it.
        """
        preprocessing = [self.image_size, self.resolution, self.mean, self.std]
        if self.value_range is not None:
            preprocessing.append(self.value_range)
        digest = hashlib.sha256(json.dumps(preprocessing).encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            if tensor.ndim:
                data = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
            else:
                data = str(tensor.item()).encode()
            digest.update(data)
        return digest.hexdigest()[:16]


def load(source: str | Path, *, student: bool = False, trust: bool = False) -> Pretrained:
    """Load an encoder in eval mode: of a run, from a file, or one that timm publishes.

    encoder = smi.load("runs/mine")                    # the last checkpoint of a run, or its best
    encoder = smi.load("encoder.safetensors")          # written by a run or by `smi export`
    encoder = smi.load("hf-hub:ORG/NAME@REVISION")     # of Hugging Face's hub; or local-dir:PATH
    encoder = smi.load("timm:resnet18.a1_in1k")        # of timm, with the weights of a tag
    encoder = smi.load("timm:resnet18@weights.pth")    # a network of timm, weights of a file
    h = encoder(encoder.transform(["cat.jpg", "dog.jpg"]))

    student: load the encoder that the optimizer trains. It differs for DINO, which exports its
    teacher.
    trust: import and call the network that the source names by an import path. Without it, such a
    source is refused, unless this process was given the same path: a file may come from anywhere.
    """
    if str(source).startswith((TIMM_SCHEME, *SCHEMES)):
        if student:
            raise UserError(f"{source} is one encoder, without a student beside it")
        return _load_published(str(source), trust=trust)
    path = expand(source)
    if path.is_dir() and not is_run(path):  # a folder of `smi export`
        exported = (path / name for name in WEIGHTS)
        path = next((file for file in exported if file.is_file()), path)
    if path.is_dir():
        run = Run(path)
        if trust:
            trust_paths(str(run.config["encoder"].get("name")))
        return _load_run(run, student=student)
    if not path.is_file():
        raise UserError(f"there is no run or encoder {path}")
    if student:
        raise UserError(
            f"{path} holds one encoder, not a student beside it: give the folder of the run"
        )
    return _load_file(path, trust=trust)


def square(image: OneImage, resolution: int, value_range: ValueRange | None = None) -> Tensor:
    """Resize the shorter side of an image and crop the centre: uint8 [3, S, S].

    The pixels equal those of a store that decodes the same file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata that are not used
            if isinstance(image, np.ndarray):
                bands = planes(_picture(image), resolution, value_range)
            elif isinstance(image, Image.Image):
                bands = planes(_copy_undecoded(image), resolution, value_range)
            elif isinstance(image, str | Path):
                bands = decode(str(expand(image)), resolution, value_range)[0]
            else:
                raise TypeError("give a file, a PIL image or an array [H, W, 3]")
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{_describe(image)} cannot be read: {printable(reason)}") from error
    pixels = torch.frombuffer(bytearray(b"".join(bands)), dtype=torch.uint8)
    return pixels.view(3, resolution, resolution)


def _are_several(images: object) -> bool:
    """Return whether this is a list of images, not one; raise a UserError for an empty list."""
    if isinstance(images, np.ndarray):
        several = images.ndim == 4
    else:
        several = isinstance(images, Sequence) and not isinstance(images, str | bytes)
    if several and len(cast(Sequence[Any], images)) == 0:
        raise UserError("there is no image to transform: the list is empty")
    return several


def _picture(array: NDArray[Any]) -> Image.Image:
    """Return an array [H, W] or [H, W, channels] as a PIL image."""
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in (1, 3, 4) or array.size == 0:
        raise ValueError("arrays are [H, W] or [H, W, 3]; channels come first in tensors only")
    return Image.fromarray(array[..., 0] if array.ndim == 3 and channels == 1 else array)


def _describe(image: object) -> str:
    """Name an image in an error: its path, or the type and size of its data."""
    if isinstance(image, str | Path):
        return printable(str(image))
    if isinstance(image, Image.Image):
        return f"a PIL image ({image.mode}, {image.width} × {image.height} pixels)"
    if isinstance(image, np.ndarray | Tensor):
        kind = "array" if isinstance(image, np.ndarray) else "tensor"
        return f"the {kind} of {str(image.dtype).removeprefix('torch.')} {list(image.shape)}"
    return f"an object of the type {type(image).__name__}"


def _check_pixels(images: Tensor) -> Tensor:
    """Return uint8 [N, 3, H, H], or raise a UserError."""
    shape = images.shape
    is_image = images.ndim in (3, 4) and shape[-3] == 3 and shape[-1] == shape[-2]
    if images.dtype != torch.uint8 or not is_image:
        kind = str(images.dtype).removeprefix("torch.")
        raise UserError(f"images must be uint8 [N, 3, H, H], not {kind} {list(shape)}")
    return images if images.ndim == 4 else images[None]


def _copy_undecoded(image: Image.Image) -> Image.Image:
    """Copy a JPEG that is not decoded yet: decoding at a fraction of its size would shrink it."""
    file = getattr(image, "fp", None)
    if image.format not in ("JPEG", "MPO") or not getattr(image, "tile", None) or file is None:
        return image
    position = file.tell()
    file.seek(0)
    duplicate = Image.open(io.BytesIO(file.read()), formats=FORMATS)
    file.seek(position)
    return duplicate


def _load_run(run: Run, *, student: bool) -> Pretrained:
    """Load the best encoder of a run, if it keeps one, or that of its last checkpoint."""
    run.encoder_settings()  # damage to config.yaml is said before anything else
    if run.best.is_file() and not student:
        best = _load_file(run.best)
        share = {name: best.about[name] for name in ("share",) if name in best.about}
        return _of_run(run, best, best.about.get("step", 0), share)
    return load_checkpoint(run, run.state(), student=student)


def load_checkpoint(run: Run, state: Mapping[str, Any], *, student: bool = False) -> Pretrained:
    """Load the encoder of one checkpoint of a run."""
    beside = {"student": True} if student and run.exported_encoder != "encoder" else {}
    return _of_run(run, run.build_encoder(state, student=student), state["step"], beside)


def _of_run(run: Run, encoder: Encoder, step: int, more: Mapping[str, Any]) -> Pretrained:
    """Add the preprocessing and the origin of a run to its encoder. more: entries of `about`."""
    config = run.config
    settings = run.encoder_settings()
    mean, std = run.normalization
    facts = run.facts
    preprocessing = check_preprocessing(
        {
            "image_size": config["views"].get("input_size") or config["views"]["size"],
            "resolution": facts.resolution,
            "value_range": facts.value_range,
            "mean": mean,
            "std": std,
        },
        run.folder / CONFIG,
    )
    about = {
        "method": config["method"]["name"],
        "data": config["data"]["source"],
        "seed": config["seed"],
        **more,
        "step": step,
        "epoch": run.epoch(step),
    }
    return Pretrained(
        encoder,
        settings=settings,
        **preprocessing,
        source=run.folder,
        about=about,
        root=facts.root,
    )


def _load_published(source: str, *, trust: bool) -> Pretrained:
    """Load an encoder of timm or of the hub, or a network of timm with the weights of a file."""
    if source.startswith(SCHEMES) and (exported := hub_export(source)) is not None:
        return _load_exported(source, exported["digest"], trust=trust)
    if source.startswith(TIMM_SCHEME):
        name, _, file = source.removeprefix(TIMM_SCHEME).partition("@")
        settings: dict[str, Any] = {"name": name}
        expected = input_of(settings)
    else:
        file = ""
        settings, expected = hub_network(source)
    if expected is None:
        raise UserError(f"timm does not know the input of {source}")
    if expected.size <= MAX_CIFAR_STEM_SIDE and is_resnet_name(str(settings["name"])):
        settings = {"stem": "standard"} | settings
    encoder = create_encoder(**settings, image_size=expected.size)
    if file:
        weights = read_tensors(expand(file))
    elif source.startswith(TIMM_SCHEME):
        weights = timm_weights(settings, expected.size)
    else:
        weights = hub_weights(source)
    for note in load_weights(encoder.network, weights, file or source):
        announce(note)
    return Pretrained(
        encoder,
        settings=settings,
        image_size=expected.size,
        resolution=round(expected.size / KEPT_SHARE),
        mean=expected.mean,
        std=expected.std,
        source=source_path(source),
    )


def _load_exported(source: str, digest: str, *, trust: bool) -> Pretrained:
    """Load an encoder that `smi export` put on the hub or into a folder."""
    encoder = build_encoder(*read_weights(hub_file(source, WEIGHTS[-1])), source, trust=trust)
    if encoder.digest() != digest:
        raise damaged(source, f"config.json describes {digest}, and its weights {encoder.digest()}")
    return encoder


def source_path(source: str | Path) -> Path:
    """Return the path of an encoder; for one of timm, a name that no file has."""
    if not str(source).startswith((TIMM_SCHEME, *SCHEMES)):
        return expand(source)
    return Path(re.sub(r"[^A-Za-z0-9._-]+", "-", str(source)))


def _load_file(path: Path, *, trust: bool = False) -> Pretrained:
    """Load an encoder from a .safetensors file with smi's header."""
    return build_encoder(*read_weights(path), path, trust=trust)


def build_encoder(
    weights: Mapping[str, Tensor],
    about: Mapping[str, Any],
    path: str | Path,
    *,
    trust: bool = False,
) -> Pretrained:
    """Build the encoder that the header of a file describes, with weights that must fit it."""
    settings = about["encoder"]
    if trust:
        trust_paths(settings["name"])
    require_trusted_network(settings, path)
    settings = {key: settings[key] for key in settings if key not in LOADER_SETTINGS}
    try:
        require_size(settings, {name: list(tensor.shape) for name, tensor in weights.items()})
        encoder = create_encoder(**settings, image_size=about["image_size"])
        encoder.network.load_state_dict(weights)
    except Exception as error:  # networks refuse wrong arguments in any way
        raise UserError(f"{path} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    return Pretrained(
        encoder,
        settings=settings,
        **check_preprocessing(about, path),
        source=source_path(path),
        about=about.get("about"),
    )


def check_preprocessing(values: Mapping[str, Any], path: object) -> dict[str, Any]:
    """Return the arguments of `Pretrained` that prepare images, or raise a UserError."""
    triples = {name: values[name] for name in ("mean", "std")}
    for name, triple in triples.items():
        if len(triple) != 3 or not all(map(_is_finite, triple)):
            raise damaged(path, f"{name} must be three numbers, not {triple}")
    if min(triples["std"]) <= 0:
        raise damaged(path, f"std must be above 0, not {triples['std']}")
    sizes = {name: values.get(name) for name in ("image_size", "resolution")}
    for name, size in sizes.items():
        if size is not None and not 1 <= size <= MAX_IMAGE_SIDE:
            raise damaged(path, f"{name} must be 1 to {MAX_IMAGE_SIDE} pixels, not {size}")
    value_range = values.get("value_range")
    if value_range is not None and (len(value_range) != 2 or not all(map(_is_finite, value_range))):
        raise damaged(path, f"value_range must be two numbers, not {value_range}")
    return {**{name: tuple(t) for name, t in triples.items()}, **sizes, "value_range": value_range}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < sys.float_info.max


def has_header(path: Path) -> bool:
    """Return whether a file of weights names its network, as those of smi do."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return "smi" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a safetensors file and smi's entry in its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get("smi")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a safetensors file: "
            "give the folder of a run, or an encoder that a run or `smi export` wrote"
        ) from error
    if header is None:
        raise UserError(
            f"{path} does not name the network of its weights: "
            "give the folder of a run, an encoder that smi wrote, or timm:NAME@FILE"
        )
    try:
        about: dict[str, Any] = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be loaded: its header is damaged ({error})") from error
    if not isinstance(about, dict):
        raise damaged(path, "its header does not describe an encoder")
    check_fields(about, HEADER_KINDS, path)
    if about.get("digest") not in (None, digest_of(weights)):
        raise damaged(path, "its weights have changed since they were written")
    return weights, about
