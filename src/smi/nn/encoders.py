"""Create encoders: images [N, 3, S, S] to features h [N, F].

    encoder = create_encoder("resnet50", image_size=32)     # with the CIFAR stem for small images
    encoder = create_encoder("resnet18.a1_in1k")            # timm's name with a tag
    encoder = create_encoder("my_package.MyNetwork")        # a class or function, by import path

An encoder is any timm model, a narrow ResNet for small machines, or a network of your own.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from smi.device import total_memory_bytes
from smi.errors import UserError
from smi.imports import import_path, refused, require_trust
from smi.terminal import suggest

Stem = Literal["standard", "cifar", "half", "quarter"]
STEMS: tuple[Stem, ...] = get_args(Stem)
# One convolution without pooling: its kernel, stride and padding.
STEM_SHAPES: dict[Stem, tuple[int, int, int]] = {
    "cifar": (3, 1, 1),
    "half": (3, 2, 1),
    "quarter": (6, 4, 1),
}

SMALL_RESNET = "resnet-small"  # a ResNet-10 of half the width: trains in minutes on two cores
# Shortcuts average pixels instead of skipping them, and no block starts as the identity: short runs
# learn better this way.
SMALL_RESNET_ARGUMENTS: dict[str, Any] = {
    "layers": (1, 1, 1, 1),
    "channels": (32, 64, 128, 256),
    "stem_type": "deep",
    "stem_width": 16,
    "avg_down": True,
    "zero_init_last": False,
}
# Pixels of an image's side. Up to these, a stem that divides the side by four (or, for the small
# ResNet, by two) leaves too little of the image.
MAX_WIDTH, MAX_DEPTH = 65_536, 1000  # of a network that a file describes
MAX_IMAGE_SIDE = 2048  # a trial pass of two larger images needs gigabytes
# Arguments of timm that read other files or download them.
LOADER_SETTINGS = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
MAX_CIFAR_STEM_SIDE = 64
MAX_SMALL_CIFAR_STEM_SIDE = 16


class Encoder(nn.Module):
    """Hold a network and the number of its features.

    `encoder(x)` is [N, dim]; `encoder.map(x)` is the feature map before pooling, if there is one.

    keep_statistics: batch norms use and keep their running statistics in training too. Trained
    networks need them: those of a batch of random views are others.
    """

    def __init__(self, network: nn.Module, dim: int):
        super().__init__()
        self.network = network
        self.dim = dim
        self.keep_statistics = False

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; batch norms with kept statistics stay as they are."""
        super().train(mode)
        if self.keep_statistics:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [N, dim] of images [N, 3, S, S]."""
        h: Tensor = self.network(x)
        return h

    def map(self, x: Tensor) -> Tensor:
        """Return the features at each position, [N, C, H, W]."""
        name = type(self.network).__name__
        forward_features = getattr(self.network, "forward_features", None)
        if forward_features is None:
            raise UserError(
                f"{name} has no feature map: it has no method forward_features, as timm models do"
            )
        features: Tensor = forward_features(x)
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            raise UserError(
                f"{name} has no feature map: its features before pooling are not "
                "[N, C, H, W] or [N, positions, C]"
            )
        if features.ndim == 3:  # tokens of a transformer; those without a position come first
            tokens = features[:, getattr(self.network, "num_prefix_tokens", 0) :]
            side = round(tokens.shape[1] ** 0.5)
            return tokens.transpose(1, 2).reshape(len(tokens), -1, side, side)
        if getattr(self.network, "output_fmt", "NCHW") == "NHWC":
            return features.permute(0, 3, 1, 2)
        return features


def create_encoder(
    name: str, *, image_size: int = 224, stem: Stem | None = None, **arguments: Any
) -> Encoder:
    """Create an encoder by its timm name, `resnet-small`, or an import path, without weights.

    arguments: passed on to the class or function that makes the network.
    stem: of a ResNet. "standard" divides the side of images by four before the first block, and so
    does "quarter" (6 x 6, stride 4, no pooling), which is cheaper; "half" divides it by two, and
    "cifar" (3 x 3, stride 1, no pooling) by one. None chooses by the image size.
    """
    if not 1 <= image_size <= MAX_IMAGE_SIDE:
        raise UserError(f"images must have 1 to {MAX_IMAGE_SIDE} pixels a side, not {image_size}")
    if stem is not None and stem not in STEMS:
        raise UserError(f"there is no stem {stem!r}: {suggest(str(stem), STEMS)}")
    require_harmless({"name": name, **arguments})
    try:
        if is_import_path(name):
            network = _create_by_path(name, arguments)
        else:
            if arguments:
                _require_memory(name, image_size, stem, arguments)
            network = _create_by_timm(name, image_size, stem, arguments)
        network.eval()  # this trial must not change batch norm statistics
        with torch.no_grad():
            h = network(torch.zeros(2, 3, image_size, image_size))
    except UserError:
        raise
    except Exception as error:  # networks refuse wrong arguments in any way
        expected = isinstance(error, TypeError | RuntimeError | AssertionError)
        if is_import_path(name) and not expected:
            raise  # of the user's own code, whose traceback helps
        raise refused(error, f"the encoder {name} with images of {image_size} pixels") from error
    if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != 2:
        got = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise UserError(
            f"the encoder {name} must turn images [N, 3, {image_size}, {image_size}] into "
            f"features [N, F]; two images gave {got}"
        )
    return Encoder(network.train(), h.shape[1])


def require_harmless(settings: Mapping[str, Any]) -> None:
    """Raise a UserError for settings by which timm would read other files, or that are no names."""
    for key in settings:
        # timm drops arguments without a value, so that a wrong name could reach an export's script.
        if not key.isidentifier():
            raise UserError(f"encoder.{key[:60]} is not a setting: it is not a name")
        if key in LOADER_SETTINGS and not is_import_path(str(settings["name"])):
            raise UserError(f"encoder.{key} is not a setting: name weights to start from by --init")


def checkpoint_activations(encoder: Encoder) -> None:
    """Compute activations again in the backward pass instead of keeping them, as timm does it.

    Batch norms see such a batch twice. The training step restores their running statistics.
    """
    name = type(encoder.network).__name__
    switch = getattr(encoder.network, "set_grad_checkpointing", None)
    try:
        if switch is None:
            raise AssertionError("it has no set_grad_checkpointing, as most timm models do")
        switch(True)
    except AssertionError as error:
        raise UserError(f"{name} cannot checkpoint its activations: {error}") from error


def is_resnet_name(name: str) -> bool:
    """Return whether a name, with or without a tag, is that of a ResNet of timm."""
    from timm.models import is_model, model_entrypoint

    network = name.partition(".")[0]
    return is_model(network) and model_entrypoint(network).__module__ == "timm.models.resnet"


def is_import_path(name: str) -> bool:
    """Return whether the name of an encoder is an import path; tags of timm have a dot, too."""
    if name.count(".") != 1:  # tags have no dot of their own
        return "." in name
    import timm

    return not timm.is_model(name.partition(".")[0])


def require_trusted_network(settings: Mapping[str, Any], file: object) -> None:
    """Raise a UserError if a file names a network by an import path, and the user does not."""
    name = str(settings.get("name"))
    if is_import_path(name):
        require_trust(name, file)


def require_size(settings: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> None:
    """Raise a UserError if the network of a file is not the size of the file's weights.

    Settings may ask for more memory than there is, so the network is made without any first.
    """
    name = str(settings["name"])
    if is_import_path(name):
        return
    arguments = {key: value for key, value in settings.items() if key not in ("name", "stem")}
    expected = _num_parameters(name, 224, settings.get("stem"), arguments)
    stored = sum(math.prod(shape) for shape in shapes.values())
    if expected is not None and expected > 2 * stored + MAX_WIDTH:
        raise UserError(f"{name} has {expected:,} parameters, and the file {stored:,}")


def _num_parameters(
    name: str, image_size: int, stem: Stem | None, arguments: dict[str, Any]
) -> int | None:
    """Count the parameters of a network without memory for them; None if it cannot be made so."""
    try:
        with torch.device("meta"):
            network = _create_by_timm(name, image_size, stem, arguments)
    except UserError:
        raise
    except Exception:  # some networks compute with numbers while they are made; others are refused
        return None
    return sum(parameter.numel() for parameter in network.parameters())


def _require_bounded(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise a UserError for a width or depth that no network has: making it would never end."""
    for key, value in arguments.items():
        values = value if isinstance(value, list | tuple) else [value]
        numbers = [abs(number) for number in values if _is_int(number)]
        is_depth = "layers" in key or "depth" in key
        if max(numbers, default=0) > MAX_WIDTH or (is_depth and sum(numbers) > MAX_DEPTH):
            raise UserError(f"encoder.{key} of {name} is too large: {str(value)[:60]}")


