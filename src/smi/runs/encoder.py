"""Load a trained encoder: of a run, from a file of weights, or one that timm publishes.

encoder = load("runs/mine")                        # or "encoder.safetensors", "timm:resnet18"
h = encoder(encoder.transform("cat.jpg"))          # [1, F]
"""

import hashlib
import io
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from smi.data import DATASET_NAMES
from smi.data.decoder import FORMATS, ValueRange, decode, planes
from smi.device import device_of
from smi.errors import UserError
from smi.files import expand
from smi.imports import import_path
from smi.nn import Encoder, create_encoder
from smi.nn.encoders import MAX_CIFAR_STEM_SIDE, is_import_path, is_resnet_name
from smi.nn.weights import (
    SCHEMES,
    hub_network,
    hub_weights,
    input_of,
    load_weights,
    read_tensors,
    timm_weights,
)
from smi.runs.run import START, Run, is_run
from smi.seeds import derive
from smi.terminal import announce, printable
from smi.views.normalisation import KEPT_SHARE, normalise
from smi.views.policies import Triple

# The names that `smi export` gives to its files for safetensors and for timm.
WEIGHTS = ("encoder.safetensors", "model.safetensors")
TIMM_SCHEME = "timm:"


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

    def transform(
        self, images: "str | Path | Image.Image | Tensor | Sequence[str | Path | Image.Image]"
    ) -> Tensor:
        """Return images as evaluation reads them: float [N, 3, S, S].

        images: files, PIL images, or uint8 [N, 3, H, H] or [3, H, H]. A single image becomes a
        batch of 1. Files and larger images are cropped at their centre (`normalise`).
        """
        if isinstance(images, Tensor):
            pixels = _check_pixels(images)
        else:
            sequence = [images] if isinstance(images, str | Path | Image.Image) else images
            pixels = torch.stack(
                [square(image, self.resolution, self.value_range) for image in sequence]
            )
        return normalise(pixels.to(device_of(self, None)), self.mean, self.std, self.image_size)

    def off_the_shelf(self) -> "Pretrained | None":
        """Load the weights that the run of this encoder started from; None if from scratch."""
        start = self.source / START
        if not start.is_file():
            return None
        return _load_file(start, trusted=True).to(device_of(self, None))

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


def load(source: str | Path, *, student: bool = False) -> Pretrained:
    """Load an encoder in eval mode: of a run, from a file, or one that timm publishes.

    encoder = smi.load("runs/mine")                    # the last checkpoint of a run, or its best
    encoder = smi.load("encoder.safetensors")          # written by a run or by `smi export`
    encoder = smi.load("timm:resnet18.a1_in1k")        # also hf-hub:ORG/NAME and local-dir:PATH
    encoder = smi.load("timm:resnet18@weights.pth")    # a network of timm, weights of a file
    h = encoder(encoder.transform(["cat.jpg", "dog.jpg"]))

    student: load the encoder that the optimizer trains. It differs for DINO, which exports its
    teacher.
    """
    if str(source).startswith((TIMM_SCHEME, *SCHEMES)):
        if student:
            raise UserError(f"{source} is one encoder, without a student beside it")
        return _load_published(str(source))
    path = expand(source)
    if path.is_dir() and not is_run(path):  # a folder of `smi export`
        exported = (path / name for name in WEIGHTS)
        path = next((file for file in exported if file.is_file()), path)
    if path.is_dir():
        return _load_run(Run(path), student=student)
    if not path.is_file():
        raise UserError(f"there is no run or encoder {path}")
    if student:
        raise UserError(
            f"{path} holds one encoder, not a student beside it: give the folder of the run"
        )
    return _load_file(path)


def square(
    image: "str | Path | Image.Image", resolution: int, value_range: ValueRange | None = None
) -> Tensor:
    """Resize the shorter side of an image and crop the centre: uint8 [3, S, S].

    The pixels equal those of a store that decodes the same file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata that are not used
            if isinstance(image, Image.Image):
                bands = planes(_copy_undecoded(image), resolution, value_range)
            else:
                bands = decode(str(expand(image)), resolution, value_range)[0]
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{printable(str(image))} cannot be read: {printable(reason)}") from error
    pixels = torch.frombuffer(bytearray(b"".join(bands)), dtype=torch.uint8)
    return pixels.view(3, resolution, resolution)


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
    """Load the encoder of a run's last checkpoint."""
    config = run.config
    try:
        mean, std = run.normalization
        settings = config["encoder"]
        image_size = config["views"].get("input_size") or config["views"]["size"]
        about = {
            "method": config["method"]["name"],
            "data": config["data"]["source"],
            "seed": config["seed"],
        }
    except KeyError as error:
        raise UserError(f"{run.folder / 'config.yaml'} is damaged: {error} is not set") from error
    if student and run.exported_encoder != "encoder":
        about["student"] = True
    facts = run.facts
    if run.best.is_file() and not student:
        best = _load_file(run.best, trusted=True)
        encoder: Encoder = best
        step = best.about["step"]
        about |= {name: best.about[name] for name in ("share",) if name in best.about}
    else:
        state = run.state()
        encoder, step = run.encoder(state, student=student), state["step"]
    return Pretrained(
        encoder,
        settings=settings,
        image_size=image_size,
        resolution=facts.resolution,
        value_range=facts.value_range,
        mean=mean,
        std=std,
        source=run.folder,
        about=about | {"step": step, "epoch": run.epoch(step)},
        root=facts.root,
    )


def _load_published(source: str) -> Pretrained:
    """Load an encoder of timm or its hub, or a network of timm with the weights of a file."""
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


def source_path(source: str | Path) -> Path:
    """Return the path of an encoder; for one of timm, a name that no file has."""
    if not str(source).startswith((TIMM_SCHEME, *SCHEMES)):
        return expand(source)
    return Path(re.sub(r"[^A-Za-z0-9._-]+", "-", str(source)))


def _load_file(path: Path, *, trusted: bool = False) -> Pretrained:
    """Load an encoder from a .safetensors file with smi's header.

    trusted: it belongs to the folder of a run, whose config.yaml names the network, too.
    """
    weights, about = read_weights(path)
    try:
        settings, image_size, mean, std = (
            about[name] for name in ("encoder", "image_size", "mean", "std")
        )
        if not trusted:
            settings = _safe_settings(settings, path)
        encoder = create_encoder(**settings, image_size=image_size)
        encoder.network.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    return Pretrained(
        encoder,
        settings=settings,
        image_size=image_size,
        resolution=about.get("resolution"),
        value_range=about.get("value_range"),
        mean=tuple(mean),
        std=tuple(std),
        source=path,
        about=about.get("about"),
    )


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
    except ValueError as error:
        raise UserError(f"{path} cannot be loaded: its header is damaged ({error})") from error
    return weights, about


def _safe_settings(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Refuse settings that could run code or read another file: a file may come from anywhere."""
    name = str(settings["name"])
    if is_import_path(name):
        target = import_path(name)
        if not (isinstance(target, type) and issubclass(target, nn.Module)):
            raise UserError(
                f"{path} names {name}, which is not a network class, so it is not called: "
                "load the folder of the run if you trust it"
            )
    return {key: value for key, value in settings.items() if key != "checkpoint_path"}
