"""Encoders: images [N, 3, S, S] to features h [N, F]. Any network of timm by its name, a narrow ResNet for small machines, or your own.

encoder = create_encoder("resnet50", image_size=32)     # with the CIFAR stem, for images this small
encoder = create_encoder("my_package.MyNetwork")        # a class or function that gives a module from images to features
"""

import difflib
import inspect
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from smi.errors import UserError
from smi.imports import import_path, refused

Stem = Literal["standard", "cifar", "half"]
STEMS: tuple[Stem, ...] = get_args(Stem)

SMALL = "resnet-small"  # a ResNet-10 of half the width: minutes, not days, on two cores
# Shortcuts average what they pass over, and no block begins as nothing: short runs have no time to make up for either.
NARROW: dict[str, Any] = {
    "layers": (1, 1, 1, 1),
    "channels": (32, 64, 128, 256),
    "stem_type": "deep",
    "stem_width": 16,
    "avg_down": True,
    "zero_init_last": False,
}
CIFAR_SIDE, HALF_SIDE = (
    64,
    16,
)  # pixels: below, a stem that divides the image's side by four leaves too little of it


class Encoder(nn.Module):
    """A network and what is known of it: `encoder(x)` is [N, dim], `encoder.map(x)` the feature map before pooling, where there is one."""

    def __init__(self, network: nn.Module, dim: int):
        super().__init__()
        self.network = network
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.network(x)
        return h

    def map(self, x: Tensor) -> Tensor:
        """Features at each place, [N, C, H, W]."""
        forward_features = getattr(self.network, "forward_features", None)
        if forward_features is None:
            raise UserError(
                f"{type(self.network).__name__} has no forward_features, as timm's networks do, so there is no map of its features"
            )
        features: Tensor = forward_features(x)
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            raise UserError(
                f"the features of {type(self.network).__name__} before pooling are no map, [N, C, H, W] or [N, places, C]"
            )
        if features.ndim == 3:  # tokens of a transformer, those that are no place first
            tokens = features[:, getattr(self.network, "num_prefix_tokens", 0) :]
            side = round(tokens.shape[1] ** 0.5)
            return tokens.transpose(1, 2).reshape(len(tokens), -1, side, side)
        return (
            features.permute(0, 3, 1, 2)
            if getattr(self.network, "output_fmt", "NCHW") == "NHWC"
            else features
        )


def create_encoder(
    name: str, *, image_size: int = 224, stem: Stem | None = None, **arguments: Any
) -> Encoder:
    """By timm's name, `resnet-small`, or import path; `arguments` go to whatever makes the network.

    stem: of a ResNet. "standard" divides the side by four before the first block, "half" by two, "cifar" (3 x 3, stride 1, no pooling)
    not at all; None chooses by the size of the images.
    """
    if stem is not None and stem not in STEMS:
        raise UserError(f"there is no stem {stem!r}: choose one of {', '.join(STEMS)}")
    try:
        network = _own(name, arguments) if "." in name else _timm(name, image_size, stem, arguments)
        network.eval()  # looking must not change the statistics of its norms
        with torch.no_grad():
            h = network(torch.zeros(2, 3, image_size, image_size))
    except (TypeError, RuntimeError, AssertionError) as error:
        raise refused(error, f"the encoder {name} with images of {image_size} pixels") from error
    if not isinstance(h, Tensor) or h.ndim != 2 or len(h) != 2:
        got = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise UserError(
            f"the encoder {name} must turn images [N, 3, {image_size}, {image_size}] into features [N, F]; two images gave {got}"
        )
    return Encoder(network.train(), h.shape[1])


def _own(path: str, arguments: dict[str, Any]) -> nn.Module:
    make = import_path(path)
    if not callable(make):
        raise UserError(
            f"{path} is a {type(make).__name__}: name a class or a function that gives a module"
        )
    known = inspect.signature(make).parameters
    unknown = [name for name in arguments if name not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = (
            f"did you mean encoder.{close[0]}?"
            if close
            else f"there are {', '.join(known) or 'none'}"
        )
        raise UserError(f"encoder.{unknown[0]} is not a setting of {path}: {hint}")
    network = make(**arguments)
    if not isinstance(network, nn.Module):
        raise UserError(f"{path} gave a {type(network).__name__}, not a torch.nn.Module")
    return network


def _timm(name: str, image_size: int, stem: Stem | None, arguments: dict[str, Any]) -> nn.Module:
    import timm

    known, arguments = timm_terms(name, image_size, arguments)
    if not timm.is_model(known):
        close = difflib.get_close_matches(name, [SMALL, *timm.list_models()], 1)
        hint = f"did you mean {close[0]}?" if close else "`smi encoders` lists some"
        raise UserError(f"there is no encoder {name!r}: {hint} (or give an import path)")
    network: nn.Module = timm.create_model(known, pretrained=False, num_classes=0, **arguments)
    return _with_stem(network, name, stem_of(network, name, image_size, stem))


def timm_terms(name: str, image_size: int, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the arguments that timm makes it by; what it gets for a stem comes after."""
    if name == SMALL:
        return "resnet18", NARROW | arguments
    if name.startswith(("vit", "deit")):
        # Small views have sides of their own, which need not be a multiple of the patch's.
        return name, {
            "img_size": image_size,
            "dynamic_img_size": True,
            "dynamic_img_pad": True,
        } | arguments
    return name, arguments


def stem_of(network: nn.Module, name: str, image_size: int, stem: Stem | None = None) -> Stem:
    """The one asked for, or the one that suits images of this size."""
    if stem is not None:
        return stem
    if not _is_resnet(network) or image_size > CIFAR_SIDE:
        return "standard"
    return "half" if name == SMALL and image_size > HALF_SIDE else "cifar"


def _is_resnet(network: nn.Module) -> bool:
    return (
        type(network).__name__ == "ResNet"
        and hasattr(network, "conv1")
        and hasattr(network, "maxpool")
    )


def _with_stem(network: nn.Module, name: str, stem: Stem) -> nn.Module:
    if stem == "standard":
        return network
    if not _is_resnet(network):
        raise UserError(f"the {stem} stem is for ResNets, not for {name}")
    assert isinstance(network.bn1, nn.BatchNorm2d)
    network.conv1 = nn.Conv2d(
        3, network.bn1.num_features, 3, stride=1 if stem == "cifar" else 2, padding=1, bias=False
    )
    nn.init.kaiming_normal_(
        network.conv1.weight, mode="fan_out", nonlinearity="relu"
    )  # as timm starts its convolutions
    network.maxpool = nn.Identity()
    return network