def _require_memory(
    name: str, image_size: int, stem: Stem | None, arguments: dict[str, Any]
) -> None:
    """Raise a UserError for a network of one's own size that is larger than the memory."""
    num_parameters = _num_parameters(name, image_size, stem, arguments) or 0
    memory = total_memory_bytes()
    if 4 * num_parameters > memory:
        raise UserError(
            f"the encoder {name} with these settings has {num_parameters:,} parameters, which is "
            "more than this machine can hold"
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _create_by_path(path: str, arguments: dict[str, Any]) -> nn.Module:
    make = import_path(path)
    if not callable(make):
        raise UserError(
            f"{path} is a {type(make).__name__}: name a class or a function that returns a module"
        )
    parameters = inspect.signature(make).parameters
    unknown = [name for name in arguments if name not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        hint = suggest(unknown[0], parameters, "encoder.")
        raise UserError(f"encoder.{unknown[0]} is not a setting of {path}: {hint}")
    network = make(**arguments)
    if not isinstance(network, nn.Module):
        raise UserError(f"{path} returned a {type(network).__name__}, not a torch.nn.Module")
    return network


def _create_by_timm(
    name: str, image_size: int, stem: Stem | None, arguments: dict[str, Any]
) -> nn.Module:
    import timm  # slow to import, and not every encoder needs it

    require_timm_name(name)
    _require_bounded(name, arguments)
    timm_name, arguments = timm_terms(name, image_size, arguments)
    try:
        network: nn.Module = timm.create_model(
            timm_name, pretrained=False, num_classes=0, **arguments
        )
    except RuntimeError as error:
        if "." not in timm_name or "tag" not in str(error):
            raise
        raise no_tag(timm_name) from error
    return _with_stem(network, name, stem_of(network, name, image_size, stem))


def require_timm_name(name: str) -> None:
    """Raise a UserError if timm has no such network; a tag is not checked."""
    import timm

    if name == SMALL_RESNET or timm.is_model(name.partition(".")[0]):
        return
    hint = suggest(name, [SMALL_RESNET, *timm.list_models()])
    if not hint.startswith("did you mean"):  # timm has more than a thousand names
        hint = "`smi list encoders` lists some"
    raise UserError(f"there is no encoder {name!r}: {hint} (or give an import path)")


def no_tag(name: str) -> UserError:
    """Return the error for a tag that timm does not know, with its tags for the network."""
    import timm

    network, _, tag = name.partition(".")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{network}.*")]
    hint = suggest(tag, tags, f"{network}.") if tags else "it has no tags"
    return UserError(f"timm has no weights {name!r}: {hint}")


def timm_terms(name: str, image_size: int, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments for timm; the stem is changed afterwards."""
    if name == SMALL_RESNET:
        return "resnet18", SMALL_RESNET_ARGUMENTS | arguments
    if name.startswith(("vit", "deit")):
        # The side of small views need not be a multiple of the patch size.
        return name, {
            "img_size": image_size,
            "dynamic_img_size": True,
            "dynamic_img_pad": True,
        } | arguments
    return name, arguments


def stem_of(network: nn.Module, name: str, image_size: int, stem: Stem | None = None) -> Stem:
    """Return `stem`, or if it is None the stem that suits images of this size."""
    if stem is not None:
        return stem
    if not is_resnet(network) or image_size > MAX_CIFAR_STEM_SIDE:
        return "standard"
    small = name == SMALL_RESNET and image_size > MAX_SMALL_CIFAR_STEM_SIDE
    return "half" if small else "cifar"


def is_resnet(network: nn.Module) -> bool:
    """Return whether a network is a ResNet of timm, whose stem can be replaced."""
    return (
        type(network).__name__ == "ResNet"
        and hasattr(network, "conv1")
        and hasattr(network, "maxpool")
    )


def _with_stem(network: nn.Module, name: str, stem: Stem) -> nn.Module:
    """Replace the first layers of a ResNet."""
    if stem == "standard":
        return network
    if not is_resnet(network):
        raise UserError(f"the {stem} stem is for ResNets; {name} is not a ResNet")
    assert isinstance(network.bn1, nn.BatchNorm2d)
    kernel, stride, padding = STEM_SHAPES[stem]
    width = network.bn1.num_features
    network.conv1 = nn.Conv2d(3, width, kernel, stride=stride, padding=padding, bias=False)
    # The initialisation of timm's convolutions.
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    return network
