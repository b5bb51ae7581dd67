"""A trained encoder from a run's folder or a file of weights, ready to call.

encoder = load("runs/mine")                        # or "encoder.safetensors"
h = encoder(encoder.transform("cat.jpg"))          # [1, F]
"""

import hashlib
import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from smi.data import NAMES
from smi.seeds import derive
from smi.data.decoder import FORMATS, decode, planes
from smi.files import expand
from smi.terminal import printable
from smi.errors import UserError
from smi.device import device_of
from smi.views.normalisation import normalise
from smi.nn import Encoder, create_encoder
from smi.imports import import_path
from smi.runs.run import Run
from smi.views.policies import Triple

WEIGHTS = ("encoder.safetensors", "model.safetensors")  # as `smi export` names them, for safetensors and for timm


class Pretrained(Encoder):
    """An encoder in evaluation mode, and what its input must look like."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        settings: dict[str, Any],
        image_size: int,
        mean: Triple,
        std: Triple,
        resolution: int | None = None,
        source: Path,
        about: dict[str, Any] | None = None,
        root: str | None = None,
    ):
        """settings: what `create_encoder` made it of. resolution: pixels that files are kept at before they become image_size; None: that.

        source: the run's folder or the file. about: of a run, its method, data, epoch, step and seed. root: where its named set lies.
        """
        super().__init__(encoder.network, encoder.dim)
        self.settings, self.image_size, self.mean, self.std = settings, image_size, mean, std
        self.resolution = resolution or image_size
        self.source, self.about, self.root = source, about or {}, root
        self.eval()

    def transform(self, images: "str | Path | Image.Image | Tensor | Sequence[str | Path | Image.Image]") -> Tensor:
        """Float [N, 3, S, S], as evaluation makes it: of files, PIL images, or uint8 [N, 3, H, H] or [3, H, H]. One is a batch of 1."""
        if isinstance(images, Tensor):
            if images.dtype != torch.uint8 or images.ndim not in (3, 4) or images.shape[-3] != 3 or images.shape[-1] != images.shape[-2]:
                raise UserError(f"images must be uint8 [N, 3, H, H], not {str(images.dtype).removeprefix('torch.')} {list(images.shape)}")
            pixels = images if images.ndim == 4 else images[None]
        else:
            several = [images] if isinstance(images, str | Path | Image.Image) else images
            pixels = torch.stack([square(image, self.resolution) for image in several])
        return normalise(pixels.to(device_of(self, None)), self.mean, self.std, self.image_size)

    def untrained(self) -> "Pretrained":
        """The network as pretraining started it, from the run's seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.about.get("seed", 0), "encoder"))
            encoder = create_encoder(**self.settings, image_size=self.image_size)
        return Pretrained(
            encoder.to(device_of(self, None)),
            settings=self.settings,
            image_size=self.image_size,
            resolution=self.resolution,
            mean=self.mean,
            std=self.std,
            source=self.source,
        )

    def origin(self) -> dict[str, Any]:
        """What may be told to others: no path of this machine."""
        return {name: value for name, value in self.about.items() if name != "data" or value in NAMES}

    def digest(self) -> str:
        """The same for the same weights and preprocessing, wherever they lie."""
        found = hashlib.sha256(json.dumps([self.image_size, self.resolution, self.mean, self.std]).encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            found.update(
                tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else str(tensor.item()).encode()
            )
        return found.hexdigest()[:16]


def load(source: str | Path) -> Pretrained:
    """From a run's folder, with the weights of its last checkpoint, or from a .safetensors file that a run or `smi export` wrote."""
    path = expand(source)
    if path.is_dir() and not (path / "config.yaml").is_file():  # what `smi export` made
        path = next((path / name for name in WEIGHTS if (path / name).is_file()), path)
    if path.is_dir():
        return _of_run(Run(path))
    if not path.is_file():
        raise UserError(f"there is no run or encoder {path}")
    return _of_file(path)


def square(image: "str | Path | Image.Image", resolution: int) -> Tensor:
    """The middle of an image, its shorter side made `resolution` pixels: uint8 [3, S, S]. To the pixel what a store reads of the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata that are not looked at
            bands = planes(_apart(image), resolution) if isinstance(image, Image.Image) else decode(str(expand(image)), resolution)[0]
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{printable(str(image))} cannot be read: {printable(reason)}") from error
    return torch.frombuffer(bytearray(b"".join(bands)), dtype=torch.uint8).view(3, resolution, resolution)


def _apart(image: Image.Image) -> Image.Image:
    """A JPEG is decoded at a fraction of its size, which would shrink the caller's, if that is not read yet."""
    file = getattr(image, "fp", None)
    if image.format not in ("JPEG", "MPO") or not getattr(image, "tile", None) or file is None:
        return image
    position = file.tell()
    file.seek(0)
    copy = Image.open(io.BytesIO(file.read()), formats=FORMATS)
    file.seek(position)
    return copy


def _of_run(run: Run) -> Pretrained:
    config = run.config
    try:
        mean, std = run.normalization
        settings, image_size, resolution = config["encoder"], config["views"]["size"], run.about.get("resolution")
        about = {"method": config["method"]["name"], "data": config["data"]["source"], "seed": config["seed"]}
    except KeyError as error:
        raise UserError(f"{run.folder / 'config.yaml'} is damaged: it does not say {error}") from error
    state = run.state()
    return Pretrained(
        run.encoder(state),
        settings=settings,
        image_size=image_size,
        resolution=resolution,
        mean=mean,
        std=std,
        source=run.folder,
        about=about | {"step": state["step"], "epoch": run.epoch(state["step"])},
        root=run.about.get("root"),
    )


def _of_file(path: Path) -> Pretrained:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get("smi")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a file of safetensors: give a run's folder, or an encoder that one or `smi export` wrote"
        ) from error
    if header is None:
        raise UserError(f"{path} does not say which network its weights are of: give a run's folder, or an encoder that smi wrote")
    try:
        about = json.loads(header)
        settings, image_size, mean, std = (about[name] for name in ("encoder", "image_size", "mean", "std"))
        encoder = create_encoder(**_harmless(settings, path), image_size=image_size)
        encoder.network.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    return Pretrained(
        encoder,
        settings=settings,
        image_size=image_size,
        resolution=about.get("resolution"),
        mean=tuple(mean),
        std=tuple(std),
        source=path,
        about=about.get("about"),
    )


def _harmless(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """A file of weights comes from anywhere: it may name a class of networks, and nothing else that could be called, nor another file."""
    name = str(settings["name"])
    if "." in name:
        found = import_path(name)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise UserError(
                f"{path} asks for {name}, which is no class of networks, so it is not called: load the run's folder if you trust it"
            )
    return {key: value for key, value in settings.items() if key != "checkpoint_path"}
